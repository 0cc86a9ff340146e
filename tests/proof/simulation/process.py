"""One incarnation of an agent: its open file and its engines, mortal at every statement."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import apsw
from tests.proof.stepped import SteppedEngines

from onceward.api.agent import Agent
from onceward.api.contexts import complete
from onceward.api.features import CALL_PARTS, call_guard
from onceward.api.postbox import Postbox
from onceward.core.deliver.transport import Transport
from onceward.core.handle.call import HandlerDeps
from onceward.core.handle.worker import Worker, pool_size
from onceward.core.rows import lanes, peers
from onceward.core.send.add import Outbox
from onceward.core.send.compose import Composer
from onceward.errors import InvalidArgument
from onceward.features.batches.context import BatchContext
from onceward.features.batches.worker import batch_workers
from onceward.features.handler_limits.gates import gates
from onceward.features.steps.awaited import declare
from onceward.file import open_files
from onceward.file.directory import DirectoryCache, DirectoryHandle
from onceward.hooks import Hooks
from onceward.message.clock import Millis
from onceward.message.settings import Controls, Settings
from onceward.testing.clock import ManualClock

SCHEME: Final = "sim"
TROUBLE: Final = "disk I/O error, as the weather has it"
FULL: Final = "database or disk is full, as the weather has it"
JULIAN: Final = 210_866_760_000_000
"""Milliseconds from the start of SQLite's day count to 1970."""


class Killed(BaseException):
    """The process dies here; ``except Exception`` does not see it, as nothing sees SIGKILL."""

    def __init__(self, process: Process) -> None:
        super().__init__(f"{process.agent} was killed")
        self.process = process


class Died(Exception):
    """Tell the world that the process it called is dead."""


class Fatal(Exception):
    """Raised by a handler whose message kills the process."""


class Process:
    """
    An agent's file, open as one process would have it open.

    Every statement passes two points, before and after it. ``kill_in(n)``
    chooses one of the next points: from there on no statement of the code on
    the stack reaches the file. ``fail_commit`` lets the next
    COMMIT report an error, before or after it has happened.
    """

    def __init__(
        self,
        agent: Agent,
        path: Path,
        *,
        clock: ManualClock,
        rng: random.Random,
        ids: Callable[[], str],
        settings: Settings,
    ) -> None:
        self.agent, self.path, self.clock = agent.name, path, clock
        self.over = False
        """Whether it has died."""
        self.points = 0
        """How many points were passed."""
        self.outrun = 0
        """How often a commit found a lease lost that it wanted to end."""
        self._fuse: int | None = None
        self._trouble: str = ""
        self._rng, self._ids, self._settings, self._declared = rng, ids, settings, agent
        self._dice = random.Random(rng.random())
        self._slot = _take_slot(self)
        self.box: Postbox
        self.workers: list[Worker] = []
        self._first_owners = set[str]()
        self.engines: SteppedEngines | None = None
        """Its engines, where they work as started ones do: their commits are shared."""

    def start(
        self,
        transport: Transport,
        wrap: Callable[[Process, Callable[..., Any]], Callable[..., Any]],
    ) -> None:
        """Open the file and build the engines, handlers within *wrap*; may raise Killed."""
        self.box = Postbox(
            self.path,
            agent=self.agent,
            start=False,
            testing=Controls(clock=self.clock, ids=self._ids, rng=self._rng, vfs=self._slot),
            settings=self._settings,
            transports={SCHEME: transport},
        )
        if self._declared._awaited:
            declare(self.box._db, self._declared._awaited)
        if self._declared.handlers:
            self.workers = self._workers(wrap)
            self._first_owners = {worker.owner for worker in self.workers}

    def start_engines(self, *, is_dead: Callable[[str], bool], alone: bool) -> None:
        """Let the engines work as started ones do; *alone* says that no other process is there."""
        self.engines = SteppedEngines(self.box, self.workers, is_dead=is_dead)
        if alone:
            self.engines.begin_alone()

    @property
    def owners(self) -> set[str]:
        """The owners of the leases that it may hold; a worker that was killed has another name."""
        if not hasattr(self, "box"):
            return set()
        present = {worker.owner for worker in self.workers}
        return {self.box._dispatcher.owner} | present | self._first_owners

    def _workers(
        self, wrap: Callable[[Process, Callable[..., Any]], Callable[..., Any]]
    ) -> list[Worker]:
        hooks = Hooks()
        directory = DirectoryCache(DirectoryHandle(self.box._db, self._settings), self.box._db)
        composer = Composer(
            self.box._db,
            settings=self._settings,
            ids=self._ids,
            hooks=hooks,
            known=lambda _: "here",
            recipients=directory,
        )
        agent = wrapped(self._declared, lambda call: wrap(self, call))
        deps = HandlerDeps(
            db=self.box._db,
            settings=self._settings,
            hooks=hooks,
            outbox=Outbox(self.box._db, composer, hooks),
            rng=self._rng,
            policy=self._settings.handling_policy,
            parts=CALL_PARTS,
            complete=complete,
        )
        made = gates(agent, self._settings.workers, lambda _: None)
        guard = call_guard(agent)
        always = made if made.always else None
        count = range(pool_size(agent.handlers, self._settings.workers))
        workers = [Worker(deps, agent, _no_loop, gates=always, guard=guard) for _ in count]
        return workers + batch_workers(deps, agent, _no_loop)

    def work_off(self) -> None:
        """Run all engines until nothing is due."""
        if self.engines is not None:
            self.engines.carry(hurry=True)  # one of its carriers may have the turn to write
        self.box.file.resume()
        if self.engines is not None:
            self.engines.run_until_idle()
            return
        self.box.run_until_idle()
        for worker in self.workers:
            while worker.run_due():
                pass
        self.box.run_until_idle()

    def carry(self, *, hurry: bool) -> None:
        """Push what is due; with engines, answers wait for the next commit unless *hurry*."""
        if self.engines is None:
            self.box.run_until_idle()
        else:
            self.engines.carry(hurry=hurry)

    def handle(self, worker: Worker) -> int:
        """Let one of its workers handle one claim; return how many messages it had."""
        return worker.run_due() if self.engines is None else self.engines.handle_by(worker)

    def beat(self) -> None:
        """Commit the claims that wait for too long, as the heartbeats of workers do."""
        if self.engines is not None:
            self.engines.beat()

    # -- dying --------------------------------------------------------------------------------

    def kill_in(self, points: int | None) -> None:
        """Die *points* points from now; None lets it live."""
        self._fuse = points

    def fail_commit(self, when: str) -> None:
        """Let the next COMMIT raise, ``before`` or ``after`` it happened, or ``full``; or none."""
        self._trouble = when

    def die(self) -> None:
        """Die now; the file keeps what SQLite has written."""
        self.over = True
        raise Killed(self)

    def bury(self) -> None:
        """Release what the process held, as the system does; nothing more is written."""
        self.over = True
        for db in [db for (_, vfs), db in open_files.files.items() if vfs == self._slot]:
            for connection in db.connections():
                if connection is not None:
                    connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
            if not hasattr(self, "box"):
                db.close()  # it died between opening the file and the rest
        if self.engines is not None:
            self.engines.kill()
        if hasattr(self, "box"):
            with suppress(Killed):  # what an end in good order would write
                self.box.close()
        self._free()

    def close(self) -> None:
        """End in good order."""
        if self.engines is not None:
            self.engines.close()
        self.box.close()
        self._free()

    def _free(self) -> None:
        if _running.pop(self._slot, None) is not None:
            _free_slots.append(self._slot)

    # -- what happens at every statement ------------------------------------------------------

    def randomblob(self, *size: Any) -> bytes:
        """Stand in for SQLite's own dice, so that epochs are the same in every run of a seed."""
        return self._dice.randbytes(int(size[0]))

    def _point(self) -> None:
        self.points += 1
        if self._fuse is not None:
            self._fuse -= 1
            if self._fuse < 0:
                self._fuse = None
                self.die()

    def before(self, sql: str) -> None:
        """Say that *sql* is about to run."""
        if _undoes(sql):
            return
        if self.over:
            raise Killed(self)
        self._point()
        if sql == "COMMIT" and self._trouble == "before":
            self._trouble = ""
            raise apsw.IOError(TROUBLE)
        if sql == "COMMIT" and self._trouble == "full":
            self._trouble = ""
            raise apsw.FullError(FULL)

    def after(self, sql: str) -> None:
        """Say that *sql* has run."""
        if self.over or _undoes(sql):
            return
        self._point()
        if sql == "COMMIT" and self._trouble == "after":
            self._trouble = ""
            raise apsw.IOError(TROUBLE)


def _undoes(sql: str) -> bool:
    """Return whether a statement only undoes: dying at it is dying before what it undoes."""
    return sql.startswith("ROLLBACK")


def wrapped(agent: Agent, wrap: Callable[[Callable[..., Any]], Callable[..., Any]]) -> Agent:
    """Return a copy of *agent* with *wrap* around each handler, called with body and context."""
    twin = Agent(agent.name, unhandled=agent.unhandled)
    for handler in agent.handlers:
        if handler.is_async:
            msg = f"{agent.name} handles {handler.pattern} by a coroutine: one thread has no loop"
            raise InvalidArgument(msg)
        call = wrap(handler.call if handler.takes_context else _without_context(handler.call))
        call = call if handler.rules.batch is None else _for_each(call)
        twin.handlers.append(replace(handler, call=call, takes_context=True))
    return twin


def _for_each(call: Callable[..., Any]) -> Callable[..., Any]:
    """Return a batch handler that calls *call* with each message, whose answer is its reply."""

    def run(bodies: list[Any], batch: BatchContext) -> None:
        for body, context in zip(bodies, batch._contexts.values(), strict=True):
            answer = call(body, context)
            if answer is not None:
                batch.reply(context.message, answer)

    return run


def _without_context(call: Callable[..., Any]) -> Callable[..., Any]:
    return lambda body, _context: call(body)


def _no_loop() -> Any:
    msg = "a simulated process has one thread and no loop"
    raise AssertionError(msg)


# -- connections: each finds its process by the VFS that it was opened with ------------------------


class _Cursor(apsw.Cursor):
    process: Process
    statement: str = ""

    def execute(self, statements: str, bindings: Any = None, **options: Any) -> Any:
        self.process.before(statements)
        self.statement = statements
        found = super().execute(statements, bindings, **options)
        if statements == lanes.SETTLE and not self.connection.changes():
            self.process.outrun += 1
        self.process.after(statements)
        return found

    def fetchall(self) -> Any:
        rows = super().fetchall()
        if self.statement == peers.ADVANCE and not rows:
            self.process.outrun += 1
        return rows

    def executemany(self, statements: str, sequenceofbindings: Any, **options: Any) -> Any:
        self.process.before(statements)
        found = super().executemany(statements, sequenceofbindings, **options)
        self.process.after(statements)
        return found


class _Slot(apsw.VFS):
    """The stock VFS under a name of its own, telling the time of the process that uses it."""

    def __init__(self, name: str) -> None:
        self.label = name
        super().__init__(name, "")

    def xCurrentTimeInt64(self) -> int:  # noqa: N802 - SQLite's name
        """Return the process's wall clock as SQLite counts it."""
        process = _running.get(self.label)
        at: Millis = 0 if process is None else process.clock.now()
        return at + JULIAN


_slots: list[_Slot] = []
_free_slots: list[str] = []
_running: dict[str, Process] = {}


def _take_slot(process: Process) -> str:
    if not _slots:
        apsw.connection_hooks.append(_connected)
    if not _free_slots:
        made = _Slot(f"onceward-sim-{len(_slots)}")
        _slots.append(made)
        _free_slots.append(made.label)
    slot = _free_slots.pop()
    _running[slot] = process
    return slot


def _connected(connection: apsw.Connection) -> None:
    process = _running.get(connection.open_vfs)
    if process is None:
        return
    if process.over:
        raise Killed(process)

    def cursor(of: apsw.Connection) -> _Cursor:
        made = _Cursor(of)
        made.process = process
        return made

    connection.cursor_factory = cursor
    connection.create_scalar_function(
        "randomblob", process.randomblob, 1, flags=apsw.SQLITE_INNOCUOUS
    )
