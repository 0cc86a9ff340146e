"""
Cost that each promise adds to the same work by hand.

It is measured step by step, in turns, as medians of single calls.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from itertools import islice
from statistics import median
from typing import Any, Final, cast

from tests.bench import pipeline, raw
from tests.bench.crew import running, say_when
from tests.bench.deliver import TABLE, bob
from tests.bench.group import together
from tests.bench.mail import UNBOUNDED, idle_box, note
from tests.bench.measure import Lap, Result, repeat
from tests.bench.plan import Plan
from tests.bench.wake import once, receive

from onceward import Postbox, Tuning
from onceward.file.group_commit import ReplacedFileDetector
from onceward.file.notify import Notifier
from onceward.message.body import encode
from onceward.message.frame import digest
from onceward.message.ids import new_id
from onceward.message.options import FrameHeaders, frame_prefix, render_head
from onceward.message.parcel import Durability

INSERT: Final = """
INSERT INTO _onceward_outbox (id, recipient, session, lane, type, frame, digest, created_at)
VALUES (?, 'bob', 'bench', 'bench', 'bench.note', ?, ?, ?)
"""
PLAIN: Final = (
    "CREATE TABLE plain (seq INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL UNIQUE, "
    "body TEXT) STRICT"
)
PUT: Final = f"INSERT INTO plain (id, body) VALUES (?, '{note().model_dump_json()}')"
LAPS: Final = 60
CALLS: Final = 30
MANY: Final = 100
CARRIED: Final = 2000
ROUNDS: Final = 100
SHARED: Final = frame_prefix(
    FrameHeaders(
        sender="alice",
        recipient="bob",
        type="bench.note",
        media="application/json",
        session="bench",
    )
)

Row = tuple[str, str, bytes, int]
Step = Callable[[], object]


def price(plan: Plan) -> Iterator[Result]:
    """Add promise after promise to what is written by hand, up to the library itself."""
    for durability in ("safe", "fast"):
        yield from sending(plan, durability)
    yield from sharing(plan)
    yield from carrying(plan)
    for durability in ("safe", "fast"):
        yield from waking(plan, durability)


def sending(plan: Plan, durability: str) -> Iterator[Result]:
    """
    Send one by one, then a hundred per commit, three ways.

    The ways are by hand into a table of its own, by hand into our table, and by the library.
    """
    ours, ours_by_hand, by_hand = (
        plan.room(f"{name}-{durability}") for name in ("ours", "ours-by-hand", "by-hand")
    )
    idle_box(
        ours_by_hand, durability
    ).close()  # a file with our columns, checks, indexes, limits and pause
    path = ours_by_hand / "alice.db"
    with ExitStack() as stack:
        box = stack.enter_context(idle_box(ours, durability))
        con = stack.enter_context(raw.opened(by_hand / "raw.db", durability))
        own = stack.enter_context(raw.opened(path, durability, schema=""))
        watch, bell, body, session = (
            ReplacedFileDetector(path),
            Notifier(path),
            note(),
            box.session("bench"),
        )
        rows, bodies = raw.rows(body.model_dump_json()), [("bob", body)] * MANY

        def guarded() -> None:
            _put(own, [_row(body)])
            watch.replaced()
            bell.notify("out")

        single: dict[str, Callable[[], Step]] = {
            "by hand": lambda: _later(raw.put_one, con, next(rows)),
            "its row in our table": lambda: _later(_put, own, [_row(body)]),
            "frame, id and digest": lambda: lambda: _put(own, [_row(body)]),
            "guard and notification": lambda: guarded,
            "one writer for all callers": lambda: lambda: _shared(box, body),
            "onceward": lambda: lambda: session.send("bob", body),
        }
        many: dict[str, Callable[[], Step]] = {
            "by hand": lambda: _later(raw.put_many, con, list(islice(rows, MANY))),
            "their rows in our table": lambda: _later(_put, own, [_row(body) for _ in range(MANY)]),
            "frames, ids and digests": lambda: lambda: _put(own, [_row(body) for _ in range(MANY)]),
            "onceward": lambda: lambda: session.send_many(bodies),
        }
        plan.settle()
        yield from _ladder(plan, "send", durability, single, 1)
        yield from _ladder(plan, "send-many", durability, many, MANY)
        bell.close()


def _later(call: Callable[..., object], *args: Any) -> Step:
    """Return a call whose arguments were made before the clock starts."""
    return lambda: call(*args)


def _row(body: object) -> Row:
    now, message_id = time.time_ns() // 1_000_000, new_id()
    text = f"{render_head(SHARED, message_id, now)}{encode(body).text}}}"
    return message_id, text, digest(text), now


def _put(con: raw.Connection, rows: Sequence[Row]) -> None:
    con.execute("BEGIN IMMEDIATE")
    con.executemany(INSERT, rows)
    con.execute("COMMIT")


def _shared(box: Postbox, body: object) -> None:
    box._db.write(lambda tx: tx.many(INSERT, [_row(body)]))
    box._db.notifier.notify("out")


def _ladder(
    plan: Plan, work: str, durability: str, steps: dict[str, Callable[[], Step]], messages: int
) -> Iterator[Result]:
    waits: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(plan.scaled(LAPS, per_second=100)):
        for name, made in steps.items():
            for step in [made() for _ in range(CALLS if messages == 1 else 1)]:
                before = time.perf_counter()
                step()
                waits[name].append(time.perf_counter() - before)
    yield from _rows(
        work, durability, {name: 1e6 * median(found) / messages for name, found in waits.items()}
    )


def _rows(work: str, durability: str, cost: dict[str, float], unit: str = "us") -> Iterator[Result]:
    first = next(iter(cost.values()))
    for name, found in cost.items():
        yield Result(
            case="price",
            durability=durability,
            ratio=first / found,
            more={"work": work, "step": name, unit: found},
        )


def sharing(plan: Plan) -> Iterator[Result]:
    """
    Commit one by one from one caller by hand, then from many threads by one writer.

    Each commits a bare row, and a message.
    """
    ours, by_hand = plan.room("shared"), plan.room("alone")
    with idle_box(ours, "safe") as box, raw.opened(by_hand / "raw.db", "safe") as con:
        box._db.write(lambda tx: tx.rows(PLAIN))
        session, body, rows = box.session("bench"), note(), raw.rows(note().model_dump_json())
        parts: dict[str, Callable[[], Lap]] = {
            "one caller by hand": lambda: repeat(
                lambda: raw.put_one(con, next(rows)), plan.lap_for
            ),
            "64 threads, a bare row each": lambda: together(
                lambda: _bare(box, new_id()), plan.lap_for
            ),
            "64 threads, onceward": lambda: together(
                lambda: session.send("bob", body), plan.lap_for
            ),
        }
        plan.settle()
        laps = [{name: part() for name, part in parts.items()} for _ in range(plan.rounds)]
    yield from _rows(
        "group-threads",
        "safe",
        {
            name: 1e6 * median(lap[name].seconds / lap[name].messages for lap in laps)
            for name in parts
        },
    )


def _bare(box: Postbox, message_id: str) -> None:
    box._db.write(lambda tx: tx.run(PUT, (message_id,)))


def carrying(plan: Plan) -> Iterator[Result]:
    """Run the steps of a delivery in one thread, and time each step per message."""
    folder, size = plan.room("carry"), plan.messages(CARRIED, per_second=5000)
    with (
        Postbox(folder / "bob.db", agent=bob, start=False) as far,
        Postbox(folder / "alice.db", agent="alice", start=False, max_pending=UNBOUNDED) as near,
    ):
        with far.begin() as tx:
            tx.execute(TABLE)
        parts: dict[str, Callable[[], object]] = {
            "send a hundred per commit": lambda: [
                near.send_many([("bob", note())] * min(MANY, size)) for _ in range(0, size, MANY)
            ],
            "pack, accept, settle": near.run_until_idle,
            "handle, and tell the sender": far.run_until_idle,
        }
        waits: dict[str, list[float]] = {name: [] for name in parts}
        for _ in range(plan.rounds):
            for name, part in parts.items():
                before = time.perf_counter()
                part()
                waits[name].append(time.perf_counter() - before)
    yield from _rows(
        "deliver", "safe", {name: 1e6 * median(found) / size for name, found in waits.items()}
    )


def waking(plan: Plan, durability: str) -> Iterator[Result]:
    """
    Wake another process by hand, by hand with two commits more, and by the library.

    Order and fencing ask for the two commits.
    """
    plain, careful, ours = (plan.room(f"{name}-{durability}") for name in ("plain", "care", "lib"))
    with (
        running(pipeline.receive, plain, durability, say_when) as one,
        running(pipeline.receive_carefully, careful, durability, say_when) as other,
        running(receive, ours, durability) as link,
        pipeline.Sender(plain, durability) as by_hand,
        pipeline.CarefulSender(careful, durability) as carefully,
        Postbox(
            ours / "alice.db",
            agent="alice",
            durability=cast("Durability", durability),
            tuning=Tuning(poll_interval=0),
        ) as box,
    ):
        plan.settle()
        body, waits = note(), dict[str, list[float]]()
        for _ in range(plan.messages(ROUNDS, per_second=200)):
            waits.setdefault("by hand", []).append(once(by_hand.send, one))
            waits.setdefault("parcel and claim committed too", []).append(
                once(carefully.send, other)
            )
            waits.setdefault("onceward", []).append(once(lambda: box.send("bob", body), link))
    yield from _rows(
        "wake", durability, {name: 1e3 * median(found) for name, found in waits.items()}, "ms"
    )
