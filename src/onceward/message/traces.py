"""Write the traceback of a failed call as text of bounded length."""

from __future__ import annotations

import os
import traceback
from pathlib import Path
from types import TracebackType
from typing import Final

from onceward.message.vocabulary import Raised

PACKAGE: Final = f"{Path(__file__).parents[1]}{os.sep}"
"""Folder of the frames between a worker and the handler that it calls."""
FRAMES: Final = 20
"""Most frames of each exception of a trace: the last ones."""
LONGEST: Final = 8_000
"""Most characters of a trace: its end, which names the error."""


def raised(error: BaseException, took: float | None) -> Raised:
    """Return the traceback of an exception, cut at its beginning, as text that a file stores."""
    own = _of_handler(error.__traceback__)
    lines = "".join(traceback.format_exception(type(error), error, own, limit=-FRAMES))
    trace = lines if len(lines) <= LONGEST else f"…{lines[1 - LONGEST :]}"
    return Raised(trace.encode("utf-8", "backslashreplace").decode(), took)


def _of_handler(trace: TracebackType | None) -> TracebackType | None:
    """Return a traceback from the first frame that is not of this package, or the whole one."""
    found = trace
    while found is not None and found.tb_frame.f_code.co_filename.startswith(PACKAGE):
        found = found.tb_next
    return found or trace
