"""Define the exit codes and map errors to them."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Final

from onceward.errors import (
    AmbiguousRecipient,
    AnswerTimeout,
    Busy,
    ChannelError,
    Conflict,
    DiskFull,
    InvalidArgument,
    LeaseLost,
    LimitReached,
    OncewardError,
    Paused,
    Refused,
    StoreUnusable,
    UnknownChannel,
    UnknownKey,
    UnknownMailbox,
    UnknownRecipient,
    WrongHome,
)
from onceward.fleet.files import NamesNoFile, NoSuchPath
from onceward.ops.cli.wording import in_shell

DONE: Final = 0
FAILED: Final = 1
USAGE: Final = 2
NOTHING_THERE: Final = 3
TIMED_OUT: Final = 4
CONFLICT: Final = 5
PARTLY: Final = 6
REFUSED: Final = 7
SIGNAL: Final = 128
"""Added to a signal's number after a graceful stop: 130 interrupt, 143 terminate."""


class Usage(OncewardError):
    """The command line is incomplete or wrong: see --help."""


class NothingThere(OncewardError):
    """There is no such file, message or peer, or no message waits: list the existing ones."""


class Failed(OncewardError):
    """The system refused a file or a folder: check its permissions and its location."""


class TimedOut(OncewardError):
    """No message came in time: try again, or wait longer."""

    retryable = True


class Conflicting(OncewardError):
    """The name or path is in use: choose another, or examine the existing one."""


ENDINGS: Final[tuple[tuple[tuple[type[OncewardError], ...], int], ...]] = (
    ((Usage, InvalidArgument), USAGE),
    ((NothingThere, NamesNoFile, NoSuchPath), NOTHING_THERE),
    ((UnknownRecipient, UnknownChannel, UnknownMailbox, UnknownKey), NOTHING_THERE),
    ((TimedOut, AnswerTimeout, Busy), TIMED_OUT),
    ((Conflicting, Conflict, AmbiguousRecipient, LeaseLost), CONFLICT),
    ((Paused, ChannelError, LimitReached, DiskFull), REFUSED),
    ((StoreUnusable, Refused, WrongHome), REFUSED),
)


def code_of_all(failures: Collection[object]) -> int:
    """Return the exit code of several works, of which the failures are true."""
    if not any(failures):
        return DONE
    return FAILED if all(failures) else PARTLY


def code_of(error: OncewardError) -> int:
    """Return the exit code of an error; FAILED if its class has no own code."""
    return next((code for kinds, code in ENDINGS if isinstance(error, kinds)), FAILED)


def problem(error: OncewardError) -> dict[str, Any]:
    """Return an error as a problem object like those of RFC 9457."""
    return {
        "type": f"urn:onceward:error:{type(error).__name__}",
        "title": in_shell((type(error).__doc__ or "").strip().partition("\n")[0]),
        "detail": in_shell(str(error)),
        "exit_code": code_of(error),
        "retryable": error.retryable,
    }
