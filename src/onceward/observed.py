"""
Call the observers of one send, or of one attempt, from its start to its end.

Imported with the first observer: without an observer a send makes no extra call.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from types import TracebackType
from typing import Any, Self

from onceward.errors import InvalidMessage
from onceward.hooks import (
    Attempt,
    ComposedMessage,
    Handling,
    Observer,
    SendFacts,
    Sending,
    SendOutcome,
    StepFacts,
)
from onceward.message.error_text import safe_repr
from onceward.message.frame import RESERVED_ATTRIBUTES, check_extension
from onceward.message.log import log, quietly
from onceward.message.vocabulary import Settlement


def _quietly(agent: str, observer: object, name: str, *args: Any) -> Any:
    """Call a method of an observer of an agent's postbox; log its errors."""
    failed = partial(_log_failed, agent, observer)
    return quietly(lambda: getattr(observer, name)(*args), failed=failed)


def _log_failed(agent: str, observer: object, error: BaseException) -> None:
    log.failure("error", "observer failed", error, agent=agent, observer=safe_repr(observer))


class ObservedSend:
    """
    One send and all its observers.

    Its messages refer to it, so it is dropped with the last of them: by then its commit is known,
    or nothing was committed.
    """

    __slots__ = ("_agent", "_ended", "_sendings", "headers")

    def __init__(self, observers: Sequence[Observer], facts: SendFacts) -> None:
        self._agent, self._ended = facts.agent, False
        found = [_quietly(facts.agent, each, "sending", facts) for each in observers]
        self._sendings = [sending for sending in found if sending is not None]
        self.headers: dict[str, str] = {}
        for sending in self._sendings:
            failed = partial(_log_failed, facts.agent, sending)
            self.headers |= quietly(_valid, sending, failed=failed) or {}

    @contextmanager
    def composing(self) -> Iterator[None]:
        """Compose the messages in a block; an error in the block refuses the send."""
        try:
            yield
        except Exception as error:
            self.failed(error)
            raise

    def composed(self, messages: Sequence[ComposedMessage]) -> None:
        """Report the messages."""
        for sending in self._sendings:
            _quietly(self._agent, sending, "composed", messages)

    def failed(self, error: BaseException) -> None:
        """Report that a message was refused."""
        self._end("unconfirmed", type(error))

    def committed(self) -> None:
        """Report that the messages are committed."""
        self._end("committed")

    def known(self) -> None:
        """Report that the message was sent before."""
        self._end("known")

    def _end(self, outcome: SendOutcome, refused: type[BaseException] | None = None) -> None:
        if not self._ended:
            self._ended = True
            for sending in self._sendings:
                _quietly(self._agent, sending, "ended", outcome, refused)

    def __del__(self) -> None:
        self._end("unconfirmed")


def _valid(sending: Sending) -> dict[str, str]:
    for name, value in sending.headers.items():
        if name in RESERVED_ATTRIBUTES:
            raise InvalidMessage(f"header {name!r} is an attribute of the frame")
        check_extension(name, value)
    return dict(sending.headers)


@contextmanager
def observed_step(observers: Sequence[Observer], step: StepFacts) -> Iterator[None]:
    """Call a step's function in a block that observers see; the last one sees its end first."""
    found = [_quietly(step.agent, each, "stepping", step) for each in observers]
    raised: BaseException | None = None
    try:
        yield
    except BaseException as error:
        raised = error
        raise
    finally:
        for each in reversed([stepping for stepping in found if stepping is not None]):
            _quietly(step.agent, each, "ended", raised)


class ObservedAttempt:
    """One attempt and all its observers, as a block; the last observer sees its end first."""

    def __init__(self, observers: Sequence[Observer], attempt: Attempt) -> None:
        self._observers, self._attempt = observers, attempt
        self._handlings: list[Handling] = []
        self._end: tuple[Sequence[Settlement], BaseException | None] = ((), None)

    def __enter__(self) -> Self:
        """Report the start."""
        found = [
            _quietly(self._attempt.agent, each, "handling", self._attempt)
            for each in self._observers
        ]
        self._handlings = [handling for handling in found if handling is not None]
        return self

    def settle(self, settlements: Sequence[Settlement], error: BaseException | None) -> None:
        """Record how the attempt ends."""
        self._end = settlements, error

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Report the end."""
        settlements, raised = self._end
        for handling in reversed(self._handlings):
            _quietly(self._attempt.agent, handling, "ended", settlements, raised or error)
