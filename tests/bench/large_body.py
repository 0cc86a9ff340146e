"""One message of 900 kB between two agents: the processor's time, beside the same rows by hand."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from statistics import median
from typing import Final

from tests.bench import raw
from tests.bench.mail import Note, note
from tests.bench.measure import Goal, Result
from tests.bench.pipeline import ACK, DONE, INBOX, KEEP, MARK, PENDING, WAITING
from tests.bench.plan import Plan

from onceward import Postbox

BYTES: Final = 900_000
CYCLES: Final = 60
WARM: Final = 3
CPU_MS: Final = 10.0


def large_body(plan: Plan) -> Iterator[Result]:
    """Carry one after the other, in turns with outbox, inbox and two more commits by hand."""
    ours, by_hand = plan.room("ours"), plan.room("raw")
    body = note(size=BYTES)
    rows = raw.rows(body.model_dump_json())
    with (
        Postbox(ours / "bob.db", agent="bob", start=False) as bob,
        Postbox(ours / "alice.db", agent="alice", start=False) as alice,
        raw.opened(by_hand / "alice.db", "safe") as near,
        raw.opened(by_hand / "bob.db", "safe", schema=INBOX) as far,
    ):
        cycles = plan.scaled(CYCLES, per_second=100) + WARM
        pairs = [
            (
                _cpu_ms(lambda: _carry(alice, bob, body)),
                _cpu_ms(lambda: _by_hand(near, far, next(rows))),
            )
            for _ in range(cycles)
        ][WARM:]
    yield Result(
        case="large-body",
        durability="safe",
        ratio=median(other / one for one, other in pairs),
        more={
            "bytes": BYTES,
            "cpu_ms": min(one for one, _ in pairs),
            "raw_cpu_ms": min(other for _, other in pairs),
        },
        goals=(Goal("cpu_ms", at_most=CPU_MS),),
    )


def _cpu_ms(cycle: Callable[[], object]) -> float:
    before = time.process_time()
    cycle()
    return 1000 * (time.process_time() - before)


def _carry(alice: Postbox, bob: Postbox, body: Note) -> None:
    alice.send("bob", body)
    alice.run_until_idle()
    message = bob.receive(Note, timeout=10.0)
    assert message is not None
    message.ack()
    bob.run_until_idle()
    alice.run_until_idle()


def _by_hand(near: raw.Connection, far: raw.Connection, row: raw.Row) -> None:
    raw.put_one(near, row)
    [(_, message_id, kind, body)] = near.execute(PENDING, (0, 1)).fetchall()
    far.execute("BEGIN IMMEDIATE")
    far.execute(KEEP, (message_id, kind, body, 0))
    far.execute("COMMIT")
    far.execute("BEGIN IMMEDIATE")
    [(seq, _, text)] = far.execute(WAITING, (1,)).fetchall()
    Note.model_validate_json(str(text))
    far.execute(MARK, (message_id, 0))
    far.execute(DONE, (f"[{seq}]",))
    far.execute("COMMIT")
    near.execute("BEGIN IMMEDIATE")
    near.execute(ACK, (f'["{message_id}"]',))
    near.execute("COMMIT")
