"""
Tell the exceptions that the handler of a signal raised from all others.

Python runs such a handler between any two steps of the main thread. Its exception (Ctrl-C, the time
limit of a job runner or of a test) concerns the interrupted caller only: it says nothing about a
commit, and nothing about the work of other threads.
"""

from __future__ import annotations

import signal
from traceback import walk_tb
from typing import Final

import apsw

from onceward.errors import OncewardError
from onceward.message.error_text import trace_of

OWN_ERRORS: Final = (apsw.Error, OncewardError, OSError, MemoryError)
"""Errors that the steps of a commit raise themselves."""


def interrupts_step(error: BaseException) -> bool:
    """Return whether an exception came from outside into a step of a commit."""
    return not issubclass(type(error), OWN_ERRORS)


def interrupts_work(error: BaseException | None) -> bool:
    """Return whether an exception in the work of a caller came from the handler of a signal."""
    if error is None or not issubclass(type(error), Exception):
        return error is not None
    handlers = {getattr(signal.getsignal(n), "__code__", None) for n in signal.valid_signals()}
    return any(frame.f_code in handlers for frame, _ in walk_tb(trace_of(error)))
