"""Define a context for calling one handler as a plain function."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import ExitStack
from datetime import UTC, datetime
from functools import cached_property, partial
from types import SimpleNamespace, TracebackType
from typing import Any, Final, NoReturn, Self, cast
from uuid import UUID

from onceward.api.contexts import Context
from onceward.api.session import Session
from onceward.core.handle.output import OutputStream
from onceward.core.rows.lanes import Lease, LeasedMessage
from onceward.core.run.async_face import OffLoop
from onceward.core.send.block import Bindings, Transaction
from onceward.errors import InvalidArgument
from onceward.features.steps.steps import RUNNING, RunningStep, declared
from onceward.features.steps.verbs import StepFunction, Steps
from onceward.file.transaction import StoreTransaction
from onceward.message import times
from onceward.message.clock import Millis
from onceward.message.frame import Frame
from onceward.message.handler_work import StoredStep
from onceward.message.ids import new_token
from onceward.message.times import Span, millis
from onceward.testing.builders import build_frame, spell

NO_WAIT: Final = "a trial has no other messages: send them and deliver"


class TrialSteps:
    """Call the functions of steps and store nothing: a trial has no message."""

    def __init__(self, context: TrialContext) -> None:
        self._context = context

    def call(self, step: StepFunction) -> Any:
        """Return what the function of a step returns."""
        plain, rules = declared(step.function, step.options)
        tx = self._context.tx if rules.tx else None
        before = RUNNING.set(RunningStep(made_key=partial(str, new_token()), tx=tx))
        try:
            return plain(*step.args, **step.named)
        finally:
            RUNNING.reset(before)

    async def await_call(self, step: StepFunction, *, off_loop: OffLoop) -> Any:
        """Refuse: a trial is a call of a plain function."""
        del step, off_loop
        raise InvalidArgument("a trial has no coroutines: send the message and deliver it")

    def sleep(self, span: Span) -> None:
        """Check the span; a trial does not wait."""
        millis("span", span)

    async def await_sleep(self, span: Span, *, off_loop: OffLoop) -> None:
        """Check the span; a trial does not wait."""
        del off_loop
        millis("span", span)

    def once(
        self, name: str, args: tuple[Any, ...], work: Callable[[StoreTransaction], Any]
    ) -> Any:
        """Refuse: only runs commit requests this way, and a trial has none."""
        del name, args, work
        raise InvalidArgument(NO_WAIT)

    def wait(self, what: type | str, timeout: Span | None) -> Any:
        """Refuse to: no message comes in a trial."""
        del what, timeout
        raise InvalidArgument(NO_WAIT)

    async def await_wait(self, what: type | str, timeout: Span | None, *, off_loop: OffLoop) -> Any:
        """Refuse to: no message comes in a trial."""
        del what, timeout, off_loop
        raise InvalidArgument(NO_WAIT)

    def stream(self, name: str | None) -> OutputStream:
        """Return a stream whose chunks the trial keeps in ``streamed``."""
        chunks = self._context.streamed

        def add(name: str, chunk: object) -> bool:
            chunks.setdefault(name, []).append(chunk)
            return False

        return OutputStream(name or "output", add, lambda: None)

    def now(self) -> datetime:
        """Return the time of the harness."""
        return datetime.fromtimestamp(self._context._conversation._db.now() / 1000, UTC)

    def uuid(self) -> UUID:
        """Return a new id."""
        return UUID(self._context._conversation._outbox.composer.mint())

    def random(self) -> float:
        """Return a random number."""
        return random.random()  # noqa: S311 - no secret

    def of_others(self, sender: str, message_id: str, scope: str) -> tuple[StoredStep, ...]:
        """Return none: a trial has no earlier call."""
        del sender, message_id, scope
        return ()

    def commit(self, work: Callable[[StoreTransaction], None]) -> None:
        """Refuse to: a trial commits all of it, or nothing."""
        del work
        raise InvalidArgument("a trial commits nothing by itself: send the message and deliver it")

    def refuse_inside(self, what: str) -> None:
        """Do nothing: no request is made in a trial."""

    def has(self, message_id: str | None) -> bool:
        """Return False: a trial makes no request."""
        del message_id
        return False

    def keep(self, tx: StoreTransaction) -> None:
        """Do nothing: no call waits in a trial."""

    def end_call(self) -> None:
        """Do nothing, as ``keep``."""

    def close(self) -> None:
        """Do nothing: the trial may continue."""


class TrialContext(Context):
    """
    Give a handler its context without an engine behind it.

    Statements and messages go into a transaction of the real file, opened on first use. Leaving a
    ``with`` block commits it, an exception undoes it; without a block the same thread sees the
    effects until the harness continues, which undoes them.
    """

    def __init__(self, leased: LeasedMessage, frame: Frame, body: object, session: Session) -> None:
        nothing = cast("Any", SimpleNamespace(outbox=None))  # what they serve is replaced below
        super().__init__(leased, frame, body, group=nothing, deps=nothing)
        self._conversation, self._scope = session, ExitStack()
        self.extended: list[float] = []
        """The spans that the handler asked for with ``extend``."""
        self.streamed: dict[str, list[object]] = {}
        """The chunks that the handler has put out, by the name of their stream."""

    def extend(self, seconds: Span) -> None:
        """Note the span in ``extended``."""
        self.extended.append(times.seconds("seconds", seconds))

    @property
    def tx(self) -> Transaction:
        """The transaction of this trial; opened on first use."""
        if self._transaction is None:
            self._transaction = self._scope.enter_context(self._conversation.begin())
        return self._transaction

    def query(self, sql: str, bindings: Bindings = None) -> list[Any]:
        """Run a SELECT; it sees what the trial has written."""
        written = None if self._transaction is None else self._transaction._tx
        return self._conversation._db.query(sql, bindings, inside=written)

    @cached_property
    def _steps(self) -> Steps:  # of no message in the file
        return TrialSteps(self)

    @property
    def _requests(self) -> NoReturn:  # a trial has none
        msg = "a trial has no replies: send the message and deliver it, with a peer that answers"
        raise InvalidArgument(msg)

    def undo(self) -> None:
        """Undo the handler's effects, unless a ``with`` block has committed them."""
        self.__exit__(_Undone, _Undone(), None)

    def __enter__(self) -> Self:
        """Try a handler and keep its effects."""
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
