"""
Two agents that trade while their processes are killed.

The trial that the project itself has to pass.

*ann* orders from *bob* and makes a memo of it to herself, bob bills ann. Two
processes send for ann, one of which pushes too, two carry her mail and hear her
bills, two work for bob, one receives for him by hand, one does nothing but
checkpoint both files. What was tried and what was promised is logged outside the files;
effects and bills are rows that commit with the handling.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Event
from typing import Any, Final

import apsw

from onceward.api.agent import Agent
from onceward.api.contexts import Context
from onceward.api.postbox import Postbox
from onceward.errors import OncewardError
from onceward.message.body import Msg
from onceward.testing.history import Effect, Log, judge
from onceward.testing.kills import Crew, Role, crew

ANN: Final = "ann"
BOB: Final = "bob"
TABLES: Final = {
    ANN: "CREATE TABLE IF NOT EXISTS ledger (id TEXT PRIMARY KEY);"
    "CREATE TABLE IF NOT EXISTS billed (id TEXT);"
    "CREATE TABLE IF NOT EXISTS noted (id TEXT)",
    BOB: "CREATE TABLE IF NOT EXISTS effects (id TEXT, lane TEXT, number INTEGER)",
}
MOST_AT_ONCE: Final = 4
PATIENCE: Final = 10.0
FRESH: Final = 2_000
"""
Kills after which a long trial begins again.

Its processes read at every start what they promised so far.
"""
FULFILLED: Final = "INSERT INTO effects VALUES (?, ?, ?)"
EFFECTS: Final = "SELECT id, lane, number FROM effects ORDER BY rowid"


class Order(Msg, type="order"):
    """What ann wants: the so-manieth thing of one lane."""

    lane: str
    number: int


class Memo(Msg, type="memo"):
    """What ann tells herself of an order, by its id."""

    order: str


class Bill(Msg, type="bill"):
    """What bob answers, naming the order by its id."""

    order: str


def open_box(folder: Path, agent: Agent | str, *, start: bool) -> Postbox:
    """Open the file of one of the two."""
    return Postbox(
        folder / f"{agent if isinstance(agent, str) else agent.name}.db",
        agent=agent,
        start=start,
        busy_timeout=PATIENCE,
    )


def log(folder: Path, name: str) -> Log:
    """Return a log that lies beside the files, or wherever its folder is a link to."""
    return Log(folder / "logs" / f"{name}.log")


def sender(folder: Path, name: str) -> None:
    """
    Order for ever, a few things per commit, with ids of its own, and make memos of them.

    What was not promised is ordered again. The second one pushes its orders itself.
    """
    tried, promised = log(folder, "tried"), log(folder, "promised")
    rng = random.Random()
    number = sum(str(fact).startswith(f"{name}:") for fact in promised)
    with open_box(folder, ANN, start=name.endswith("2")) as box:
        session = box.session(name)
        while True:
            ids = [f"{name}:{number + k:07}" for k in range(1, rng.randint(2, MOST_AT_ONCE))]
            tried.add(*ids)
            try:
                with session.begin() as tx:
                    for k, message_id in enumerate(ids, start=number + 1):
                        tx.execute(
                            "INSERT INTO ledger VALUES (?) ON CONFLICT DO NOTHING", (message_id,)
                        )
                        tx.send(BOB, Order(lane=name, number=k), message_id=message_id)
                        tx.send(ANN, Memo(order=message_id), message_id=f"memo:{message_id}")
            except OncewardError:
                continue  # nothing is promised; the same ids are safe to send again
            promised.add(*ids)
            number += len(ids)
            time.sleep(rng.uniform(0, 0.02))


def dispatcher(folder: Path, _name: str) -> None:
    """Carry ann's mail, and note her bills and memos."""
    ann = Agent(ANN)

    @ann.on(Memo)
    def remember(memo: Memo, ctx: Context) -> None:
        ctx.tx.execute("INSERT INTO noted VALUES (?)", (memo.order,))

    @ann.on(Bill)
    def note(bill: Bill, ctx: Context) -> None:
        ctx.tx.execute("INSERT INTO billed VALUES (?)", (bill.order,))

    with open_box(folder, ann, start=True):
        Event().wait()


def worker(folder: Path, _name: str) -> None:
    """Carry out orders and bill them, one commit each."""
    bob = Agent(BOB)

    @bob.on(Order)
    def fulfil(order: Order, ctx: Context) -> None:
        ctx.tx.execute(FULFILLED, (ctx.message.id, order.lane, order.number))
        ctx.reply(Bill(order=ctx.message.id))

    with open_box(folder, bob, start=True):
        Event().wait()


def reader(folder: Path, _name: str) -> None:
    """Receive orders by hand; carry them out, bill them and end them in one commit each."""
    with open_box(folder, BOB, start=True) as box:
        while True:
            message = box.receive(timeout=PATIENCE)
            if message is None:
                continue
            order = Order.model_validate(message.body)
            with suppress(OncewardError), box.begin() as tx:
                tx.execute(FULFILLED, (message.id, order.lane, order.number))
                message.reply(Bill(order=message.id))
                message.ack()


def checkpointer(folder: Path, _name: str) -> None:
    """Checkpoint both files for ever, as any program that has them open may."""
    rng = random.Random()
    with ExitStack() as stack:
        connections = [
            stack.enter_context(_connection(folder / f"{name}.db")) for name in (ANN, BOB)
        ]
        while True:
            with suppress(apsw.BusyError, apsw.LockedError):
                rng.choice(connections).wal_checkpoint(
                    mode=rng.choice(
                        [apsw.SQLITE_CHECKPOINT_PASSIVE, apsw.SQLITE_CHECKPOINT_TRUNCATE]
                    )
                )
            time.sleep(rng.uniform(0.005, 0.05))


def _connection(path: Path) -> Any:
    con = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READWRITE)
    con.set_busy_timeout(20)
    return con


ROLES: Final[dict[str, Role]] = {
    "sender-1": sender, "sender-2": sender, "dispatcher-1": dispatcher, "dispatcher-2": dispatcher,
    "worker-1": worker, "worker-2": worker, "reader": reader, "checkpointer": checkpointer,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a trial has shown."""

    harness: str
    count: int
    """How often a process was killed."""
    violations: tuple[str, ...]
    seconds: float
    seed: int
    stops: int
    orders: int


def _at_once(_: Path) -> bool:
    return True


def trial(
    *,
    kills: int,
    seed: int,
    folder: Path | None = None,
    seconds: float = 86_400.0,
    until: Callable[[Path], bool] = _at_once,
) -> Verdict:
    """
    Kill the traders' processes *kills* times, wait until nothing is in flight, and judge.

    No kill begins after *seconds*. In a *folder* the senders go on after the last one until
    that is so.

    Every promised order has exactly one effect, bill and memo, its effects in the order of
    its lane; nothing has an effect that was not sent; what the ledger says is
    what was ordered; no row is stranded; both files keep every invariant.

    Without a *folder* new files are made from time to time, so that each kill costs the same.
    """
    if folder is not None:
        return _trial(kills, seed, folder, seconds, until)
    begun, found = time.monotonic(), list[Verdict]()
    for begin in range(0, kills, FRESH):
        if found and time.monotonic() - begun > seconds:
            break
        with TemporaryDirectory(prefix="onceward-kills-") as made:
            left = seconds - (time.monotonic() - begun)
            found.append(_trial(min(FRESH, kills - begin), seed + begin, Path(made), left))
    return Verdict(
        harness="kills",
        count=sum(each.count for each in found),
        violations=tuple(
            f"seed {each.seed}: {words}" for each in found for words in each.violations
        ),
        seconds=time.monotonic() - begun,
        seed=seed,
        stops=sum(each.stops for each in found),
        orders=sum(each.orders for each in found),
    )


def _trial(
    kills: int,
    seed: int,
    folder: Path,
    seconds: float,
    until: Callable[[Path], bool] = _at_once,
) -> Verdict:
    begun = time.monotonic()
    prepare(folder)
    with crew(folder, ROLES, random.Random(seed)) as people:
        people.torment(kills, seconds=seconds)
        people.wait_until(lambda: until(folder))
        violations = come_to_rest(folder, people) + people.fallen()
    found, orders = judged(folder)
    return Verdict(
        "kills",
        people.kills,
        tuple(violations + found),
        time.monotonic() - begun,
        seed,
        people.stops,
        orders,
    )


def prepare(folder: Path) -> None:
    """Make both files, their tables and the folder of the logs."""
    (folder / "logs").mkdir(parents=True, exist_ok=True)
    for name, tables in TABLES.items():
        with open_box(folder, name, start=False) as box, box.begin() as tx:
            for statement in tables.split(";"):
                tx.execute(statement)


def come_to_rest(folder: Path, people: Crew) -> list[str]:
    """Stop the senders, and wait until nothing is under way."""
    people.retire("sender-1", "sender-2")
    with open_box(folder, ANN, start=False) as ann, open_box(folder, BOB, start=False) as bob:
        people.wait_until(lambda: not any(map(_under_way, (ann, bob))))
        return [
            f"{box.agent}: {left} still under way"
            for box in (ann, bob)
            if (left := _under_way(box))
        ]


def _under_way(box: Postbox) -> dict[str, int]:
    stats = box.file.stats()
    names = ("pending", "sending", "sent", "inbox_pending", "inbox_processing")
    return {name: count for name in names if (count := stats[name])}


def judged(folder: Path) -> tuple[list[str], int]:
    """Return what is wrong with files and logs of a trial at rest, and the number of orders."""
    tried, promised = (list(map(str, log(folder, name))) for name in ("tried", "promised"))
    with open_box(folder, ANN, start=False) as ann, open_box(folder, BOB, start=False) as bob:
        with bob.begin() as tx:
            effects = [Effect(*row) for row in tx.execute(EFFECTS)]
        with ann.begin() as tx:
            billed, noted = (
                [Effect(str(order), table, 0) for (order,) in tx.execute(f"SELECT id FROM {table}")]
                for table in ("billed", "noted")
            )
            ledger = {str(i) for (i,) in tx.execute("SELECT id FROM ledger")}
        broken = [
            f"{box.agent}: {v.invariant} {v.offender} ({v.rule})"
            for box, other in ((ann, bob), (bob, ann))
            for v in box.file.check(other.file)
        ]
        dead = [
            f"{letter.id} is dead: {letter.reason} {letter.last_error}"
            for box in (ann, bob)
            for letter in box.dead_letters.list()
        ]
    found = judge(tried=tried, promised=promised, effects=effects)
    found += [f"bill: {wrong}" for wrong in judge(tried=tried, promised=promised, effects=billed)]
    found += [f"memo: {wrong}" for wrong in judge(tried=tried, promised=promised, effects=noted)]
    found += [
        f"{i} is in the ledger and had no effect"
        for i in sorted(ledger - {effect.id for effect in effects})
    ]
    return [*found, *broken, *dead], len(ledger)
