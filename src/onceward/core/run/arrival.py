"""Pass an arriving message to a worker of this process, which handles it as it is stored."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from threading import Lock, get_ident
from typing import Final, Literal, Protocol

from onceward.core.rows.lanes import LeasedMessage
from onceward.file.transaction import StoreTransaction
from onceward.message.clock import Millis
from onceward.message.parcel import Answer

ANSWERED: Final[ContextVar[Callable[[Answer], None] | None]] = ContextVar("answered", default=None)
"""
Takes the answer to the parcel that the present thread carries, from another thread.

A carrier that sets it may handle the message itself: a handler that takes long does not delay the
answer then.
"""
TAKEN_WITHIN: Final = 0.01
"""Seconds that a parcel waits for a worker to begin with it; then it is stored first, as usual."""


class Arrival:
    """
    A parcel of one message whose handler is called before the parcel is stored.

    The thread that carries the parcel waits for its answer. A worker takes it with ``begin``,
    reads it with ``open``, and stores it in the transaction of its handler: as a handled message
    (``store_handled``), or as a waiting one under the worker's lease (``store``), which is then
    settled like any other. ``tell`` follows the commit. Without an answer nothing was stored, or
    the outcome of the commit is unknown: then the carrier accepts the parcel as usual, which is
    always right, because a parcel that was stored is known by its number.
    """

    id: str
    """Id of its message."""
    asks: bool
    """Whether its sender may wait for a reply: then it is stored before its handler replies."""

    def __init__(self) -> None:
        self._mutex, self._told = Lock(), Lock()
        self._told.acquire()
        self._state: Literal["offered", "begun", "withdrawn", "told"] = "offered"
        self._answer: Answer | None = None
        self._answered = ANSWERED.get()
        self._kept_by = 0
        """The thread that carries the parcel while it handles the message itself."""

    # -- by the carrier -----------------------------------------------------------------------

    def wait(self) -> Answer | None:
        """Return the answer to the parcel; None if it must be accepted as usual."""
        if not self._told.acquire(timeout=TAKEN_WITHIN) and not self._withdraw():
            self._told.acquire()
        return self._answer

    @property
    def may_be_handled_here(self) -> bool:
        """Whether the thread that carries the parcel may handle the message itself."""
        return self._answered is not None

    def _withdraw(self) -> bool:
        """Take it back from a worker that has not begun with it; return whether that was so."""
        with self._mutex:
            if self._state == "offered":
                self._state = "withdrawn"
        return self._state == "withdrawn"

    @property
    def begun(self) -> bool:
        """Whether a worker has begun with it, so that its handler may have been called."""
        return self._state not in {"offered", "withdrawn"}

    # -- by the worker ------------------------------------------------------------------------

    def begin(self, *, here: bool = False) -> bool:
        """
        Begin to handle it; return False if its carrier does not wait any more.

        *here*: this thread carries the parcel too.
        """
        with self._mutex:
            if self._state == "offered":
                self._state, self._kept_by = "begun", get_ident() if here else 0
        return self._state == "begun"

    def tell(self, answer: Answer | None) -> None:
        """Give its carrier the answer, or None: accept it as usual. The first call counts."""
        with self._mutex:
            if self._state == "told":
                return
            self._state, self._answer = "told", answer
        self._told.release()
        if answer is not None and self._answered is not None and self._is_kept:
            self._answered(answer)

    @property
    def _is_kept(self) -> bool:
        """Whether its handler keeps the thread that carries the parcel."""
        return self._kept_by not in (0, get_ident())

    def message(self) -> LeasedMessage:
        """Return the message without a lease, to find its handler."""
        raise NotImplementedError

    def open(self, tx: StoreTransaction, *, owner: str, until: Millis) -> LeasedMessage | None:
        """Return the message as it will be leased; None if the usual way must be taken."""
        raise NotImplementedError

    def store(self, tx: StoreTransaction) -> None:
        """Store it as a waiting message under its lease."""
        raise NotImplementedError

    def store_handled(self, tx: StoreTransaction) -> None:
        """Store it as a handled message, which needs no lease."""
        raise NotImplementedError

    @property
    def answer(self) -> Answer:
        """The answer to the parcel once what was stored is committed."""
        raise NotImplementedError


class TakesArrivals(Protocol):
    """The workers of an agent in this process."""

    @property
    def may_take(self) -> bool:
        """Whether a worker may be idle, and its calls quick."""
        ...

    def take(self, arrival: Arrival) -> Answer | None:
        """Have an idle worker handle a message; None if its parcel must be accepted as usual."""
        ...
