"""One step of a handler at a time, beside the same result inserted and committed by hand."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import count
from pathlib import Path
from statistics import median
from typing import Final, NamedTuple

from tests.bench import raw
from tests.bench.mail import note
from tests.bench.measure import Goal, Result
from tests.bench.plan import Plan
from tests.bench.slow_disk import SlowDisk

from onceward import Agent, Context, Postbox
from onceward.message.settings import Controls

STEPS: Final = 400
WARM: Final = 20
PER_SECOND: Final = 400
TIMES: Final = 1.3
SYNCS_MS: Final = (0, 1)
"""How much longer a sync takes than on the disk of the machine."""
TABLE: Final = """
CREATE TABLE steps (
    seq        INTEGER PRIMARY KEY AUTOINCREMENT,
    message_id TEXT    NOT NULL,
    name       TEXT    NOT NULL,
    ordinal    INTEGER NOT NULL,
    result     TEXT    NOT NULL,
    ended_at   INTEGER NOT NULL,
    UNIQUE (message_id, name, ordinal)
) STRICT
"""
INSERT: Final = "INSERT INTO steps (message_id, name, ordinal, result, ended_at) VALUES (?,?,?,?,?)"


class Spent(NamedTuple):
    """Microseconds of one call."""

    wall: float
    cpu: float


def steps(plan: Plan) -> Iterator[Result]:
    """Call a function that returns 512 bytes as a step, in turns with the insert by hand."""
    for milliseconds in SYNCS_MS:
        disk = SlowDisk(milliseconds / 1000)
        try:
            yield _compared(plan, plan.room(f"steps-{milliseconds}"), disk)
        finally:
            disk.unregister()


def _compared(plan: Plan, room: Path, disk: SlowDisk) -> Result:
    many = min(900, plan.messages(STEPS, per_second=PER_SECOND)) + WARM
    pairs: list[tuple[Spent, Spent]] = []
    syncs: list[tuple[int, int]] = []
    agent, text, ordinals = Agent("alice"), note().model_dump_json(), count(1)

    def turn(n: int) -> str:
        return text if n >= 0 else ""

    with raw.opened(room / "raw.db", "safe", schema=TABLE, vfs=disk.name) as con:

        def by_hand(row: tuple[str, str, int, str, int]) -> None:
            con.execute("BEGIN IMMEDIATE")
            con.execute(INSERT, row)
            con.execute("COMMIT")

        @agent.on("job")
        def work(_: object, ctx: Context) -> None:
            for n in range(many):
                row = (ctx.message.id, "turn", next(ordinals), text, 1_700_000_000_000)
                before = disk.syncs
                ours = _spent(partial(ctx.step, turn, n))
                between = disk.syncs
                pairs.append((ours, _spent(partial(by_hand, row))))
                syncs.append((between - before, disk.syncs - between))

        with Postbox(
            room / "alice.db", agent=agent, start=False, testing=Controls(vfs=disk.name)
        ) as box:
            plan.settle()
            box.send("alice", {}, type="job")
            box.run_until_idle()
    return _result(pairs[WARM:], syncs[WARM:], round(1000 * disk.seconds))


def _result(
    pairs: list[tuple[Spent, Spent]], syncs: list[tuple[int, int]], milliseconds: int
) -> Result:
    wall, raw_wall = (median(pair[side].wall for pair in pairs) for side in (0, 1))
    return Result(
        case="step",
        durability="safe",
        rate=1e6 / wall,
        raw_rate=1e6 / raw_wall,
        ratio=median(hand.wall / ours.wall for ours, hand in pairs),
        more={
            "more_sync_ms": milliseconds,
            "syncs": median(ours for ours, _ in syncs),
            "raw_syncs": median(hand for _, hand in syncs),
            "wall_us": wall,
            "raw_wall_us": raw_wall,
            "cpu_us": median(ours.cpu for ours, _ in pairs),
            "raw_cpu_us": median(hand.cpu for _, hand in pairs),
            "times": median(ours.wall / hand.wall for ours, hand in pairs),
        },
        goals=(Goal("times", at_most=TIMES),),
    )


def _spent(call: Callable[[], object]) -> Spent:
    wall, cpu = time.perf_counter(), time.thread_time()
    call()
    return Spent(1e6 * (time.perf_counter() - wall), 1e6 * (time.thread_time() - cpu))
