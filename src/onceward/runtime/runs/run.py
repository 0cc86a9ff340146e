"""What a session's handler is given: the messages of one run, and mail and marks that commit only while the run is its own."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Protocol, TypeVar, Unpack

from onceward.errors import RunAborted
from onceward.model.send_options import PublishOptions, SendOptions, parse_options
from onceward.runtime.context import OnWorker, reply_options
from onceward.runtime.fanout import Publisher
from onceward.runtime.message import Message
from onceward.runtime.results import task
from onceward.runtime.runs.reading import ReadMessage
from onceward.runtime.runs.scheduler import StartedRun
from onceward.runtime.sender import OutgoingMessage
from onceward.runtime.transaction import Transaction
from onceward.store.runs import PreviousRun, Summary

T = TypeVar("T")


class Holder(Protocol):
    """Who keeps the run's lease and commits for it."""

    def checkpoint(self, partial: Any) -> None:
        """Commit partial output and what was said so far."""
        ...

    def write(self, work: Callable[[Transaction], T]) -> T:
        """Commit work of the run at once."""
        ...

    def more(self) -> list[ReadMessage]:
        """Bind what waits to the run."""
        ...


class Run:
    """
    One call of a session's handler.

    What it sends is committed with the next ``checkpoint`` or with its end,
    never after the run was ended by somebody else. Slow work holds no lock.
    """

    def __init__(self, seat: StartedRun, *, sender: Publisher, holder: Holder) -> None:
        self.id: str = seat.run.id
        """Names the run everywhere; another attempt at the same messages is another run."""
        self.session: str = seat.run.session
        self.mode: str = seat.run.mode
        """The mode that its messages were chosen by."""
        self.messages: list[Message[Any]] = [_message(each) for each in seat.messages]
        """Distinct messages in order; the last one is the current one."""
        self.metadata: dict[str, Any] = seat.metadata
        """``collect_batch`` or ``queue_batch``: count, event_ids, strategy."""
        self.summary: Summary | None = seat.summary
        """What a full queue dropped since the last run; belongs before the messages."""
        self.previous_run: PreviousRun | None = seat.before
        """The run that was aborted just before this one, with its partial output as JSON."""
        self.cancelled: bool = False
        """Whether the run was ended from outside: return at once, nothing more of it counts."""
        self.drafts: list[OutgoingMessage] = []
        self._at_end_work: list[Callable[[Transaction], object]] = []
        self._sender, self._holder = sender, holder

    def __repr__(self) -> str:
        """Name the run without its messages."""
        return f"<Run {self.id} of {self.session}: {self.mode}, {len(self.messages)} messages>"

    @property
    def message(self) -> Message[Any]:
        """The current message."""
        return self.messages[-1]

    @property
    def previous(self) -> Any:
        """Partial output of the run that was aborted just before this one, None where there is none."""
        return (
            None
            if self.previous_run is None or self.previous_run.partial is None
            else json.loads(self.previous_run.partial)
        )

    def raise_if_cancelled(self) -> None:
        """Raise RunAborted once the run was ended from outside; call it now and then in long work."""
        if self.cancelled:
            msg = (
                f"run {self.id} of session {self.session!r} was ended from outside: return at once"
            )
            raise RunAborted(msg)

    def checkpoint(self, partial: object) -> None:
        """
        Commit partial output, and with it everything that was sent so far.

        It is what an aborted run leaves behind.

        Raises:
            RunAborted: the run was ended from outside; nothing was written.
            InvalidMessage: the output cannot be written as JSON; nothing was written.

        """
        self._holder.checkpoint(partial)

    def write(self, work: Callable[[Transaction], T]) -> T:
        """Run *work* on a transaction and commit it at once; it may be run again. Raises RunAborted where the run is not ours any more."""
        return self._holder.write(work)

    def at_end(self, work: Callable[[Transaction], object]) -> None:
        """Run *work* in the transaction that ends the run well; it may be run again."""
        self._at_end_work.append(work)

    def send(self, to: str, body: object, **options: Unpack[SendOptions]) -> str:
        """Promise a message with the next checkpoint or the run's end; returns its id."""
        options.setdefault("causation_id", self.message.id)
        return self._say(self._sender.compose(self.session, to, body, parse_options(options)))

    def publish(self, topic: str, body: object, **options: Unpack[PublishOptions]) -> list[str]:
        """Send to every peer that subscribed to *topic*, as ``send`` does; returns the ids."""
        named: SendOptions = {**options, "topic": topic}
        return [self.send(peer, body, **named) for peer in self._sender.subscribers(topic)]

    def reply(
        self, body: object, *, to: Message[Any] | None = None, **options: Unpack[SendOptions]
    ) -> str:
        """Answer the current message, or *to*, as ``send`` does; returns the id."""
        name, named = reply_options((to or self.message).frame, options)
        return self._say(self._sender.compose(self.session, name, body, named))

    def dispatch(
        self, to: str, body: object, *, session: str | None = None, **options: Unpack[SendOptions]
    ) -> str:
        """
        Give another agent a task in a session of its own, as ``send`` does; returns the dispatch id.

        However it ends there, a ``worker_result`` with that id comes into this session, once.
        """
        options.setdefault("causation_id", self.message.id)
        return self._say(
            task(self._sender, self.session, to, body, session=session, options=options)
        )

    def inbox(self) -> list[Message[Any]]:
        """
        Take what came meanwhile into this run, and declare that it does so.

        From the first call on, ``steer`` with ``inject`` leaves new messages
        to the next call instead of ending the run. Raises RunAborted.
        """
        fresh = [_message(each) for each in self._holder.more()]
        self.messages += fresh
        return fresh

    def _say(self, draft: OutgoingMessage) -> str:
        self.drafts.append(draft)
        return draft.id


def _message(each: ReadMessage) -> Message[Any]:
    return Message(each.leased, each.frame, each.body, None)


class AsyncRun:
    """The same run for ``async def`` handlers: the same names, awaitable; ending it from outside cancels the handler."""

    def __init__(self, run: Run, on_worker: OnWorker) -> None:
        self.id: str = run.id
        self.session: str = run.session
        self.mode: str = run.mode
        self.messages: list[Message[Any]] = run.messages
        """Distinct messages in order; the last one is the current one."""
        self.metadata: dict[str, Any] = run.metadata
        """``collect_batch`` or ``queue_batch``: count, event_ids, strategy."""
        self.summary: Summary | None = run.summary
        """What a full queue dropped since the last run; belongs before the messages."""
        self.previous_run: PreviousRun | None = run.previous_run
        """The run that was aborted just before this one."""
        self._run, self._on_worker = run, on_worker

    def __repr__(self) -> str:
        """Name the run without its messages."""
        return repr(self._run)

    @property
    def message(self) -> Message[Any]:
        """The current message."""
        return self._run.message

    @property
    def previous(self) -> Any:
        """Partial output of the run that was aborted just before this one, None where there is none."""
        return self._run.previous

    @property
    def cancelled(self) -> bool:
        """Whether the run was ended from outside."""
        return self._run.cancelled

    def raise_if_cancelled(self) -> None:
        """Raise RunAborted once the run was ended from outside; see ``Run.raise_if_cancelled``."""
        self._run.raise_if_cancelled()

    async def checkpoint(self, partial: object) -> None:
        """Commit partial output, and with it everything that was sent so far; see ``Run.checkpoint``."""
        await self._on_worker(lambda: self._run.checkpoint(partial))

    async def write(self, work: Callable[[Transaction], T]) -> T:
        """Run *work* on a transaction and commit it at once; see ``Run.write``."""
        found: T = await self._on_worker(lambda: self._run.write(work))
        return found

    def at_end(self, work: Callable[[Transaction], object]) -> None:
        """Run *work* in the transaction that ends the run well; see ``Run.at_end``."""
        self._run.at_end(work)

    async def send(self, to: str, body: object, **options: Unpack[SendOptions]) -> str:
        """Promise a message with the next checkpoint or the run's end; returns its id."""
        return str(await self._on_worker(lambda: self._run.send(to, body, **options)))

    async def publish(
        self, topic: str, body: object, **options: Unpack[PublishOptions]
    ) -> list[str]:
        """Send to every peer that subscribed to *topic*; returns the ids."""
        return list(await self._on_worker(lambda: self._run.publish(topic, body, **options)))

    async def reply(
        self, body: object, *, to: Message[Any] | None = None, **options: Unpack[SendOptions]
    ) -> str:
        """Answer the current message, or *to*; returns the id."""
        return str(await self._on_worker(lambda: self._run.reply(body, to=to, **options)))

    async def dispatch(
        self, to: str, body: object, *, session: str | None = None, **options: Unpack[SendOptions]
    ) -> str:
        """Give another agent a task in a session of its own; see ``Run.dispatch``."""
        return str(
            await self._on_worker(lambda: self._run.dispatch(to, body, session=session, **options))
        )

    async def inbox(self) -> list[Message[Any]]:
        """Take what came meanwhile into this run; see ``Run.inbox``."""
        return list(await self._on_worker(self._run.inbox))
