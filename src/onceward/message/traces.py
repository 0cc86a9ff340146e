"""Write the traceback of a failed call as text of bounded length."""

from __future__ import annotations

import os
import traceback
from pathlib import Path
from types import TracebackType
from typing import Final

from onceward.message.vocabulary import Raised

PACKAGE: Final = f"{Path(__file__).parents[1]}{os.sep}"
"""Folder of the stack frames between a worker and the handler that it calls."""
FRAMES: Final = 20
"""Maximum stack frames of each exception in a trace; the last ones are kept."""
LONGEST: Final = 8_000
"""Maximum characters of a trace; its end, which names the error, is kept."""


def raised(error: BaseException, took: float | None) -> Raised:
    """Return the traceback of an exception as text to store, truncated at its beginning."""
    own = of_handler(error.__traceback__)
    lines = "".join(traceback.format_exception(type(error), error, own, limit=-FRAMES))
    trace = lines if len(lines) <= LONGEST else f"…{lines[1 - LONGEST :]}"
    return Raised(trace.encode("utf-8", "backslashreplace").decode(), took)


def of_handler(trace: TracebackType | None) -> TracebackType | None:
    """Return a traceback from its first frame outside this package, or the whole one."""
    found = trace
    while found is not None and found.tb_frame.f_code.co_filename.startswith(PACKAGE):
        found = found.tb_next
    return found or trace
