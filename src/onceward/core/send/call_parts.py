"""Keep what a handler's call has used so far, such as requests and steps, until the call ends."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar

from onceward.file.transaction import StoreTransaction
from onceward.message.clock import Millis


class Suspended(BaseException):
    """
    Ends a call of a handler; ``except Exception`` does not catch it, as it is not a failure.

    *until* is called in the transaction that stores the wait, and returns the latest time at which
    to call the handler again.
    """

    def __init__(self, reason: str, until: Callable[[StoreTransaction], Millis]) -> None:
        super().__init__(reason)
        self.until = until


class CallPart(Protocol):
    """One part of a handler's call, made when the handler first uses it."""

    def refuse_inside(self, what: str) -> None:
        """Raise InvalidArgument where the next call would not find *what* again."""

    def has(self, message_id: str | None) -> bool:
        """Return whether an earlier call made a request, whose outcome is stored."""
        ...

    def end_call(self) -> None:
        """End a call that returned although it must continue later."""

    def keep(self, tx: StoreTransaction) -> None:
        """Store what a call has made that ends to wait."""

    def close(self) -> None:
        """Refuse further use: the call has ended."""


P = TypeVar("P", bound=CallPart)


class CallParts:
    """The parts that a handler's call has used; ``Context`` and ``Run`` have them."""

    _parts: tuple[CallPart, ...] = ()

    def _use(self, part: P, *, first: bool = False) -> P:
        """Add a part; the *first* ends the call before others do."""
        self._parts = (part, *self._parts) if first else (*self._parts, part)
        return part

    def _end_call(self) -> None:
        """End a call that returned although it waits for a reply or a time."""
        for part in self._parts:
            part.end_call()

    def _close_parts(self) -> None:
        """Refuse further use of all parts."""
        for part in self._parts:
            part.close()
