"""
One message at a time on disks whose sync takes 1 ms and 5 ms, as most disks' does.

Both sides open their files by a file system that waits before each sync, and the syncs of a
message are counted.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

import apsw
from tests.bench import raw
from tests.bench.mail import UNBOUNDED, Note, note
from tests.bench.measure import Goal, Lap, Result, alternate, compare, repeat
from tests.bench.pipeline import ACK, DONE, INBOX, KEEP, MARK, PENDING, WAITING
from tests.bench.plan import Plan

from onceward import Postbox
from onceward.message.settings import Controls

SYNCS_MS: Final = (1, 5)
RATIO: Final = 0.7
Cycle = Callable[[], object]


class SlowDisk(apsw.VFS):
    """The usual file system, on which each sync takes so many seconds longer."""

    def __init__(self, seconds: float) -> None:
        self.seconds, self.syncs = seconds, 0
        self.name = f"onceward-slow-{seconds}"
        super().__init__(self.name, "")

    def xOpen(self, name: Any, flags: list[int]) -> SlowFile:  # noqa: N802 - SQLite's name
        """Open a file whose syncs wait."""
        return SlowFile(self, name, flags)


class SlowFile(apsw.VFSFile):
    """A file of the slow disk."""

    def __init__(self, disk: SlowDisk, name: Any, flags: list[int]) -> None:
        self._disk = disk
        super().__init__("", name, flags)

    def xSync(self, flags: int) -> None:  # noqa: N802 - SQLite's name
        """Wait, then sync."""
        self._disk.syncs += 1
        time.sleep(self._disk.seconds)
        super().xSync(flags)


def slow_disk(plan: Plan) -> Iterator[Result]:
    """Send, send to oneself and send to another agent, each up to the acknowledgement."""
    for milliseconds in SYNCS_MS:
        disk = SlowDisk(milliseconds / 1000)
        try:
            for work, (ours, by_hand) in WORKS.items():
                room = plan.room(f"{work.replace(' ', '-')}-{milliseconds}")
                with ours(room, disk.name) as cycle, by_hand(room, disk.name) as rival:
                    plan.settle()
                    yield _compared(plan, disk, work, cycle, rival)
        finally:
            disk.unregister()


def _compared(plan: Plan, disk: SlowDisk, work: str, ours: Cycle, by_hand: Cycle) -> Result:
    syncs: dict[Cycle, list[float]] = {ours: [], by_hand: []}

    def lap(cycle: Cycle) -> Lap:
        before = disk.syncs
        made = repeat(cycle, plan.lap_for)
        syncs[cycle].append((disk.syncs - before) / made.messages)
        return made

    pairs = alternate(lambda: lap(ours), lambda: lap(by_hand), rounds=plan.rounds)
    return compare(
        "slow-disk",
        pairs,
        durability="safe",
        goals=(Goal("ratio", at_least=RATIO),),
        work=work,
        sync_ms=round(1000 * disk.seconds),
        syncs=min(syncs[ours]),
        raw_syncs=min(syncs[by_hand]),
    )


@contextmanager
def _sending(folder: Path, vfs: str) -> Iterator[Cycle]:
    with _box(folder / "alice.db", "alice", vfs, start=False) as box:
        yield lambda: box.send("bob", note())


@contextmanager
def _sending_by_hand(folder: Path, vfs: str) -> Iterator[Cycle]:
    rows = raw.rows(note().model_dump_json())
    with raw.opened(folder / "raw.db", "safe", vfs=vfs) as con:
        yield lambda: raw.put_one(con, next(rows))


@contextmanager
def _to_oneself(folder: Path, vfs: str) -> Iterator[Cycle]:
    with _box(folder / "queue.db", "queue", vfs) as box:
        yield lambda: _carry(box, box)


@contextmanager
def _between_two(folder: Path, vfs: str) -> Iterator[Cycle]:
    with ExitStack() as stack:
        bob, alice = (
            stack.enter_context(_box(folder / f"{name}.db", name, vfs)) for name in ("bob", "alice")
        )
        yield lambda: _carry(alice, bob)


def _carry(sender: Postbox, recipient: Postbox) -> None:
    sender.send(recipient.agent, note())
    message = recipient.receive(Note, timeout=60.0)
    assert message is not None
    message.ack()


def _box(path: Path, agent: str, vfs: str, *, start: bool = True) -> Postbox:
    return Postbox(
        path,
        agent=agent,
        start=start,
        hold_unknown=True,
        max_pending=UNBOUNDED,
        testing=Controls(vfs=vfs),
    )


@contextmanager
def _to_oneself_by_hand(folder: Path, vfs: str) -> Iterator[Cycle]:
    """Outbox and inbox in one commit; the handled message and its acknowledgement in another."""
    rows = raw.rows(note().model_dump_json())
    with raw.opened(folder / "raw.db", "safe", schema=raw.TABLE + INBOX, vfs=vfs) as con:

        def cycle() -> None:
            row = next(rows)
            con.execute("BEGIN IMMEDIATE")
            con.execute(raw.INSERT, row)
            _keep(con, row)
            con.execute("COMMIT")
            con.execute("BEGIN IMMEDIATE")
            _handle(con)
            con.execute(ACK, (f'["{row[0]}"]',))
            con.execute("COMMIT")

        yield cycle


@contextmanager
def _between_two_by_hand(folder: Path, vfs: str) -> Iterator[Cycle]:
    """Four commits: outbox, the other's inbox, the handled message, the acknowledgement."""
    rows = raw.rows(note().model_dump_json())
    with (
        raw.opened(folder / "raw-alice.db", "safe", vfs=vfs) as near,
        raw.opened(folder / "raw-bob.db", "safe", schema=INBOX, vfs=vfs) as far,
    ):

        def cycle() -> None:
            raw.put_one(near, next(rows))
            [(_, message_id, kind, body)] = near.execute(PENDING, (0, 1)).fetchall()
            far.execute("BEGIN IMMEDIATE")
            _keep(far, (message_id, "bob", kind, body, 0))
            far.execute("COMMIT")
            far.execute("BEGIN IMMEDIATE")
            _handle(far)
            far.execute("COMMIT")
            near.execute("BEGIN IMMEDIATE")
            near.execute(ACK, (f'["{message_id}"]',))
            near.execute("COMMIT")

        yield cycle


def _keep(con: raw.Connection, row: Any) -> None:
    message_id, _, kind, body, _ = row
    con.execute(KEEP, (message_id, kind, body, time.time_ns() // 1_000_000))


def _handle(con: raw.Connection) -> None:
    [(seq, message_id, _)] = con.execute(WAITING, (1,)).fetchall()
    con.execute(MARK, (message_id, time.time_ns() // 1_000_000))
    con.execute(DONE, (f"[{seq}]",))


WORKS: Final = {
    "send": (_sending, _sending_by_hand),
    "to oneself": (_to_oneself, _to_oneself_by_hand),
    "between two": (_between_two, _between_two_by_hand),
}
