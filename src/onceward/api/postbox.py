"""The postbox: one agent's file, open, with its engines; connects all other parts."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import cached_property, partial
from importlib import import_module
from types import NoneType
from typing import TYPE_CHECKING, Any, Final, Self, Unpack

from onceward.api.agent import Agent
from onceward.api.agent_file import AgentFile
from onceward.api.contexts import complete
from onceward.api.event_source import EventSource
from onceward.api.features import (
    ARRIVES,
    CALL_PARTS,
    UPKEEP,
    due,
    engines,
    judging,
    open_all,
    work_on_home,
    worker_pool,
)
from onceward.api.parts import PostboxParts
from onceward.api.peers import Peers
from onceward.api.routing import TransportRouter, made_listener
from onceward.api.session import Session
from onceward.core.accept.accept import Receiver
from onceward.core.accept.own import OwnMessages
from onceward.core.contract import Engine, Opening
from onceward.core.deliver.dispatcher import Dispatcher
from onceward.core.deliver.transport import Listener, MakeListener, MakeTransport, Transport
from onceward.core.handle.call import HandlerDeps
from onceward.core.handle.consumer import Consumer
from onceward.core.handle.readers import InboxLeases, type_names
from onceward.core.handle.signatures import is_coroutine
from onceward.core.maintenance import Maintenance, OwnerSession
from onceward.core.rows import outbox
from onceward.core.run.engine_loop import at_least_each, until_found
from onceward.core.run.threads import engine_threads
from onceward.core.send.add import Outbox
from onceward.core.send.block import Bindings
from onceward.core.send.compose import Composer
from onceward.errors import InvalidArgument
from onceward.file import descriptors, file_checks, forks, open_files
from onceward.file.connection import UNTYPED, raise_meant
from onceward.file.database import Database, DeletedWal
from onceward.file.directory import (
    DirectoryCache,
    DirectoryHandle,
    OpenAgentFiles,
    refuse_pool,
    register_at_opening,
)
from onceward.file.environment import load_settings
from onceward.hooks import Hooks
from onceward.message.arguments import Accepted, checked
from onceward.message.clock import Clock, monotonic
from onceward.message.events import WalDeleted
from onceward.message.frame import Frame
from onceward.message.ids import IdSource, clock_ids, new_id
from onceward.message.names import DEFAULT_SESSION, AgentProfile, no_option, quoted
from onceward.message.parcel import Answer, Parcel
from onceward.message.record import Cancellation, Cancellations, HistoryFilters, Page, Ticket
from onceward.message.settings import Controls, Settings, SettingsOptions, in_tuning
from onceward.message.times import Span, seconds
from onceward.message.vocabulary import SentState
from onceward.transports import file as file_transport
from onceward.transports.memory import MemoryListener

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop

    from onceward.api.agents import Agents
    from onceward.api.dead_letters import DeadLetters
    from onceward.api.handler_postbox import HandlerPostbox
    from onceward.core.handle.call import CallHome
    from onceward.core.handle.worker import Worker
    from onceward.core.run.shared import Shared
    from onceward.features.cancellation.cancellation import Cancelling
    from onceward.features.history.journey import Journey
    from onceward.features.streams.reading import StreamItem, StreamReader

MAX_ROUNDS: Final = 10_000
CLOSE_WITHIN: Final = 1.0
"""Minimum seconds that closing waits for each transport."""
CANCEL_WITHIN: Final = 5.0
"""Seconds after ``stop_timeout`` for cancelled coroutines to clean up."""
LOOK_AGAIN: Final = 0.02
"""Seconds between two checks of ``flush``: deliveries notify the recipient, not this file."""


class PostboxOptions(SettingsOptions, total=False):
    """The keyword arguments of ``Postbox`` besides *agent*; ``AsyncPostbox`` takes the same."""

    settings: Settings | None
    start: bool
    transports: Mapping[str, Transport | MakeTransport] | None
    listeners: Iterable[Listener | MakeListener]
    testing: Controls | None


PARTS: Final = {
    "path": Accepted((str, os.PathLike)),
    "agent": Accepted((str, Agent, NoneType)),
    "settings": Accepted((Settings, NoneType)),
    "start": Accepted((bool,)),
    "transports": Accepted((Mapping, NoneType)),
    "listeners": Accepted((Iterable,)),
    "testing": Accepted((Controls, NoneType)),
}
"""The arguments of a postbox besides its settings."""


def _check_loop(loop: object) -> None:
    """Raise InvalidArgument unless a value is an event loop."""
    if loop is not None and not hasattr(loop, "call_soon_threadsafe"):
        raise InvalidArgument(f"loop={quoted(loop)} must be an event loop, or None")


def _check_parts(**parts: object) -> None:
    """Raise InvalidArgument for an argument of another type."""
    for name, given in parts.items():
        PARTS[name].check(name, given)


def _known(overrides: SettingsOptions) -> SettingsOptions:
    """Return settings; raise InvalidArgument for a keyword that is neither option nor setting."""
    known = PostboxOptions.__annotations__
    if unknown := overrides.keys() - known:
        raise InvalidArgument(
            no_option("a postbox", unknown, ["agent", "loop", *known], in_tuning(unknown))
        )
    return overrides


def _postbox_of(box: Postbox, deps: HandlerDeps, home: CallHome) -> HandlerPostbox:
    """Return the postbox of a handler's call, to read."""
    from onceward.api.handler_postbox import HandlerPostbox  # noqa: PLC0415 - rarely needed

    del deps
    return HandlerPostbox(box, home.commits.free)


class Postbox(Session, EventSource, PostboxParts):
    """
    One agent's SQLite file, open.

    It is also the default session. Opening creates and migrates the file, registers the agent in
    its home if *agent* names it or engines start, and, unless ``start=False``, starts the engines:
    a dispatcher, maintenance, and workers if the agent has handlers. Settings may be given as a
    ``Settings`` object, as keywords, or by environment. Async handlers run on *loop*, or on a loop
    of the postbox. *testing* holds what a test controls: clock, ids ….

    Raises:
        StoreUnusable: see its subclasses; nothing was changed.
        StoreCorrupt: the file is damaged; it was left as it is.

    """

    _shared_loop: Shared[AbstractEventLoop] | None = None
    _face: Any = None

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        agent: str | Agent | None = None,
        settings: Settings | None = None,
        start: bool = True,
        transports: Mapping[str, Transport | MakeTransport] | None = None,
        listeners: Iterable[Listener | MakeListener] = (),
        loop: AbstractEventLoop | None = None,
        testing: Controls | None = None,
        **overrides: Unpack[SettingsOptions],
    ) -> None:
        _check_parts(path=path, agent=agent, settings=settings, start=start, testing=testing)
        _check_parts(transports=transports, listeners=listeners)
        _check_loop(loop)
        controls = testing or Controls()
        self._settings = load_settings(settings, _known(overrides))
        self._handlers = agent if isinstance(agent, Agent) else None
        name = agent.name if isinstance(agent, Agent) else agent
        descriptors.table.forget()  # a program may have opened the file a moment ago
        file = file_checks.canonical(path)
        open_files.refuse_inherited(file)
        if name is not None and controls.vfs is None:
            refuse_pool(file, name)
        self._db = Database.open(
            path, agent=name, settings=self._settings, clock=controls.clock, vfs=controls.vfs,
            mode="existing" if name is None else "create",
        )  # fmt: skip
        self._rng = controls.rng or random.Random()  # noqa: S311 - jitter, not a secret
        self._hooks = Hooks()
        self._lock, self._closed, self._loop = forks.new_lock(), False, loop
        self._close_within = self._settings.stop_timeout
        self._run = OwnerSession(
            self._db, self._settings, self._hooks, vfs=controls.vfs, upkeep=UPKEEP
        )
        with ExitStack() as parts:
            parts.callback(self._run.end)
            parts.callback(self._stop_loop)
            self._connect(parts, controls, transports, handled=start and self._handlers is not None)
            self._build_runtime(controls.ids or _ids_of(controls.clock), engines=start)
            parts.callback(lambda: self.stop(self._close_within))
            self._prepare_agent()
            if start or name is not None:
                self._register(engines=start)
            self._join_session(parts, engines=start)
            self._listen([MemoryListener()], self._receiver)
            self._listen(listeners, self._door)
            if start:
                self._start()
            self._parts = parts.pop_all()

    def _connect(
        self,
        parts: ExitStack,
        controls: Controls,
        transports: Mapping[str, Transport | MakeTransport] | None,
        *,
        handled: bool,
    ) -> None:
        """Prepare to reach peers, the home and senders; *parts* closes what that opens."""
        db, settings = self._db, self._settings
        self._routes = TransportRouter(
            db, settings=settings, transports=transports, vfs=controls.vfs
        )
        self._files = OpenAgentFiles(db, settings, self._routes.file_of)
        self._home = DirectoryHandle(db, settings)
        inspect = judging(self._home, db.agent)
        receiver = partial(Receiver, db, settings=settings, hooks=self._hooks)
        receiver = partial(receiver, features=ARRIVES, inspect=inspect)
        self._receiver, self._door = receiver(), receiver(network=True, handled=handled)
        self._listeners: list[Listener] = []
        self._stop_serving: Callable[[], None] = lambda: None
        db.on_deleted_wal += (self._tell_deleted_wal,)
        for close in (
            self._home.close,
            self._files.close,
            self._close_routes,
            self._stop_receiving,
        ):
            parts.callback(close)

    def _prepare_agent(self) -> None:
        """Run the functions that the agent wants to run when its file is opened."""
        for work in self._handlers._openings if self._handlers else ():
            pending = work(self._async_face() if is_coroutine(work) else self)
            if hasattr(pending, "__await__"):
                from onceward.core.handle.invoke import run_to_end  # noqa: PLC0415 - rarely needed

                run_to_end(pending, self._own_loop())

    def _async_face(self) -> Any:
        """Return this postbox for coroutines; it lives as long as this one."""
        aio = import_module("onceward.api.aio")  # which is built on this module

        if self._face is None:
            self._face = aio.face_of(self, self._own_loop())
        return self._face

    def _join_session(self, parts: ExitStack, *, engines: bool) -> None:
        """Join the owner's session; features hold what they note of it until the end."""
        opening = self._opening
        if engines:
            Frame.model_rebuild()  # before threads read frames: a fork would wait for the build
        self._run.begin(engines=engines, alone=lambda: _call_each(opening.alone))
        parts.callback(opening.closing.close)
        _call_each(opening.joined)

    def _listen(self, listeners: Iterable[Listener | MakeListener], receiver: Receiver) -> None:
        """Start to accept parcels."""
        for given in listeners:
            listener = made_listener(given, self._routes.context)
            self._listeners.append(listener)
            listener.listen(self._db.agent, receiver.accept)

    def _register(self, *, engines: bool) -> None:
        profile = self._handlers.profile if self._handlers else AgentProfile()
        register_at_opening(self._home, self._db, profile, engines=engines)

    def _build_runtime(self, ids: IdSource, *, engines: bool) -> None:
        db, settings, hooks = self._db, self._settings, self._hooks
        self._directory = DirectoryCache(self._home, db)
        self._outbox = Outbox(
            db,
            Composer(
                db,
                settings=settings,
                ids=ids,
                hooks=hooks,
                known=self._routes.is_known,
                recipients=self._directory,
            ),
            hooks,
        )
        self._deps = HandlerDeps(
            db=db,
            settings=settings,
            hooks=hooks,
            outbox=self._outbox,
            rng=self._rng,
            policy=settings.handling_policy,
            parts={**CALL_PARTS, "postbox": partial(_postbox_of, self)},
            complete=complete,
        )
        self._consumer = Consumer(self._deps, InboxLeases(self._deps))
        super().__init__(
            DEFAULT_SESSION, db=db, outbox=self._outbox, consumer=self._consumer,
            files=self._files, settings=settings,
        )  # fmt: skip
        self._opening = opening = self._as_opening(engines=engines)
        collect = partial(self._routes.collect, self._deps)
        self._dispatcher = Dispatcher(
            self._deps, routes=self._routes, due=due(opening), collect=collect
        )
        self._workers, self._runners = self._build_workers()
        if engines:
            self._receiver.workers = self._door.workers = self._pool
        self._own = OwnMessages(db, self._receiver, settings=settings, hooks=hooks)
        db.add_receiver(self._receiver.accept, self._own)
        self._build_api(db, settings)

    def _as_opening(self, *, engines: bool) -> Opening:
        """Return what features get of this postbox."""
        return Opening(
            deps=self._deps,
            agent=self._handlers,
            engines=engines,
            home=self._home,
            directory=self._directory,
            files=self._files,
            session=self,
            consumer=self._consumer,
            started=lambda: self._dispatcher.started,
            offers={"tell_homes": self._routes.tell_homes, "answer_room": self._answer_room},
        )

    def _answer_room(self, room: Callable[[], int]) -> None:
        """Have answers to parcels tell how many more messages of pools the agent takes."""
        self._receiver.room = self._door.room = room

    def _build_api(self, db: Database, settings: Settings) -> None:
        hooks = self._hooks
        self.peers = Peers(self._db, self._routes, self._directory)
        """The peers: urls, circuit breakers, subscriptions."""
        extra_tasks = (*work_on_home(self._opening), self._close_idle, self._heartbeat)
        self._maintenance = Maintenance(
            db,
            settings=settings,
            upkeep=UPKEEP,
            extra_tasks=extra_tasks,
        )
        self.file = AgentFile(
            db,
            settings=settings,
            hooks=hooks,
            maintenance=self._maintenance,
            offers=self._opening.offers,
        )
        """The file itself: health, checks, repairs, maintenance, pause."""
        open_all(self._opening)
        self._routes.extend(self._opening.offers)

    @cached_property
    def dead_letters(self) -> DeadLetters:
        """Messages that ended badly here."""
        from onceward.api.dead_letters import DeadLetters  # noqa: PLC0415 - rarely needed

        handlers = self._handlers.handlers if self._handlers else ()
        return DeadLetters(self._db, self._outbox, self._directory, handlers)

    @cached_property
    def agents(self) -> Agents:
        """The agents of the home, and their subscriptions."""
        from onceward.api.agents import Agents  # noqa: PLC0415 - rarely needed

        return Agents(self._directory)

    def _close_idle(self, _limit: int) -> int:
        """Close idle files of recipients, for all postboxes of this process."""
        file_transport.slots.close_idle(monotonic())
        return 0

    def _heartbeat(self, _limit: int) -> int:
        """Record in the registry that this agent runs."""
        self._directory.heartbeat()
        return 0

    def _build_workers(self) -> tuple[list[Worker], list[Engine]]:
        """Return the workers for messages, and the engines of features."""
        agent = self._handlers
        if agent is None:
            self._pool = None
            return [], []
        self._pool = worker_pool(self._deps, agent, self._own_loop)
        workers = self._pool.workers if self._pool is not None else []
        return workers, engines(self._deps, agent, self._own_loop)

    @property
    def _engines(self) -> list[Engine]:
        return [*self._workers, *self._runners]

    def _start(self) -> None:
        self._dispatcher.start()
        self._maintenance.start()
        for engine in self._engines:
            engine.start()
        if self._engines:
            from onceward.transports import worker_socket  # noqa: PLC0415 - for handlers only

            self._stop_serving = worker_socket.serve(self._db)

    def _own_loop(self) -> AbstractEventLoop:
        from onceward.core.run import event_loop  # noqa: PLC0415 - for coroutines only

        with self._lock:
            if self._loop is None:
                self._shared_loop = event_loop.handler_loop()
                self._loop = self._shared_loop.enter()
            return self._loop

    # -- sessions -----------------------------------------------------------------------------

    @property
    def agent(self) -> str:
        """Return the agent whose file it is."""
        return self._db.agent

    def session(
        self, name: str = DEFAULT_SESSION, *, topics: Iterable[str] | None = None
    ) -> Session:
        """
        Return the conversation called *name*; nothing is stored.

        With *topics* this postbox refuses all other topics in it.
        """
        if topics is not None:
            self._outbox.composer.topics.close(name, topics)
        return Session(
            name,
            db=self._db,
            outbox=self._outbox,
            consumer=self._consumer,
            files=self._files,
            settings=self._settings,
        )

    @property
    def _received(self) -> None:
        return None  # a postbox receives messages of all sessions

    def __repr__(self) -> str:
        """Name the agent and its file."""
        return f"<Postbox of {self.agent}: {self._db.path}>"

    # -- seeing -------------------------------------------------------------------------------

    def _event_hooks(self) -> Hooks:
        return self._hooks

    def query(self, sql: str, bindings: Bindings = None) -> list[Any]:
        """
        Run a SELECT on a read-only connection; it never waits for a writer.

        At most four callers of a process read from one file at once; others wait. A statement
        delays no message, but while it runs the WAL grows, because it is not emptied. On a full
        disk it also reads while the file cannot be opened for writing; then
        ``file.health().behind_barrier`` is False, and a power cut may undo what was read.

        A row is a tuple, and ``row["cents"]`` is its column of that name; ``dict(row)`` has all of
        them. Sees committed rows, not writes of this thread's open transaction.

        Raises:
            apsw.Error: SQLite refused the statement.
            ReadOnlyStore: the statement would write; nothing was changed.
            StoreError: the file itself failed.

        """
        return self._db.query(sql, bindings)

    @checked
    def history(self, **filters: Unpack[HistoryFilters]) -> Page:
        """
        Return past messages of all sessions, newest first; consumes nothing.

        Raises:
            InvalidArgument: there is no filter of that name, or its value is invalid.

        """
        from onceward.features.history import history  # noqa: PLC0415 - rarely needed

        return history.find(self._db, **filters)

    @checked
    def search(self, text: str, *, limit: int = 100, offset: int = 0) -> Page:
        """
        Return past messages whose body contains all words of *text*, best match first.

        Case and accents are ignored; a word that ends in ``*`` matches all words with that prefix,
        and words in double quotes match as a phrase. A text without words finds nothing.

        Raises:
            InvalidArgument: the file has no index (``search=True`` builds it).

        """
        from onceward.features.history import full_text  # noqa: PLC0415 - rarely needed

        return full_text.words(self._db, text, limit=limit, offset=offset)

    @checked
    def journey(self, message_id: str) -> Journey | None:
        """
        Return everything that the file stores about a message; None if it has no such message.

        ``record`` is the message with its state, ``records`` has each of its rows.
        """
        from onceward.features.history import journey  # noqa: PLC0415 - rarely needed

        return journey.find(self._db, message_id)

    @checked
    def accept(self, parcel: Parcel) -> Answer:
        """
        Store a parcel once and return an answer for each frame; your own listeners call it.

        A sender without a rule of its own (``peers.allow``) may name no channel, no
        mailbox, and no type under ``_system``.

        Raises:
            Refused: the sender's name is invalid, or the parcel is for another agent; the sender
                makes its messages dead letters.
            Unreachable: a frame was damaged on the way; the sender pushes the parcel again.
            StoreError: the file failed; nothing was stored, and the parcel may come again.

        """
        return self._door.accept(parcel)

    @checked
    def flush(self, timeout: Span | None = 30.0) -> int:
        """
        Wait until every message is stored in its recipient's file, or has ended.

        Returns how many still wait after *timeout* seconds (None: waits forever): their recipients
        are away or busy, or they are delayed. They stay in the file, and the next process that
        opens it delivers them.
        """
        db = self._db
        left = until_found(
            db,
            lambda: 0 if outbox.unsent(db) == 0 else None,
            timeout,
            poll=0,
            due=lambda left: min(LOOK_AGAIN, left or LOOK_AGAIN),
        )
        return outbox.unsent(db) if left is None else left

    @checked
    def state(self, message_id: str) -> SentState:
        """
        Return the state of a message we sent.

        It is pending, sending, sent, acked, failed, cancelled, dropped, dead, or absent.
        """
        self._db.persist_clock()  # after a commit of our own, rows that are read are durable
        return outbox.state(self._db, message_id)

    @checked
    def cancel(
        self, message_id: str, *, reason: str = "", timeout: Span | None = 0
    ) -> Cancellation:
        """
        Cancel a message wherever it is, and return exactly what happened.

        A message that has not left is withdrawn. A message that this agent received ends here,
        whether it is waiting, delayed, waiting for an answer, or running; the writes of its handler
        roll back. After a message has left, its recipient decides: it is **asked**, and the call
        waits up to *timeout* seconds (None: forever) for its answer; a later call with the same id
        finds it.
        """
        return self._cancelling.cancel(message_id, reason, timeout)

    @checked
    def cancel_all(
        self,
        *,
        to: str | None = None,
        sender: str | None = None,
        type: str | type | None = None,
        session: str | None = None,
        key: str | None = None,
        reason: str = "",
    ) -> Cancellations:
        """
        Cancel the unended messages that match, 200 to a transaction; return ids by outcome.

        *to* selects messages that this agent sent, *sender* messages that it received.

        Raises:
            InvalidArgument: no argument says which messages to cancel.

        """
        from onceward.features.cancellation.cancellation import CancelFilter  # noqa: PLC0415 - rarely needed

        kind = (type_names(type) or (None,))[0]
        which = CancelFilter(to=to, sender=sender, type=kind, session=session, key=key)
        if which == CancelFilter():
            raise InvalidArgument("say which messages to cancel: to, sender, type, session or key")
        return self._cancelling.cancel_all(which, reason)

    @cached_property
    def _cancelling(self) -> Cancelling:
        from onceward.features.cancellation.cancellation import Cancelling  # noqa: PLC0415 - rarely needed

        return Cancelling(self._deps, self._receiver.endings)

    @checked
    def follow(
        self,
        ticket: Ticket | str,
        *,
        name: str | None = None,
        after: int = 0,
        timeout: Span | None = None,
    ) -> Iterator[StreamItem]:
        """
        Yield what the handler of a message writes to ``ctx.stream``, until the message ends.

        *ticket* is that of a request, or the id of a message that was sent from this file or
        received in it. Items are ``Chunk``, ``Restarted`` if the handler was called again and
        restarts a stream, and finally ``Ended``; each has a ``position``, and *after* is the
        position of the last item that you have. With a *name* only that stream is yielded. Also
        ends when nothing came for *timeout* seconds (None: never).

        Raises:
            InvalidArgument: no such message is known here, or the recipient's file is not in
                this folder.

        """
        reader = self._stream_reader(ticket, name, after)
        return self._following(reader, timeout)

    def _stream_reader(self, ticket: Ticket | str, name: str | None, after: int) -> StreamReader:
        from onceward.features.streams.reading import StreamReader  # noqa: PLC0415 - rarely needed

        first = self._opening.offers.get("first_of_run")
        return StreamReader(self._db, self._files.file, ticket, name=name, after=after, first=first)

    def _following(self, reader: StreamReader, timeout: Span | None) -> Iterator[StreamItem]:
        poll = self._settings.tuning.poll_interval
        due = partial(at_least_each, poll)
        while items := until_found(reader.file, reader.look, timeout, poll=poll, due=due):
            yield from items
            if items[-1].kind == "ended":
                return

    # -- running ----------------------------------------------------------------------------

    def run_until_idle(self) -> int:
        """
        Run the engines on this thread until nothing is due.

        Returns how many parcels and messages moved. A file that an error closed is
        opened again first.
        """
        moved = 0
        with self._db.outside_handler():
            self._db.recover()
            try:
                moved += self._dispatcher.collect()
                for _ in range(MAX_ROUNDS):
                    step = self._dispatcher.run_due()
                    step += sum(engine.run_due() for engine in self._engines)
                    moved += step
                    if not step:
                        break
            except UNTYPED as error:
                raise_meant(self._db.explain(error), error)
                raise
        return moved

    def _prune_archived(self, box: str, rows: Sequence[tuple[int, str, str, int]]) -> int:
        """Prune rows (seq, id, state, end) that an archive holds; return their number."""
        from onceward.core import maintenance  # noqa: PLC0415 - asked for by pruning jobs only

        known = [maintenance.ArchivedRow(*row) for row in rows]
        ours = partial(maintenance.prune_archived, box=box)
        prune: Callable[..., int] = self._opening.offers.get(f"prune_archived_{box}", ours)
        return self._db.write(lambda tx: prune(tx, rows=known))

    def _prune_archived_marks(self, rows: Sequence[tuple[int, str]], before: int) -> int:
        """Prune dedup records (seq, message id) that an archive holds."""
        from onceward.core.rows import senders  # noqa: PLC0415

        return self._db.write(lambda tx: senders.prune_archived_marks(tx, rows, before=before))

    @checked
    def stop(self, timeout: Span | None = None) -> None:
        """
        Stop claiming and pushing; settle finished messages, give the others back.

        Outcomes that senders wait for are pushed first. It takes at most *timeout* seconds (None:
        ``stop_timeout``). Coroutines of handlers that still run then are cancelled, and have 5
        seconds to clean up. The file stays open.
        """
        limit = self._stop_limit(timeout)
        if self._db.is_inherited:
            return
        deadline = monotonic() + limit
        if self._pool is not None:
            self._pool.end()
        steps = [engine.stop for engine in self._engines]
        for step in (
            *steps,
            self._dispatcher.push_owed,
            self._dispatcher.stop,
            self._maintenance.stop,
        ):
            step(max(0.0, deadline - monotonic()))
        self._cancel_calls()

    def _cancel_calls(self) -> None:
        """Cancel running coroutines, and wait up to 5 seconds for their cleanup."""
        deadline = monotonic() + CANCEL_WITHIN
        cancelled = [engine for engine in self._engines if engine.cancel()]
        for engine in cancelled:
            engine.join(max(0.0, deadline - monotonic()))

    @checked
    def close(self, timeout: Span | None = None) -> None:
        """
        Stop the engines as ``stop`` does, and close the file; a second call does nothing.

        Handlers and pushes that hang delay it by at most *timeout*, coroutines that do not end when
        cancelled by 5 seconds, a transaction that a thread keeps open by another 5 seconds before
        it is rolled back, and a transport that does not close by another *timeout*. A forked child
        leaves everything to its parent.
        """
        limit = self._stop_limit(timeout)
        if self._db.is_inherited:  # a thread of the parent may have held any lock at the fork
            return
        with self._lock:
            if self._closed:
                return
            self._closed, self._close_within = True, limit
        self._parts.close()  # all of them, last to first, also after an error

    def _stop_limit(self, timeout: Span | None) -> float:
        return self._settings.stop_timeout if timeout is None else seconds("timeout", timeout)

    def _stop_loop(self) -> None:
        if self._face is not None:
            self._face._part()
        if self._shared_loop is not None:
            self._shared_loop.leave()

    def _close_routes(self) -> None:
        self._routes.close(max(self._close_within, CLOSE_WITHIN))

    def _stop_receiving(self) -> None:
        """Close all listeners, last to first, even if one of them raises."""
        with ExitStack() as steps:
            steps.callback(self._db.remove_receiver, self._receiver.accept, self._own)
            steps.callback(self._forget_deleted_wal)
            steps.callback(self._stop_serving)
            for listener in self._listeners:
                steps.callback(listener.close)

    def _tell_deleted_wal(self, found: DeletedWal) -> None:
        """Emit it on a thread of its own: the caller holds the turn to write."""
        if self._hooks.wanted(WalDeleted):
            path, saved = str(self._db.path), found.saved
            event = WalDeleted(agent=self._db.agent, at=found.at, path=path, saved=saved)
            engine_threads().run("onceward-told", partial(self._hooks.emit, [event]))

    def _forget_deleted_wal(self) -> None:
        told = self._db.on_deleted_wal
        self._db.on_deleted_wal = tuple(each for each in told if each != self._tell_deleted_wal)

    def __enter__(self) -> Self:
        """Use the postbox for a block."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close it."""
        self.close()


def _call_each(calls: Iterable[Callable[[], None]]) -> None:
    for call in calls:
        call()


def _ids_of(clock: Clock | None) -> IdSource:
    """Return the id source of a box: it uses the given clock, if any."""
    return new_id if clock is None else clock_ids(clock, random.Random())  # noqa: S311 - unique, not secret
