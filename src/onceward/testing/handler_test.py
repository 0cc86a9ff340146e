"""A context for calling one handler as the plain function that it is."""

from __future__ import annotations

from contextlib import ExitStack
from types import TracebackType
from typing import Any, NoReturn, Self, cast

from onceward.api.session import Session
from onceward.core.block import Transaction
from onceward.core.handle.context import Context
from onceward.core.handle.inbox import LeasedMessage
from onceward.core.handle.lanes import Lease
from onceward.errors import InvalidArgument
from onceward.message.clock import Millis
from onceward.message.frame import Frame
from onceward.message.times import seconds
from onceward.testing.builders import build_frame, spell


class TrialContext(Context):
    """
    Give a handler its context without an engine behind it.

    Statements and mail go into a transaction of the real file, opened on first
    use. Leaving a ``with`` block commits it, an exception undoes it; without a
    block the same thread sees the effects until the harness moves on, which
    undoes them.
    """

    def __init__(self, leased: LeasedMessage, frame: Frame, body: object, session: Session) -> None:
        nothing = cast("Any", None)  # group and outbox serve the property that is replaced below
        super().__init__(
            leased,
            frame,
            body,
            group=nothing,
            outbox=nothing,
            extend=lambda _, span: self.extended.append(seconds("seconds", span)),
        )
        self._conversation, self._scope = session, ExitStack()
        self.extended: list[float] = []
        """The spans that the handler asked for with ``extend``."""

    @property
    def tx(self) -> Transaction:
        """The transaction of this trial; opened on first use."""
        if self._transaction is None:
            self._transaction = self._scope.enter_context(self._conversation.begin())
        return self._transaction

    @property
    def _requests(self) -> NoReturn:
        msg = "a trial has no replies: send the message and deliver it, with a peer that answers"
        raise InvalidArgument(msg)

    def undo(self) -> None:
        """Undo what the handler did, unless a ``with`` block has committed it."""
        self.__exit__(_Undone, _Undone(), None)

    def __enter__(self) -> Self:
        """Try a handler and keep what it does."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Commit, or undo after an exception."""
        try:
            self._scope.__exit__(kind, error, trace)
        except _Undone:
            pass
        finally:
            self._transaction = None


class _Undone(Exception):
    """End a trial without a commit."""


def trial(
    body: object, *, session: Session, agent: str, sender: str, attempt: int, at: Millis
) -> TrialContext:
    """Return the context of a message with *body*, which no file has ever seen."""
    frame = build_frame(body, sender=sender, recipient=agent, session=session.name, at=at)
    lease = Lease(lane_id=0, token=0, owner="trial", isolate=False)
    leased = LeasedMessage(
        lane=lease,
        seq=0,
        sender=sender,
        id=frame.id,
        session=session.name,
        frame=spell(frame),
        digest=b"",
        expires_at=None,
        attempt=attempt,
        received_at=at,
    )
    return TrialContext(leased, frame, body, session)
