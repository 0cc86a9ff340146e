"""A context for calling one handler as the plain function that it is."""

from __future__ import annotations

from contextlib import ExitStack
from types import TracebackType
from typing import Any, Self, cast

from onceward.clock import Millis
from onceward.context import Context
from onceward.frame import Envelope, Frame, compose
from onceward.ids import new_id
from onceward.inbox import Leased
from onceward.lanes import LaneLease
from onceward.message import Message
from onceward.payload import encode
from onceward.session import Session
from onceward.transaction import Transaction


class TrialContext(Context):
    """
    What a handler is given, without an engine behind it.

    Statements and mail go into a transaction of the real file, opened on first
    use. Leaving a ``with`` block commits it, an exception undoes it; without a
    block the same thread sees the effects until the harness moves on, which
    undoes them.
    """

    def __init__(self, message: Message[Any], session: Session) -> None:
        nothing = cast("Any", None)  # group and sender serve the property that is replaced below
        super().__init__(message, nothing, nothing, self._extended)
        self._conversation, self._scope = session, ExitStack()
        self.extended: list[float] = []
        """The spans that the handler asked for with ``extend``."""

    @property
    def tx(self) -> Transaction:
        """The transaction of this trial; opened on first use."""
        if self._transaction is None:
            self._transaction = self._scope.enter_context(self._conversation.begin())
        return self._transaction

    def _extended(self, seconds: float) -> None:
        self.extended.append(seconds)

    def undo(self) -> None:
        """Undo what the handler did, unless a ``with`` block has committed it."""
        self.__exit__(_Undone, _Undone(), None)

    def __enter__(self) -> Self:
        """Try a handler and keep what it does."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Commit, or undo after an exception."""
        try:
            self._scope.__exit__(kind, error, trace)
        except _Undone:
            pass
        finally:
            self._transaction = None


class _Undone(Exception):  # noqa: N818 - never seen outside
    """Ends a trial that nobody committed."""


def trial_message(body: object, *, sender: str, recipient: str, session: str, attempt: int, at: Millis) -> Message[Any]:
    """Return a message as a handler would see it, with *body* and a frame of its own."""
    payload = encode(body)
    envelope = Envelope(id=new_id(), sender=sender, recipient=recipient, type=payload.type, created_at=at, session=session)
    text = compose(envelope, payload.media, payload.text)
    leased = Leased(LaneLease(0, 0, "trial", attempt), 0, sender, envelope.id, session, text, b"", None, attempt, at)
    return Message(leased, Frame.parse(text), body, None)
