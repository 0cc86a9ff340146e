"""What the exit codes mean, and which error ends with which."""

from __future__ import annotations

from typing import Any, Final

from onceward.errors import (
    AnswerTimeout,
    Busy,
    ChannelError,
    Conflict,
    DuplicateChannel,
    DuplicateMailbox,
    InvalidArgument,
    LeaseLost,
    NoMailbox,
    OncewardError,
    Paused,
    QueueFull,
    RateLimited,
    Refused,
    StoreCapacity,
    StoreUnusable,
    UnknownChannel,
    UnknownRecipient,
)

DONE: Final = 0
FAILED: Final = 1
USAGE: Final = 2
NOTHING_THERE: Final = 3
TIMED_OUT: Final = 4
CONFLICT: Final = 5
PARTLY: Final = 6
REFUSED: Final = 7
SIGNAL: Final = 128
"""Added to the number of the signal that ended us, after a graceful stop: 130 interrupt, 143 terminate."""


class Usage(OncewardError):
    """The command line does not say what to do: look at --help."""


class NothingThere(OncewardError):
    """There is no such file, message or peer, or nothing waits: list what there is."""


class Failed(OncewardError):
    """The system refused a file or a folder: look at its permissions and its place."""


class TimedOut(OncewardError):
    """Nothing came in time: ask again, or wait longer."""

    retryable = True


class Conflicting(OncewardError):
    """What is there already stands in the way: choose another name or place, or look at it first."""


ENDINGS: Final[tuple[tuple[tuple[type[OncewardError], ...], int], ...]] = (
    ((Usage, InvalidArgument), USAGE),
    ((NothingThere, UnknownRecipient, UnknownChannel, NoMailbox), NOTHING_THERE),
    ((TimedOut, AnswerTimeout, Busy), TIMED_OUT),
    ((Conflicting, Conflict, DuplicateMailbox, DuplicateChannel, LeaseLost), CONFLICT),
    (
        (Paused, ChannelError, QueueFull, RateLimited, StoreCapacity, StoreUnusable, Refused),
        REFUSED,
    ),
)


def code_of(error: OncewardError) -> int:
    """Return the exit code of an error; whatever has none of its own is a failure."""
    return next((code for kinds, code in ENDINGS if isinstance(error, kinds)), FAILED)


def problem(error: OncewardError) -> dict[str, Any]:
    """Return an error as a problem object in the manner of RFC 9457."""
    return {
        "type": f"urn:onceward:error:{type(error).__name__}",
        "title": (type(error).__doc__ or "").strip().partition("\n")[0],
        "detail": str(error),
        "exit_code": code_of(error),
        "retryable": error.retryable,
    }
