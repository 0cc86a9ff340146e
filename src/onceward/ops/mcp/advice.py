"""Explain a failed call to a model, and the next step."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from mcp.server.mcpserver.exceptions import ToolError

from onceward.errors import (
    Busy,
    Conflict,
    FileLimit,
    InvalidArgument,
    LeaseLost,
    LimitReached,
    OncewardError,
    OutboxLimit,
    OutcomeUnknown,
    Paused,
    RateLimited,
    TooLarge,
    TopicError,
    UnknownRecipient,
)
from onceward.message.names import quoted
from onceward.message.redaction import visible

SAID: Final = 1000
"""Maximum characters of an error's own text, which may quote other agents."""
NEXT: Final = (
    (UnknownRecipient, "Nothing was sent. Call list_agents for the names that exist."),
    (Conflict, "Nothing was sent. Use a new key for another message."),
    (RateLimited, "Nothing was sent. Wait, then call again with the same arguments."),
    (LimitReached, "Nothing was sent. Wait until messages are delivered, then call again."),
    (Paused, "No message was lost. Only the user can resume the agent: tell the user."),
    (TooLarge, "Nothing was sent. Send a shorter body, or say where the content is."),
    (TopicError, "Nothing was sent. Topics are words with dots between, such as build.done."),
    (LeaseLost, "Nothing was changed. Call claim_message to get the message again."),
    (OutcomeUnknown, "It may have been done. Call again with the same key: it takes effect once."),
    (Busy, "Nothing was written. Call again with the same arguments."),
    (InvalidArgument, "Nothing was done. Correct the argument, then call again."),
)
"""The next step, by the first class that fits."""


OWN_CURE: Final = (UnknownRecipient, Conflict, OutboxLimit, FileLimit, Paused, TooLarge)
"""Errors whose own text ends with advice for programs or shells, useless to a model."""


@contextmanager
def advised(key: str = "", given: str | None = None) -> Iterator[None]:
    """Convert an error of the package for a model, with its *given* key instead of ours."""
    try:
        yield
    except OncewardError as error:
        said = _fact(error)
        if key:
            said = said.replace(quoted(key), "of this call" if given is None else quoted(given))
        raise refused(said, _next(error)) from error


def refused(what: str, cure: str) -> ToolError:
    """Return the error of a call: what happened, and what to do next."""
    return ToolError(f"{visible(what[:SAID]).rstrip('.')}. {cure}")


def _fact(error: OncewardError) -> str:
    """Return what happened, without advice for programs and operators."""
    said = str(error)
    return said.partition(": ")[0] if isinstance(error, OWN_CURE) else said


def _next(error: OncewardError) -> str:
    for kind, cure in NEXT:
        if isinstance(error, kind):
            return cure
    return "Call again later." if error.retryable else "Tell the user."
