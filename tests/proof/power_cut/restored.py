"""
A program of two agents, one of which is restored from a backup, twice, and asks what it had sent.

Each opening compares the file with a note of the last one, as ``last_seen`` does; the note outlives
a power cut here, so that no greeting is sent which the restore did not cause.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, Final
from unittest.mock import patch

import apsw
from tests.proof.power_cut.scene import Scene

from onceward import Agent, Context, Postbox
from onceward.core.accept import lost
from onceward.errors import OncewardError
from onceward.file import identity
from onceward.file.connection import connect
from onceward.file.database import Database
from onceward.file.identity import Identity
from onceward.message.vocabulary import LOST
from onceward.testing import Controls, ManualClock

PAGE: Final = 2
"""Messages of a page."""
BEFORE, AFTER, WAITING = 3, 5, 1
"""Messages before the backup, after it, and after it without a delivery."""
MODES: Final = slice(18, 20)
"""The part of a database's header that names its journal."""
SENT: Final = """
SELECT CAST(correlation_id AS INTEGER), state FROM onceward_outbox WHERE type = 'job'
"""
DONE: Final = "SELECT n, count(*) FROM done GROUP BY n"
A_YEAR: Final = 365 * 86_400
ROUNDS: Final = 20
OPENED: Final = "opened"
Later = Callable[[Postbox], object]

KEEP: Final = lost.keep
SEND: Final = lost._send
GREET: Final = identity.greet_peers
LATE: Final[list[Later]] = []
"""What a planted bug leaves to a commit of its own."""


def _keep_later(settings: Any, _tx: Any, sender: str, frame: Any) -> bool:
    """Store the messages of a page in the commit after that which takes the page."""
    LATE.append(lambda near: near._db.write(lambda tx: KEEP(settings, tx, sender, frame)))
    return True


def _ask_later(tx: Any, headers: Any, body: Any) -> None:
    """Ask for a page in the commit after that which needs it."""
    if headers.type == LOST:
        LATE.append(lambda near: near._db.write(lambda later: SEND(later, headers, body)))
    else:
        SEND(tx, headers, body)


def _greet_later(_tx: Any) -> int:
    """Greet the peers of a restored file in the commit after that of its opening."""
    LATE.append(lambda near: near._db.write(GREET))
    return 0


PLANTED: Final[dict[str, Callable[[], AbstractContextManager[object]]]] = {
    "": ExitStack,
    "pages-late": partial(patch.object, lost, "keep", _keep_later),
    "questions-late": partial(patch.object, lost, "_send", _ask_later),
    "greeting-late": partial(patch.object, identity, "greet_peers", _greet_later),
}


@dataclass(frozen=True, slots=True)
class Restored:
    """
    An agent that sends jobs with keys, and is restored; the other one does each job once.

    After a cut each job that was done is found in the file of its sender, which sends all others
    again by their keys.
    """

    seed: int = 1
    mutant: str = ""
    """Name of the bug that is planted."""

    @contextmanager
    def planted(self) -> Iterator[None]:
        """Let a page hold few messages, and the bug be at work."""
        with patch.object(lost, "PAGE", PAGE), PLANTED[self.mutant]():
            yield

    def perform(self, scene: Scene) -> None:
        """Send, lose the disk, find, lose it once more half way, find, and go on."""
        with _desk(scene) as desk:
            desk.work(BEFORE)
            backup = desk.backup()
            desk.work(AFTER)
            for _ in range(WAITING):
                desk.send()
            desk.restore(backup)
            desk.carry()
            desk.send()
            desk.restore(backup)
            desk.drain(ROUNDS // 2)
            desk.work(1)

    def judge(self, scene: Scene) -> list[str]:
        """Start again, drain, look, send all once more by their keys, drain, and look again."""
        try:
            with _desk(scene) as desk:
                desk.drain(ROUNDS)
                desk.found()
                desk.repeat()
                desk.drain(ROUNDS)
                desk.effects()
                return desk.wrong
        except OncewardError as error:
            return [f"BROKE {type(error).__name__}: {error}"]


@contextmanager
def _desk(scene: Scene) -> Iterator[_Desk]:
    LATE.clear()
    with ExitStack() as stack:
        stack.enter_context(patch.object(Database, "_look_before", lambda db: _look(scene, db)))
        desk = _Desk(scene, stack)
        desk.reopen()
        yield desk


class _Noted:
    """How far the near file had come, as its last opening noted it."""

    def __init__(self, scene: Scene) -> None:
        self._scene, self._opened = scene, 0

    def is_restored(self, found: Identity) -> bool:
        """Return whether the file has been opened less often than is noted."""
        self._opened = found.reach.opened
        noted = self._scene.known(OPENED)
        return bool(noted) and self._opened <= noted[-1]

    def note(self, *, closed: bool) -> None:
        """Note the opening, durably."""
        if not closed:
            self._scene.note(OPENED, self._opened)


def _look(scene: Scene, db: Any) -> None:
    if db._is_first_use and db.path.name == "near.db":
        db._seen = _Noted(scene)


class _Desk:
    """Both agents, and what is wrong."""

    def __init__(self, scene: Scene, stack: ExitStack) -> None:
        self._scene, self._outer = scene, stack
        self._stack = stack.enter_context(ExitStack())
        self._clock = ManualClock(scene.starts_at)
        self.wrong: list[str] = []

    @property
    def _path(self) -> Path:
        return self._scene.folder / "near.db"

    def reopen(self) -> None:
        """Close both files, and open them again."""
        self._stack.close()
        self._stack = self._outer.enter_context(ExitStack())
        far = Agent("far")
        far.on("job")(_do)
        self._far = self._open(far)
        with self._far.begin() as tx:
            tx.execute("CREATE TABLE IF NOT EXISTS done (n INTEGER)")
        self._near = self._open("near")
        self._catch_up()

    def _open(self, who: Any) -> Postbox:
        name = who if isinstance(who, str) else who.name
        controls = Controls(clock=self._clock, vfs=self._scene.vfs, rng=Random(1))
        path = self._scene.folder / f"{name}.db"
        return self._stack.enter_context(
            Postbox(path, agent=who, start=False, testing=controls, retention=A_YEAR)
        )

    def _catch_up(self) -> None:
        while LATE:
            LATE.pop(0)(self._near)

    def send(self) -> None:
        """Send the next job, which no life has sent yet, and say so."""
        n = 1 + max([0, *self._scene.known("sent"), *dict(self._near.query(SENT))])
        self._send(n)

    def _send(self, n: int) -> None:
        self._near.send("far", n, type="job", key=f"job-{n}", correlation_id=str(n))
        self._scene.note("sent", n)

    def carry(self) -> None:
        """Deliver and handle; say which jobs are done."""
        for box in (self._near, self._far):
            box.run_until_idle()
            self._catch_up()
        for n in set(dict(self._far.query(DONE))) - set(self._scene.known("done")):
            self._scene.note("done", n)
        self._clock.advance(61)

    def work(self, count: int) -> None:
        """Send jobs, and let each be done."""
        for _ in range(count):
            self.send()
            self.carry()

    def drain(self, rounds: int) -> None:
        """Let all that waits arrive."""
        for _ in range(rounds):
            self.carry()

    def backup(self) -> bytes:
        """Return the near file, closed, and open it again."""
        self._stack.close()
        kept = bytearray(self._path.read_bytes())
        kept[MODES] = b"\1\1"  # a database in memory has no WAL
        self.reopen()
        return bytes(kept)

    def restore(self, backup: bytes) -> None:
        """Replace the near file with a backup, in one commit, and open it."""
        self._stack.close()
        source, con = apsw.Connection(":memory:"), connect(self._path, vfs=self._scene.vfs)
        source.deserialize("main", backup)
        con.pragma("synchronous", "full")
        with con.backup("main", source, "main") as copying:
            copying.step(-1)
        con.close()
        source.close()
        self.reopen()

    def found(self) -> None:
        """Judge that each job that was done is known to its sender, with its outcome."""
        known, done = dict(self._near.query(SENT)), dict(self._far.query(DONE))
        self.wrong += [f"NOT_FOUND {n}: was done" for n in done if known.get(n) != "acked"]
        lacking = set(self._scene.known("done")) - set(done)
        self.wrong += [f"LOST_EFFECT {n}: was done" for n in sorted(lacking)]

    def repeat(self) -> None:
        """Send each job again by its key."""
        for n in sorted({*self._scene.known("sent")}):
            self._send(n)

    def effects(self) -> None:
        """Judge that each job was done once, and both files."""
        found = dict(self._far.query(DONE))
        owed = set(self._scene.known("sent"))
        self.wrong += [f"NOT_DONE {n}" for n in sorted(owed - set(found))]
        self.wrong += [f"DUP_EFFECT {n}: {count} times" for n, count in found.items() if count > 1]
        broken = [*self._near.file.check(self._far.file), *self._far.file.check(self._near.file)]
        self.wrong += [f"INVARIANT {v.invariant} {v.rule}: {v.offender}" for v in broken]


def _do(n: int, ctx: Context) -> None:
    """Do a job."""
    ctx.tx.execute("INSERT INTO done VALUES (?)", (n,))
