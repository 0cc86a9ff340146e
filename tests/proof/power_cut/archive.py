"""A program of two agents whose messages have large bodies, in files beside the databases."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass
from random import Random
from typing import Any, Final
from unittest.mock import patch

from tests.proof.power_cut.body_files import BodyFiles, recorded
from tests.proof.power_cut.scene import Scene

from onceward import Agent, Context, Postbox
from onceward.errors import OncewardError
from onceward.features.large_bodies.folder import Folder
from onceward.testing import Controls, ManualClock

ACTS: Final[dict[str, int]] = {"send": 8, "undone": 2, "carry": 6, "sweep": 2, "reopen": 1}
"""What may happen next, and how often it does."""
SIZE: Final = 5_000
SENT: Final = """
SELECT id, CAST(correlation_id AS INTEGER) FROM onceward_outbox WHERE type = 'text' ORDER BY seq
"""
READ: Final = "SELECT n, count(*) FROM read GROUP BY n"
TWO_DAYS: Final = 2 * 86_400
A_YEAR: Final = 365 * 86_400
ROUNDS: Final = 30


class _Undone(Exception):
    """Ends a block whose writes are to be taken back."""


def text_of(n: int) -> str:
    """Return the body of a message."""
    return f"{n:06d}" * (SIZE // 6)


def _syncs_no_folder(store: Folder, path: Any) -> None:
    if not path.is_dir():
        REAL_SYNC(store, path)


def _syncs_no_body(store: Folder, path: Any) -> None:
    if path.is_dir():
        REAL_SYNC(store, path)


def _syncs_the_last_folder(store: Folder, path: Any) -> None:
    if len(path.relative_to(store.path.parent).parts) != 1 or not path.is_dir():
        REAL_SYNC(store, path)


REAL_SYNC: Final = Folder._sync
PLANTED: Final[dict[str, Callable[[Folder, Any], None]]] = {
    "names-unsynced": _syncs_no_folder,
    "bodies-unsynced": _syncs_no_body,
    "folders-unsynced": _syncs_the_last_folder,
}


@dataclass(frozen=True, slots=True)
class Archive:
    """
    An agent that sends large bodies to another one: each message that is there has its body.

    In the course of a run both files are closed and opened, bodies are swept, and blocks are taken
    back whose bodies are stored already.
    """

    seed: int = 1
    mutant: str = ""
    """Name of the bug that is planted."""
    steps: int = 40
    """How much happens in a first life."""

    def planted(self) -> AbstractContextManager[object]:
        """Return the block in which the bug is at work."""
        wrong = PLANTED.get(self.mutant, REAL_SYNC)
        return patch.object(Folder, "_sync", wrong)

    def perform(self, scene: Scene) -> None:
        """Live through a day."""
        rng = Random(self.seed)
        with self._desk(scene) as desk:
            for act in rng.choices(list(ACTS), list(ACTS.values()), k=self.steps):
                getattr(desk, act)()

    def judge(self, scene: Scene) -> list[str]:
        """Start again, look, sweep, send more, drain, and look again."""
        try:
            with self._desk(scene) as desk:
                desk.bodies()
                desk.sweep()
                desk.send()
                for _ in range(ROUNDS):
                    desk.carry()
                desk.effects()
                return desk.wrong
        except OncewardError as error:
            return [f"BROKE {type(error).__name__}: {error}"]

    @contextmanager
    def _desk(self, scene: Scene) -> Iterator[_Desk]:
        with recorded(scene.recorder, scene.folder), ExitStack() as stack:
            desk = _Desk(scene, stack)
            desk.reopen()
            yield desk


class _Desk:
    """Both agents, and what is wrong."""

    def __init__(self, scene: Scene, stack: ExitStack) -> None:
        self._scene, self._outer = scene, stack
        self._stack = stack.enter_context(ExitStack())
        self._clock = ManualClock(scene.starts_at)
        self.wrong: list[str] = []

    def reopen(self) -> None:
        """Close both files, and open them again."""
        self._stack.close()
        self._stack = self._outer.enter_context(ExitStack())
        store = BodyFiles(self._scene.folder, self._clock)
        far = Agent("far")
        far.on("text")(_read)
        self._far = self._open(far)
        with self._far.begin() as tx:
            tx.execute("CREATE TABLE IF NOT EXISTS read (n INTEGER)")
        self._near = self._open("near", large_body=4096, large_body_store=store)

    def _open(self, who: Any, **named: Any) -> Postbox:
        name = who if isinstance(who, str) else who.name
        controls = Controls(clock=self._clock, vfs=self._scene.vfs, rng=Random(1))
        path = self._scene.folder / f"{name}.db"
        return self._stack.enter_context(
            Postbox(path, agent=who, start=False, testing=controls, retention=A_YEAR, **named)
        )

    def send(self) -> None:
        """Send a message, and say so."""
        n = 1 + max([0, *(n for _, n in self._near.query(SENT))])
        self._near.send("far", text_of(n), correlation_id=str(n))
        self._scene.note("sent", n)

    def undone(self) -> None:
        """Take a send back whose body is stored."""
        with suppress(_Undone), self._near.begin() as tx:
            tx.send("far", "u" * SIZE, correlation_id="0")
            raise _Undone

    def carry(self) -> None:
        """Deliver and handle."""
        self._near.run_until_idle()
        self._far.run_until_idle()
        self._clock.advance(61)

    def sweep(self) -> None:
        """Remove bodies of no message, and drafts."""
        self._clock.advance(TWO_DAYS)
        self._near.file.run_maintenance()

    def bodies(self) -> None:
        """Judge that each message is there that was said to be, with its whole body."""
        rows = dict(self._near.query(SENT))
        missing = set(self._scene.known("sent")) - set(rows.values())
        self.wrong += [f"LOST_ACK {n}: its row is missing" for n in sorted(missing)]
        for record in self._near.history(limit=1000, type="text").messages:
            if record.body_error or record.body != text_of(rows[record.id]):
                self.wrong.append(f"LOST_BODY {rows[record.id]}: {record.body_error}")

    def effects(self) -> None:
        """Judge that each message was handled once."""
        found = dict(self._far.query(READ))
        owed = [n for _, n in self._near.query(SENT)]
        self.wrong += [f"LOST_EFFECT {n}: was not read" for n in owed if n not in found]
        self.wrong += [f"DUP_EFFECT {n}: {count} times" for n, count in found.items() if count > 1]


def _read(text: str, ctx: Context) -> None:
    """Note which body was read."""
    n = int(text[:6])
    if text == text_of(n):
        ctx.tx.execute("INSERT INTO read VALUES (?)", (n,))
