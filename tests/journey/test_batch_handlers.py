"""Handlers that take several messages at once: one call, one commit, a verdict for each."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from threading import Event
from typing import TYPE_CHECKING, Any

import pytest
from pydantic import field_validator
from tests.waiting import until

from onceward import Agent, BatchContext, Drop, Msg, Postbox, Reject, Retry, Tuning
from onceward.core.handle.commit_batch import HandlerCommitBatch
from onceward.errors import InvalidArgument
from onceward.testing import Controls, Harness
from onceward.types import AsyncBatchContext

if TYPE_CHECKING:
    from pathlib import Path

    from tests.journey.conftest import World

    from onceward.message.handler_options import HandlerOptions

STATES = "SELECT id, state FROM onceward_inbox ORDER BY seq"
FATES = "SELECT reason, last_error, attempts FROM onceward_dead_letters ORDER BY seq"
TABLE = "CREATE TABLE IF NOT EXISTS effects (n)"
LEASES = "SELECT due_at FROM _onceward_lanes WHERE owner IS NOT NULL"
EFFECTS = "SELECT n FROM effects ORDER BY rowid"


class Order(Msg, type="order"):
    """An order with a number."""

    n: int


class Other(Msg, type="other"):
    """A message of another kind."""

    n: int


def noting(**options: Any) -> tuple[Agent, list[list[int]]]:
    """Return an agent with a batch handler, and the numbers of each call."""
    agent, calls = Agent("bob"), list[list[int]]()

    @agent.on(Order, **{"batch": 3, "within": 1.0} | options)
    def take(orders: list[Order]) -> None:
        calls.append([order.n for order in orders])

    agent.on(Other)(lambda other: calls.append([-other.n]))
    return agent, calls


def send(box: Postbox, *numbers: int, session: str = "s") -> list[str]:
    """Send orders of one session."""
    return [box.session(session).send("bob", Order(n=n)) for n in numbers]


def test_a_full_batch_is_handed_over_at_once_and_the_rest_in_time(world: World) -> None:
    """Three at once; two wait a second for a third that does not come."""
    agent, calls = noting()
    box = world.open(agent)
    send(box, 1, 2)
    send(box, 3, 4, 5, session="t")
    world.settle()
    at_once = [*calls]
    world.wait(0.9)
    before = [*calls]
    world.wait(0.1)

    assert ([[1, 2, 3]], [[1, 2, 3]]) == (at_once, before)
    assert [[1, 2, 3], [4, 5]] == calls


def test_other_messages_do_not_wait_for_a_batch(world: World) -> None:
    """A message before one of the batch in its lane, and one in another lane, is handled."""
    agent, calls = noting()
    box = world.open(agent)
    box.session("s").send("bob", Other(n=1))
    send(box, 5)
    box.session("s").send("bob", Other(n=2))
    box.session("t").send("bob", Other(n=3))
    world.settle()
    world.wait(1)

    assert [[-1], [-3], [5], [-2]] == calls


def test_a_batch_is_one_commit_with_its_writes(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Claim, effects and marks of a hundred messages take two commits at most."""
    from onceward.file.transaction import StoreTransaction  # noqa: PLC0415

    agent = Agent("bob")

    @agent.on(Order, batch=100)
    def take(orders: list[Order], ctx: BatchContext) -> None:
        ctx.tx.executemany("INSERT INTO effects VALUES (?)", [(order.n,) for order in orders])

    box = world.open(agent)
    with box.begin() as tx:
        tx.execute(TABLE)
    send(box, *range(100))
    box._dispatcher.run_due()
    made: list[StoreTransaction] = []
    commit = StoreTransaction.commit

    def counted(tx: StoreTransaction) -> None:
        made.append(tx)
        commit(tx)

    monkeypatch.setattr(StoreTransaction, "commit", counted)
    worker: Any = box._runners[0]
    handled = worker.round()

    assert (100, 2) == (handled, len(made))
    assert [(n,) for n in range(100)] == box.query(EFFECTS)


def test_no_heartbeat_commits_a_part_of_a_batch(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Effects are committed with all settlements, also where a commit is due meanwhile."""
    agent = Agent("bob")

    @agent.on(Order, batch=9, within=0)
    def take(orders: list[Order], ctx: BatchContext) -> None:
        ctx.tx.executemany("INSERT INTO effects VALUES (?)", [(order.n,) for order in orders])

    box = world.open(agent, tuning=Tuning(share_commit_for=0))
    with box.begin() as tx:
        tx.execute(TABLE)
    send(box, 1, 2, 3)
    end, seen = HandlerCommitBatch.end, list[int]()

    def meanwhile(self: HandlerCommitBatch, *args: Any, **named: Any) -> None:
        end(self, *args, **named)
        world.elsewhere(self.heartbeat)
        seen.append(len(box.query(EFFECTS)))

    monkeypatch.setattr(HandlerCommitBatch, "end", meanwhile)
    world.settle()

    assert ([0, 0, 0], 3) == (seen, len(box.query(EFFECTS)))


def test_a_disabled_process_takes_no_batch(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The switch of the environment holds for batches, too."""
    agent, calls = noting(within=0)
    box = world.open(agent)
    send(box, 1, 2, 3)
    box._dispatcher.run_due()
    monkeypatch.setenv("ONCEWARD_DISABLED", "1")
    handled = box._runners[0].run_due()
    monkeypatch.delenv("ONCEWARD_DISABLED")
    world.settle()

    assert (0, [[1, 2, 3]]) == (handled, calls)


def test_verdicts_end_single_messages(world: World) -> None:
    """One is rejected, one retried alone, one answered; the others are processed."""
    agent, seen, answers = Agent("bob"), list[list[int]](), list[Any]()

    @agent.on(Order, batch=4, within=0)
    def take(orders: Sequence[Order], ctx: BatchContext) -> None:
        seen.append([order.n for order in orders])
        for order, message in zip(orders, ctx.messages, strict=True):
            if order.n == 1:
                ctx.reject(message, "no such shop")
            if order.n == 2 and message.attempt == 1:
                ctx.retry(message, after=5)
            if order.n == 3:
                ctx.reply(message, "three")

    alice = Agent("alice")
    alice.on("text")(answers.append)
    shop, box = world.open(alice), world.open(agent)
    for n in (1, 2, 3, 4):
        shop.session("s").send("bob", Order(n=n))
    world.settle()
    first, at_first = [state for _, state in box.query(STATES)], [*seen]
    world.wait(5)

    assert ([[1, 2, 3, 4]], [[1, 2, 3, 4], [2]]) == (at_first, seen)
    assert ["processed", "three"] == [first[-1], *answers]
    assert [("rejected", "no such shop", 1)] == box.query(FATES)
    assert {"processed"} == {state for _, state in box.query(STATES)}


def test_an_error_fails_all_and_the_next_attempts_are_single(world: World) -> None:
    """One bad message does not take its neighbours with it, nor costs them an attempt."""
    agent, calls = Agent("bob"), list[list[int]]()

    @agent.on(Order, batch=3, within=0, attempts=2)
    def take(orders: list[Order], ctx: BatchContext) -> None:
        calls.append([order.n for order in orders])
        ctx.tx.executemany("INSERT INTO effects VALUES (?)", [(order.n,) for order in orders])
        if 2 in calls[-1]:
            raise ValueError(2)

    box = world.open(agent)
    with box.begin() as tx:
        tx.execute(TABLE)
    send(box, 1, 2, 3)
    for _ in range(5):
        world.wait(60)

    assert [[1, 2, 3], [1], [2], [2], [3]] == calls
    assert [("attempts_spent", "ValueError: 2", 2)] == box.query(FATES)
    assert [(1,), (3,)] == box.query(EFFECTS)


@pytest.mark.parametrize("error", [ValueError("two"), Reject("two"), Drop()])
def test_a_final_error_of_a_batch_ends_one_message(world: World, error: Exception) -> None:
    """What ends a message at its first attempt ends no neighbour in the same batch."""
    agent = Agent("bob")

    @agent.on(Order, batch=3, within=0, attempts=1, no_retry=ValueError)
    def take(orders: list[Order]) -> None:
        if any(order.n == 2 for order in orders):
            raise error

    box = world.open(agent)
    send(box, 1, 2, 3)
    for _ in range(4):
        world.wait(60)
    ends = [state for _, state in box.query(STATES) if state == "processed"]

    assert 2 == len(ends)
    assert 0 == box.file.stats()["inbox_pending"]


def test_a_wrong_span_of_a_retry_is_told_and_the_policy_says_when(world: World) -> None:
    """As in a handler of one message: the worker goes on, and the error is kept."""
    agent, calls = Agent("bob"), list[int]()

    @agent.on(Order, batch=2, within=0)
    def take(orders: list[Order]) -> None:
        calls.append(len(orders))
        if len(orders) > 1:
            raise Retry("later", after=-5)

    box = world.open(agent)
    send(box, 1, 2)
    world.settle()
    told = box.query("SELECT reason FROM onceward_inbox")
    world.wait(60)

    assert [True, True] == ["later (after -5 must be" in str(error) for (error,) in told]
    assert [2, 1, 1] == calls


def test_an_unreadable_body_ends_alone(world: World) -> None:
    """A body that does not fit is rejected; the batch is called without it."""
    agent, calls = noting(within=0)
    box = world.open(agent)
    send(box, 1)
    box.session("s").send("bob", {"n": "many"}, type="order")
    send(box, 3)
    world.settle()

    assert ([[1, 3]], ["rejected"]) == (calls, [reason for reason, *_ in box.query(FATES)])


@pytest.mark.parametrize("point", ["before-handler", "after-handler", "before-commit"])
def test_a_batch_that_dies_with_its_process_had_no_effect(point: Any) -> None:
    """Its messages are handed over again, each alone; their effects are there once."""
    agent, calls = Agent("bob"), list[list[int]]()

    @agent.on(Order, batch=3, within=0.5)
    def take(orders: list[Order], ctx: BatchContext) -> None:
        calls.append([order.n for order in orders])
        ctx.tx.executemany("INSERT INTO effects VALUES (?)", [(order.n,) for order in orders])

    with Harness(agent, schema=TABLE) as harness:
        for n in (1, 2, 3):
            harness.send(Order(n=n))
        with harness.crash_at(point):
            harness.deliver()
        dead = harness.sql(EFFECTS)
        for _ in range(4):
            harness.advance(60)
            harness.deliver()

        assert ([], [(1,), (2,), (3,)]) == (dead, harness.sql(EFFECTS))
        assert [[1], [2], [3]] == calls[-3:]
        assert [] == harness.check()


def test_a_lost_lease_undoes_a_batch(world: World) -> None:
    """Another process takes a lane during the call: nothing of it is committed."""
    agent, calls = Agent("bob"), list[list[int]]()
    box: Postbox

    @agent.on(Order, batch=2, within=0)
    def take(orders: list[Order], ctx: BatchContext) -> None:
        calls.append([order.n for order in orders])
        if len(calls) == 1:
            world.elsewhere(lose)
        ctx.tx.executemany("INSERT INTO effects VALUES (?)", [(order.n,) for order in orders])

    def lose() -> None:
        box._db.write(lambda tx: tx.run("UPDATE _onceward_lanes SET token = token + 1"))

    box = world.open(agent)
    with box.begin() as tx:
        tx.execute(TABLE)
    send(box, 1, 2)
    for _ in range(3):
        world.wait(60)

    assert ([[1, 2], [1], [2]], [(1,), (2,)]) == (calls, box.query(EFFECTS))


def test_a_coroutine_takes_batches_with_engines(tmp_path: Path) -> None:
    """Its writes, verdicts and replies are those of the function."""
    agent, calls = Agent("bob"), list[int]()

    @agent.on(Order, batch=5, within="50ms")
    async def take(orders: list[Order], ctx: AsyncBatchContext) -> None:
        calls.append(len(orders))
        await ctx.tx.executemany("INSERT INTO effects VALUES (?)", [(each.n,) for each in orders])
        ctx.reject(ctx.messages[0], "the first")

    with Postbox(tmp_path / "bob.db", agent=agent) as box:
        with box.begin() as tx:
            tx.execute(TABLE)
        send(box, *range(7))
        until(lambda: 7 == sum(box.file.stats()[each] for each in ("processed", "dead_letters")))

        assert [(n,) for n in range(7)] == box.query(EFFECTS)
        assert len(calls) == len(box.query(FATES))
    assert max(calls) <= 5


def test_the_lease_of_a_slow_coroutine_is_prolonged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Of each lane of its batch, until it returns."""
    agent, begun, end = Agent("bob"), Event(), Event()

    @agent.on(Order, batch=2)
    async def take(orders: list[Order]) -> None:
        begun.set()
        await asyncio.to_thread(end.wait)

    def leased_until(box: Postbox) -> list[int]:
        return [at for (at,) in box._db.read(LEASES)]

    with Postbox(tmp_path / "bob.db", agent=agent, lease=0.5) as box:
        send(box, 1)
        send(box, 2, session="t")
        assert begun.wait(30)
        first = leased_until(box)
        until(lambda: min(leased_until(box)) > max(first))
        end.set()
        until(lambda: 2 == box.file.stats()["processed"])

    assert 2 == len(first)
    assert "keeper waits" not in caplog.text


def test_a_coroutine_is_cancelled_with_a_message_of_its_batch(tmp_path: Path) -> None:
    """Its effects could not be kept; the other message is handled by another call."""
    agent, begun, calls = Agent("bob"), Event(), list[list[int]]()

    @agent.on(Order, batch=2)
    async def take(orders: list[Order]) -> None:
        calls.append([order.n for order in orders])
        if not begun.is_set():
            begun.set()
            await asyncio.sleep(3600)

    with Postbox(tmp_path / "bob.db", agent=agent) as box:
        first, second = *send(box, 1), *send(box, 2, session="t")
        assert begun.wait(30)
        box.cancel(first)
        until(lambda: 1 == box.file.stats()["processed"])
        states = {tuple(row) for row in box.query(STATES)}

    assert ({(first, "cancelled"), (second, "processed")}, [[1, 2], [2]]) == (states, calls)


def test_a_body_whose_own_validator_fails_is_tried_again_alone(world: World) -> None:
    """The handler gets the others; that message fails as if the handler had raised."""

    class Checked(Msg, type="checked"):
        n: int

        @field_validator("n")
        @classmethod
        def known(cls, n: int) -> int:
            if n < 0 and allowed:
                raise LookupError(n)
            return n

    agent, calls, allowed = Agent("bob"), list[list[int]](), list[bool]()

    @agent.on(Checked, batch=3, attempts=2)
    def take(bodies: list[Checked]) -> None:
        calls.append([body.n for body in bodies])

    box = world.open(agent)
    for n in (1, -2, 3):
        box.session("s").send("bob", Checked(n=n))
    allowed.append(True)
    world.settle()
    world.wait(3600)

    assert [[1, 3]] == calls
    [(reason, error, attempts)] = [tuple(row) for row in box.query(FATES)]
    assert ("attempts_spent", "LookupError", 2) == (reason, error[:11], attempts)


def test_two_processes_share_batches(world: World) -> None:
    """Each message is in one batch, whichever process takes it."""
    agent, calls = noting(within=0)
    one = world.open(agent)
    with Postbox(
        world.path("bob"), agent=agent, start=False, testing=Controls(clock=world.clock)
    ) as two:
        for n in range(12):
            send(one, n, session=f"s{n}")
        one._dispatcher.run_due()
        for box in (one, two, one, two):
            box._runners[0].run_due()

    assert list(range(12)) == sorted(n for call in calls for n in call)


def test_messages_for_readers_are_left(world: World) -> None:
    """An agent that leaves other types waiting takes its batch from behind them."""
    agent, calls = Agent("bob", unhandled="wait"), list[int]()

    @agent.on(Order, batch=2, within=0)
    def take(orders: list[Order]) -> None:
        calls.extend(order.n for order in orders)

    box = world.open(agent)
    box.session("s").send("bob", Other(n=1))
    send(box, 1, 2)
    world.settle()
    message = box.receive(Other, timeout=0)

    assert ([1, 2], True) == (calls, message is not None)


def test_a_returned_value_is_an_error(world: World) -> None:
    """A batch has no single reply."""
    agent = Agent("bob")
    agent.on(Order, batch=2, within=0, attempts=1)(lambda orders: orders)
    box = world.open(agent)
    send(box, 1)
    world.settle()
    [(reason, error, _)] = box.query(FATES)

    assert ("attempts_spent", True) == (reason, "ctx.reply" in error)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"batch": 0}, "batch"),
        ({"within": 1}, "within"),
        ({"batch": 2, "within": -1}, "within"),
        ({"batch": 2, "concurrency": 1}, "concurrency"),
        ({"batch": 2, "rate": "1/s"}, "rate"),
        ({"batch": 2, "unique_for": 5}, "unique_for"),
    ],
)
def test_a_wrong_batch_is_refused_where_it_is_written(options: HandlerOptions, said: str) -> None:
    """The error names the option."""
    with pytest.raises(InvalidArgument, match=said):
        Agent("bob").on(Order, **options)


def test_a_signature_that_takes_no_list_is_refused() -> None:
    """So is a list of another class, and a pattern that is not exact."""

    def single(order: Order) -> None: ...

    def others(orders: list[Other]) -> None: ...

    def fitting(orders: list[Order]) -> None: ...

    for call in (single, others):
        with pytest.raises(InvalidArgument, match="list"):
            Agent("bob").on(Order, batch=2)(call)
    with pytest.raises(InvalidArgument, match="exact"):
        Agent("bob").on("order.*", batch=2)(fitting)
