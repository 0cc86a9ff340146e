"""The postbox: one agent's file, open, with its engines. The only place that knows everybody."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from threading import Lock
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar, overload

from onceward.api.channels import Channels
from onceward.api.dead_letters import DeadLetters
from onceward.api.home import Agents, Peers
from onceward.api.limits import Limits
from onceward.api.looks import Looks
from onceward.api.mailboxes import Mailboxes
from onceward.api.polling import Polls
from onceward.api.queues import Queues, Runs
from onceward.api.routing import TransportRouter, doors
from onceward.api.session import Session
from onceward.api.verbs import Verbs
from onceward.db.database import Database
from onceward.db.environment import load_settings
from onceward.hooks import AuditLog, Hook, Hooks
from onceward.model.clock import Clock
from onceward.model.ids import IdSource, new_id
from onceward.model.names import DEFAULT_SESSION
from onceward.model.parcel import Answer, Parcel
from onceward.model.retry import RetryPolicy, retry_policy
from onceward.model.settings import Settings
from onceward.runtime.agent import Agent
from onceward.runtime.auditor import auditor
from onceward.runtime.channel_sender import ChannelSender
from onceward.runtime.channel_tasks import ChannelTasks
from onceward.runtime.consumer import Consumer
from onceward.runtime.deps import RuntimeDeps
from onceward.runtime.dispatcher import Dispatcher
from onceward.runtime.lane_leases import InboxLeases
from onceward.runtime.maintenance import Maintenance
from onceward.runtime.message import Message
from onceward.runtime.open_agents import OpenAgentFiles
from onceward.runtime.owner_session import OwnerSession
from onceward.runtime.receiver import Receiver
from onceward.runtime.sender import Sender
from onceward.runtime.worker import Worker
from onceward.store import full_text, health, invariants, outbox, queries, transitions
from onceward.store.directory.cache import DirectoryCache
from onceward.store.directory.database import DirectoryHandle
from onceward.transports.base import Transport
from onceward.transports.event_loop import start_loop
from onceward.transports.memory import MemoryListener

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop

    from onceward.runtime.runs.worker import RunWorker

T = TypeVar("T")
MAX_ROUNDS = 10_000


class Postbox(Verbs, Polls, Looks):
    """
    One agent's SQLite file, open.

    Opening creates and migrates the file and, unless ``start=False``, starts the
    engines: a dispatcher, a janitor, and workers if the agent has handlers.
    Settings may be given as a ``Settings`` object, as keywords, or by
    environment. Async handlers run on *loop*, or on a loop of the postbox.
    *retry* and *handler_retry* are policies that go before those settings.

    Raises:
        StoreUnusable: see its subclasses; nothing was changed.
        StoreCorrupt: the file is damaged; it was left as it is.

    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        agent: str | Agent | None = None,
        settings: Settings | None = None,
        start: bool = True,
        clock: Clock | None = None,
        ids: IdSource = new_id,
        rng: random.Random | None = None,
        transports: Mapping[str, Transport] | None = None,
        vfs: str | None = None,
        loop: AbstractEventLoop | None = None,
        retry: RetryPolicy | None = None,
        handler_retry: RetryPolicy | None = None,
        **overrides: Any,
    ) -> None:
        self._retry, self._handler_retry = retry, handler_retry
        self._settings = load_settings(settings, overrides)
        self._handlers = agent if isinstance(agent, Agent) else None
        name = agent.name if isinstance(agent, Agent) else agent
        self._db = Database.open(
            path, agent=name, settings=self._settings, clock=clock, vfs=vfs, create=name is not None
        )
        self._rng = rng or random.Random()  # noqa: S311 - jitter, not a secret
        self._hooks = Hooks()
        self._routes = TransportRouter(
            self._db, settings=self._settings, transports=transports, vfs=vfs
        )
        self._files = OpenAgentFiles(self._db, self._settings, self._routes.file_of)
        self._lock, self._closed = Lock(), False
        self._loop, self._loop_is_ours = loop, False
        self._run = OwnerSession(self._db, self._settings, self._hooks, vfs=vfs)
        try:
            self._build_runtime(ids)
            self._run.begin(engines=start)
            if start:
                self._start()
        except BaseException:
            self._run.end()  # nobody else will
            raise

    def _build_runtime(self, ids: IdSource) -> None:
        db, settings, hooks, rng = self._db, self._settings, self._hooks, self._rng
        self._home = DirectoryHandle(db, settings)
        self._directory = DirectoryCache(self._home, db)
        self._sender = Sender(
            db,
            roster=self._directory,
            settings=settings,
            hooks=hooks,
            ids=ids,
            known=self._routes.is_known,
        )
        self._deps = RuntimeDeps(
            db=db,
            settings=settings,
            hooks=hooks,
            sender=self._sender,
            rng=rng,
            policy=self._handler_retry or retry_policy(settings, retries=settings.handler_retries),
        )
        self._consumer = Consumer(self._deps, InboxLeases(self._deps))
        self._receiver = Receiver(db, settings=settings, hooks=hooks)
        errands = ChannelTasks(db, self._sender)
        self._dispatcher = Dispatcher(
            self._deps,
            route=self._routes.route,
            policy=self._retry,
            background_tasks=errands.run,
        )
        if settings.audit:
            self._audit(settings.audit)
        self._workers, self._runners = self._build_workers()
        self._listener = MemoryListener()
        self._listener.listen(self._db.agent, self._receiver.accept)
        doors[id(self._db)] = self._receiver
        self._default = self.session()
        self._build_api(db, settings, errands)

    def _audit(self, path: str) -> None:
        audit = AuditLog(path)
        self._sender.audited = auditor(audit.write)
        self._hooks.on("polled", audit)
        self._hooks.on("expired", audit)

    def _build_api(self, db: Database, settings: Settings, errands: ChannelTasks) -> None:
        hooks = self._hooks
        self.agents = Agents(self._directory)
        """The agents of the home, and what they publish."""
        self.channels = Channels(db, ChannelSender(db, self._sender, errands), self._consumer)
        """The channels of the home."""
        self.peers = Peers(self._db, self._routes.features, self._directory)
        """Who is reached where."""
        self.dead_letters = DeadLetters(self._db, self._sender)
        """Messages that ended badly here."""
        self.limits = Limits(db, self._sender.admission)
        """What bounds the file."""
        self.queues = Queues(db, sender=self._sender, hooks=hooks)
        """What waits in sessions with runs."""
        self.runs = Runs(db, sender=self._sender, hooks=hooks)
        """Open and past runs."""
        self.mailboxes = Mailboxes(self._home, self._deps, self._default, self._files, errands)
        """Mailboxes of the home."""
        self._maintenance = Maintenance(db, settings=settings, extra_task=self.mailboxes.sweep)
        for name, switch in (("transitions", transitions.switch), ("search", full_text.switch)):
            if name in settings.model_fields_set:
                switch(db, on=getattr(settings, name))

    def _build_workers(self) -> tuple[list[Worker], list[RunWorker]]:
        """Return who handles the mail: workers for messages, a runner for sessions with runs."""
        deps, agent, workers = self._deps, self._handlers, list[Worker]()
        if agent and agent.handlers:
            count = self._settings.workers
            workers = [Worker(deps, agent, self._own_loop) for _ in range(count)]
        if agent is None or not agent.sessions:
            return workers, []
        from onceward.runtime.runs.worker import RunWorker  # noqa: PLC0415 - most agents have no sessions with runs

        return workers, [RunWorker(deps, agent, self._own_loop)]

    @property
    def _engines(self) -> list[Worker | RunWorker]:
        return [*self._workers, *self._runners]

    def _start(self) -> None:
        self._dispatcher.start()
        self._maintenance.start()
        for engine in self._engines:
            engine.start()

    def _own_loop(self) -> AbstractEventLoop:
        with self._lock:
            if self._loop is None:
                self._loop, self._loop_is_ours = start_loop(f"onceward-loop-{self.agent}"), True
            return self._loop

    @property
    def db(self) -> Database:
        """The open file itself, for windows and tests; its tables are ours, its views are yours."""
        return self._db

    @property
    def settings(self) -> Settings:
        """How this postbox behaves."""
        return self._settings

    # -- sessions -----------------------------------------------------------------------------

    @property
    def path(self) -> Path:
        """The file."""
        return self._db.path

    @property
    def agent(self) -> str:
        """Whose file it is."""
        return self._db.agent

    def session(
        self, name: str = DEFAULT_SESSION, *, topics: Iterable[str] | None = None
    ) -> Session:
        """Return the conversation called *name*, which costs nothing; with *topics* this postbox knows no others in it from now on."""
        if topics is not None:
            self._sender.topics.close(name, topics)
        return Session(
            name, db=self._db, sender=self._sender, desk=self._consumer, settings=self._settings
        )

    @overload
    def receive(self, type: type[T], timeout: float = 0.0) -> Message[T] | None: ...

    @overload
    def receive(self, type: str | None = None, timeout: float = 0.0) -> Message[Any] | None: ...

    def receive(self, type: Any = None, timeout: float = 0.0) -> Message[Any] | None:
        """Lease the next message of any session; see ``Session.receive``."""
        return self._default._receive_any(type, timeout)

    def messages(self, type: Any = None, timeout: float | None = None) -> Iterator[Message[Any]]:
        """Yield messages of any session; see ``Session.messages``."""
        while (message := self._default._receive_any(type, timeout)) is not None:
            yield message

    # -- seeing -------------------------------------------------------------------------------

    def on(self, event: str, hook: Hook) -> Callable[[], None]:
        """Tell *hook* of every event of that name (``*``: all), after its commit; returns the call that ends it."""
        return self._hooks.on(event, hook)

    def resolve(self, message_id: str) -> str:
        """Return how a message we sent stands: pending, sending, sent, acked, failed, cancelled, dead, or absent."""
        self._db.persist_clock()  # a commit of our own: what is read next is durable
        return queries.resolve(self._db, message_id)

    def cancel(self, message_id: str) -> bool:
        """Withdraw a message that has not left yet; say whether that was still possible."""
        return self._db.write(lambda tx: outbox.cancel(tx, message_id))

    def check(self, *others: Postbox) -> list[invariants.Violation]:
        """Return the invariants that do not hold in this file, and in the mail between it and *others*; empty is good."""
        pairs = [
            pair for other in others for pair in ((self._db, other._db), (other._db, self._db))
        ]
        return [
            *invariants.check(self._db),
            *(found for pair in pairs for found in invariants.check_pair(*pair)),
        ]

    def health(self) -> health.Health:
        """Return how the file is."""
        return health.read_health(self._db)

    def accept(self, parcel: Parcel) -> Answer:
        """Keep a parcel once and answer for each frame: what a listener of one's own hands parcels to."""
        return self._receiver.accept(parcel)

    # -- switching ----------------------------------------------------------------------------

    def pause(self) -> None:
        """Stop sending, pushing and handling in all processes, durably; nothing is lost, no budget is spent."""
        self._db.write(health.pause)
        self._db.notifier.notify("in")

    def resume(self) -> None:
        """Go on where ``pause`` stopped."""
        self._db.write(health.resume)
        self._db.notifier.notify("out")
        self._db.notifier.notify("in")

    def run_until_idle(self) -> int:
        """Run the engines on this thread until nothing is due; return how many parcels and messages moved."""
        moved = 0
        with self._db.outside_handler():
            for _ in range(MAX_ROUNDS):
                step = self._dispatcher.run_due()
                step += sum(engine.run_due() for engine in self._engines)
                moved += step
                if not step:
                    break
        return moved

    def run_maintenance(self) -> int:
        """Run the janitor once; return how many rows were pruned."""
        with self._db.outside_handler():
            return self._maintenance.run_once()

    def stop(self, timeout: float | None = None) -> None:
        """Claim and push nothing more; settle what is finished, give the rest back. The file stays open."""
        limit = self._settings.stop_timeout if timeout is None else timeout
        for engine in self._engines:
            engine.stop(limit)
        self._dispatcher.stop(limit)
        self._maintenance.stop(limit)

    def close(self, timeout: float | None = None) -> None:
        """Stop the engines and close the file; safe to call twice."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        self.stop(timeout)
        self._listener.close()
        if doors.get(id(self._db)) is self._receiver:
            del doors[id(self._db)]
        self._routes.close()
        self._files.close()
        self._home.close()
        if self._loop is not None and self._loop_is_ours:
            self._loop.call_soon_threadsafe(self._loop.stop)
        self._run.end()

    def __enter__(self) -> Self:
        """Use the postbox for a block."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close it."""
        self.close()
