"""
What a handler does and what becomes of it.

Effects, reply and mark are one commit, and there are many ways not to get there.
"""

from __future__ import annotations

import logging
import traceback
from collections.abc import Callable
from itertools import pairwise
from threading import Event as Flag
from typing import TYPE_CHECKING

import apsw
import pytest
from pydantic import field_validator

from onceward import Agent, Context, Drop, Msg, Postbox, Reject, Retry, Tuning
from onceward.errors import InvalidArgument, StoreError
from onceward.events import Enqueued
from onceward.message.events import Event
from onceward.testing import Controls

if TYPE_CHECKING:
    from tests.journey.conftest import World


class Job(Msg, type="job"):
    """A task with a number."""

    n: int


class Other(Msg, type="other"):
    """A task without a handler."""

    n: int


class Odd(Msg, type="odd"):
    """A task whose check goes wrong itself."""

    n: int

    @field_validator("n")
    @classmethod
    def _fails(cls, value: int) -> int:
        if value > 0:
            msg = "a validator with a bug"
            raise RuntimeError(msg)
        return value


Work = Callable[[Job, Context], object]


def worker(work: Work, *, attempts: int | None = None) -> Agent:
    """Return an agent that handles jobs by *work*."""
    agent = Agent("billing")

    @agent.on(Job, attempts=attempts)
    def handle(job: Job, ctx: Context) -> object:
        return work(job, ctx)

    return agent


def prepared(
    world: World, work: Work, *, attempts: int | None = None, **settings: object
) -> tuple[Postbox, Postbox]:
    """Return a sender and a receiver that has a table for effects."""
    billing = world.open(worker(work, attempts=attempts), **settings)
    with billing.begin() as tx:
        tx.execute("CREATE TABLE effects (n UNIQUE)")
    return world.open("shop"), billing


def effects(box: Postbox) -> list[int]:
    """Return the numbers of the jobs that had their effect, in order."""
    return [n for (n,) in box._db.read("SELECT n FROM effects ORDER BY rowid")]


def write(ctx: Context, n: int) -> None:
    """Have an effect."""
    ctx.tx.execute("INSERT INTO effects VALUES (?)", (n,))


def test_effects_reply_and_mark_are_one_commit(world: World) -> None:
    """
    A process that dies before the commit leaves neither effect nor reply nor mark.

    The next run leaves all three once.
    """
    runs: list[int] = []

    def work(job: Job, ctx: Context) -> Other:
        runs.append(job.n)
        write(ctx, job.n)
        if len(runs) == 1:
            raise world.crash
        return Other(n=job.n)  # the reply: the message asks for one

    shop, billing = prepared(world, work)
    shop.request("billing", Job(n=1))
    shop.run_until_idle()
    with pytest.raises(world.crash):
        billing.run_until_idle()
    between = effects(billing), billing.file.stats()["processed"], billing.file.stats()["enqueued"]
    world.wait(31)

    assert ([], 0, 0) == between
    assert ([1], 1, 1) == (
        effects(billing),
        billing.file.stats()["processed"],
        billing.file.stats()["enqueued"],
    )


@pytest.mark.parametrize(
    ("declare", "said"),
    [
        (lambda agent: agent.on(lambda _: None), "name what it handles in brackets: @agent.on"),
        (
            lambda agent: agent.runs(lambda _: None),
            "name what it handles in brackets: @agent.runs",
        ),
        (lambda agent: agent.on("job")(lambda: None), "must take the message"),
        (lambda agent: agent.runs()(lambda: None), "must take only the run"),
        (lambda agent: agent.runs()(lambda _run, _context: None), "must take only the run"),
    ],
)
def test_a_declaration_that_would_handle_nothing_is_refused(
    declare: Callable[[Agent], object], said: str
) -> None:
    """A mistake in a decorator is told where it stands, not by messages that are never handled."""
    agent = Agent("billing")
    with pytest.raises(InvalidArgument, match=said):
        declare(agent)

    assert ([], []) == (agent.handlers, agent.sessions)


def test_what_a_handler_did_not_mean_to_raise_is_logged(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """
    A mistake is logged at WARNING for each attempt, the first time with its traceback.

    The traceback begins with the handler. A Retry or Reject is not logged.
    """

    def work(job: Job, ctx: Context) -> None:
        if ctx.message.attempt < 3:
            raise ValueError("a bug")
        raise Retry("not now") if ctx.message.attempt == 3 else Reject("never")

    caplog.set_level(logging.DEBUG)
    shop, _ = prepared(world, work)
    message = shop.send("billing", Job(n=1))
    for _ in range(4):
        world.settle()
        world.wait(60)

    said = f"handler failed agent=billing session=default message_id={message} type=job attempt="
    assert "failed" == shop.state(message)
    assert [
        ("WARNING", f"{said}1 error='ValueError: a bug'", True),
        ("WARNING", f"{said}2 error='ValueError: a bug'", False),
    ] == [(line.levelname, line.getMessage(), line.exc_info is not None) for line in caplog.records]
    traced = caplog.records[0].exc_info
    assert traced is not None
    assert ["handle", "work"] == [frame.name for frame in traceback.extract_tb(traced[2])]


def test_a_handler_that_dies_takes_nothing_of_itself_along(world: World) -> None:
    """Writes of a handler whose thread was ended are not committed with its neighbour's effects."""
    seen: list[int] = []

    def work(job: Job, ctx: Context) -> None:
        seen.append(job.n)
        write(ctx, job.n)
        if job.n == 2 and seen.count(2) == 1:
            raise SystemExit

    shop, billing = prepared(world, work)
    shop.send_many([("billing", Job(n=n)) for n in (1, 2)])
    world.claim_many(billing, 10)
    shop.run_until_idle()
    with pytest.raises(SystemExit):
        billing.run_until_idle()
    between = effects(billing)
    world.wait(31)

    assert 2 not in between
    assert [1, 2] == effects(billing)
    assert 2 == billing.file.stats()["processed"]


def test_an_exception_undoes_only_its_own_writes(world: World) -> None:
    """Of three messages in one commit the middle one fails: its neighbours keep their effects."""

    def work(job: Job, ctx: Context) -> None:
        write(ctx, job.n)
        if job.n == 2:
            raise ValueError(job.n)

    shop, billing = prepared(world, work, handler_attempts=1)
    for n in (1, 2, 3):
        shop.session(f"s{n}").send("billing", Job(n=n))
    world.claim_many(billing, 10)
    world.settle()

    assert [1, 3] == effects(billing)
    assert ["attempts_spent"] == [letter.reason for letter in billing.dead_letters.list()]


def test_a_statement_that_rolls_everything_back_costs_no_neighbour(world: World) -> None:
    """
    A statement may make SQLite undo the shared transaction.

    A message whose effects went with it is handled again.
    """

    def work(job: Job, ctx: Context) -> None:
        if job.n == 2:
            ctx.tx.execute("INSERT OR ROLLBACK INTO effects VALUES (0)")
        write(ctx, job.n)

    shop, billing = prepared(world, work, handler_attempts=3)
    with billing.begin() as tx:
        tx.execute("INSERT INTO effects VALUES (0)")
    for n in (1, 2, 3):
        shop.session(f"s{n}").send("billing", Job(n=n))
    world.claim_many(billing, 10)
    for _ in range(5):
        world.wait(31)

    assert [0, 1, 3] == sorted(effects(billing))
    assert 2 == billing.file.stats()["processed"]


@pytest.mark.parametrize("end", ["COMMIT", "ROLLBACK", "RELEASE job", "ROLLBACK TO job"])
def test_a_handler_cannot_end_the_shared_transaction(world: World, end: str) -> None:
    """
    A handler that speaks COMMIT or ROLLBACK itself fails alone.

    Effects and marks of the others stay together.
    """

    def work(job: Job, ctx: Context) -> None:
        write(ctx, job.n)
        if job.n == 2:
            ctx.tx.execute(end)
            raise ValueError(end)

    shop, billing = prepared(world, work, handler_attempts=3)
    for n in (1, 2, 3):
        shop.session(f"s{n}").send("billing", Job(n=n))
    world.claim_many(billing, 10)
    for _ in range(5):
        world.wait(31)

    assert [1, 3] == sorted(effects(billing))
    assert 2 == billing.file.stats()["processed"]


def test_a_neighbour_that_may_run_once_survives(world: World) -> None:
    """A handler whose effects were undone by another one's fault has not had its attempt."""

    def work(job: Job, ctx: Context) -> None:
        write(ctx, job.n)
        if job.n == 2:
            ctx.tx.execute("ROLLBACK")

    shop, billing = prepared(world, work, attempts=1)
    for n in (1, 2, 3):
        shop.session(f"s{n}").send("billing", Job(n=n))
    world.claim_many(billing, 10)
    for _ in range(5):
        world.wait(31)

    assert [1, 3] == sorted(effects(billing))


def test_retry_says_when(world: World) -> None:
    """Retry(after=) puts the message back until then; its attempts count."""
    attempts: list[int] = []

    def work(_: Job, ctx: Context) -> None:
        attempts.append(ctx.message.attempt)
        if len(attempts) < 3:
            raise Retry(after=100)

    shop, billing = prepared(world, work)
    shop.send("billing", Job(n=1))
    world.settle()
    world.wait(99)
    early = list(attempts)
    world.wait(1)
    world.wait(100)

    assert ([1], [1, 2, 3]) == (early, attempts)
    assert 1 == billing.file.stats()["processed"]


def test_backoff_doubles_and_survives_a_restart(world: World) -> None:
    """Failures are tried again after 1, 2, 4 … seconds, by any process that is alive then."""
    at: list[int] = []

    def work(_: Job, __: Context) -> None:
        at.append(world.clock.now())
        raise ValueError

    shop, _ = prepared(world, work)
    shop.send("billing", Job(n=1))
    for _ in range(20):
        world.wait(1)
        world.reopen()

    assert [1, 2, 4, 8] == [(later - sooner) // 1000 for sooner, later in pairwise(at)]


def test_reject_and_drop_end_a_message(world: World) -> None:
    """
    Reject makes a dead letter with its reason, Drop leaves no trace but the count.

    The effects of both are undone.
    """

    def work(job: Job, ctx: Context) -> None:
        write(ctx, job.n)
        raise Reject("never") if job.n == 1 else Drop

    shop, billing = prepared(world, work)
    rejected, dropped = shop.send("billing", Job(n=1)), shop.send("billing", Job(n=2))
    world.settle()

    assert [("rejected", "never")] == [
        (letter.reason, letter.last_error) for letter in billing.dead_letters.list()
    ]
    assert ("failed", "acked") == (shop.state(rejected), shop.state(dropped))
    assert (1, []) == (billing.file.stats()["dropped"], effects(billing))


def test_a_wrong_payload_never_reaches_the_handler(world: World) -> None:
    """A body that does not fit is rejected before the handler runs, and the lane goes on."""
    ran: list[int] = []
    shop, billing = prepared(world, lambda job, _: ran.append(job.n))
    shop.send("billing", {"n": "many"}, type="job")
    shop.send("billing", Job(n=2))
    world.settle()

    assert [2] == ran
    assert ["rejected"] == [letter.reason for letter in billing.dead_letters.list()]


def test_a_validator_with_a_bug_is_an_ordinary_failure(world: World) -> None:
    """
    A model whose own check raises an odd error costs its message only.

    The worker and the neighbours go on.
    """
    ran: list[int] = []
    agent = worker(lambda job, _: ran.append(job.n))

    @agent.on(Odd)
    def handle(odd: Odd) -> None:
        ran.append(-odd.n)

    shop, billing = world.open("shop"), world.open(agent, handler_attempts=1)
    shop.send("billing", {"n": 1}, type="odd")
    shop.send("billing", Job(n=2))
    world.settle()
    world.wait(31)

    assert [2] == ran
    assert 1 == len(billing.dead_letters.list())


def test_unhandled_mail_is_dead_or_waits(world: World) -> None:
    """
    A message without a handler becomes a dead letter.

    Where the agent says so, it waits for a reader instead.
    """
    waiting = Agent("patient", unhandled="wait")
    ran: list[int] = []

    @waiting.on(Job)
    def handle(job: Job) -> None:
        ran.append(job.n)

    shop, strict = prepared(world, lambda *_: None)
    patient = world.open(waiting)
    for name in ("billing", "patient"):
        shop.send(name, Other(n=1))
        shop.send(name, Job(n=2))
    world.settle()
    message = patient.receive(Other)

    assert ["unhandled"] == [letter.reason for letter in strict.dead_letters.list()]
    assert message is not None
    message.ack()
    assert ([2], 0) == (ran, patient.file.stats()["inbox_pending"])


def test_attempts_bound_a_handler(world: World) -> None:
    """
    A handler that always fails runs as often as it may.

    Then its message is a dead letter with the last error.
    """
    ran: list[int] = []

    def work(_: Job, ctx: Context) -> None:
        ran.append(ctx.message.attempt)
        raise ValueError("always")

    shop, billing = prepared(world, work, attempts=3)
    message = shop.send("billing", Job(n=1))
    for _ in range(5):
        world.wait(61)
    [letter] = billing.dead_letters.list()

    assert [1, 2, 3] == ran
    assert ("attempts_spent", "ValueError: always", 3) == (
        letter.reason,
        letter.last_error,
        letter.attempts,
    )
    assert "failed" == shop.state(message)


def test_a_budget_that_is_lowered_does_not_hide_the_failure(world: World) -> None:
    """
    A message that has no attempt left when its worker comes back with fewer is a dead letter.

    The letter tells what its handler said.
    """

    def work(_: Job, __: Context) -> None:
        raise ValueError("always")

    shop, billing = prepared(world, work)
    message = shop.send("billing", Job(n=1))
    for _ in range(3):
        world.wait(61)
    billing.close()
    world.clock.forward(60)
    billing = world.open(worker(work), handler_attempts=2)
    billing.run_until_idle()
    [letter] = billing.dead_letters.list()

    assert (message, "attempts_spent") == (letter.id, letter.reason)
    assert (letter.last_error or "").endswith(
        "or the budget was lowered; it failed last with ValueError: always"
    )


def test_the_default_budget_is_ten_attempts(world: World) -> None:
    """Without a word of the handler its message is attempted ten times."""
    ran: list[int] = []

    def work(_: Job, ctx: Context) -> None:
        ran.append(ctx.message.attempt)
        raise ValueError

    shop, _ = prepared(world, work)
    shop.send("billing", Job(n=1))
    for _ in range(15):
        world.wait(61)

    assert list(range(1, 11)) == ran


def test_a_failing_lane_holds_only_itself(world: World) -> None:
    """
    While the head of one session waits for its retry, other sessions go on.

    The session's own order is kept.
    """
    fail = [True]

    def work(job: Job, ctx: Context) -> None:
        if job.n == 1 and fail:
            fail.pop()
            raise ValueError
        write(ctx, job.n)

    shop, billing = prepared(world, work)
    one, two = shop.session("one"), shop.session("two")
    one.send("billing", Job(n=1))
    one.send("billing", Job(n=2))
    two.send("billing", Job(n=3))
    world.settle()
    before = effects(billing)
    world.wait(1)

    assert ([3], [3, 1, 2]) == (before, effects(billing))


def test_a_next_head_starts_with_a_budget_of_its_own(world: World) -> None:
    """When a failing head expires, the message behind it has all its attempts."""
    ran: list[int] = []

    def work(job: Job, ctx: Context) -> None:
        ran.append(ctx.message.attempt if job.n == 2 else 0)
        raise ValueError

    shop, billing = prepared(world, work, attempts=4)
    shop.send("billing", Job(n=1), ttl=5)
    shop.send("billing", Job(n=2))
    world.settle()
    world.wait(1)
    world.wait(2)
    world.clock.forward(3)
    billing.file.run_maintenance()
    for _ in range(6):
        world.wait(61)

    assert [1, 2, 3, 4] == [attempt for attempt in ran if attempt]


def test_failures_of_a_message_behind_do_not_count_against_the_head(world: World) -> None:
    """A message for a reader outlives another one of its lane that kept killing its worker."""
    agent = Agent("billing", unhandled="wait")

    @agent.on(Job)
    def handle(_: Job) -> None:
        raise world.crash

    shop, billing = world.open("shop"), world.open(agent)
    waiting = shop.send("billing", Other(n=1))
    shop.send("billing", Job(n=2))
    shop.run_until_idle()
    for _ in range(14):
        world.clock.forward(31)
        try:
            billing.run_until_idle()
        except world.crash:
            continue
    world.clock.forward(31)
    message = billing.receive(Other)

    assert message is not None
    assert (waiting, 1) == (message.id, message.attempt)
    message.ack()


def test_a_message_behind_that_kills_its_worker_is_found(world: World) -> None:
    """Poison is buried after its attempts though a message for a reader stands before it."""
    agent = Agent("billing", unhandled="wait")
    runs: list[int] = []

    @agent.on(Job, attempts=3)
    def handle(job: Job) -> None:
        runs.append(job.n)
        raise world.crash

    shop, billing = world.open("shop"), world.open(agent)
    shop.send("billing", Other(n=1))
    shop.send("billing", Job(n=2))
    shop.run_until_idle()
    for _ in range(8):
        world.clock.forward(31)
        try:
            billing.run_until_idle()
        except world.crash:
            continue

    assert 3 == len(runs)
    assert ["attempts_spent"] == [letter.reason for letter in billing.dead_letters.list()]


def test_poison_is_found_and_neighbours_survive(world: World) -> None:
    """
    A message that ends its process is buried after its attempts.

    Those before and behind it take effect once.
    """
    ran: list[int] = []

    def work(job: Job, ctx: Context) -> None:
        ran.append(job.n)
        write(ctx, job.n)
        if job.n == 5:
            raise world.crash

    shop, billing = prepared(world, work, attempts=3)
    shop.send_many([("billing", Job(n=n)) for n in range(10)])
    shop.run_until_idle()
    world.claim_many(billing, 10)
    for _ in range(20):
        world.clock.forward(31)
        try:
            billing.run_until_idle()
        except world.crash:
            (shop, billing) = world.reopen("shop", "billing")
            world.claim_many(billing, 10)

    assert [0, 1, 2, 3, 4, 6, 7, 8, 9] == effects(billing)
    assert ["attempts_spent"] == [letter.reason for letter in billing.dead_letters.list()]


def test_poison_at_the_end_of_a_batch_is_found_soon(world: World) -> None:
    """A message can kill as many processes as it has attempts, wherever it stands in its lane."""
    crashes = 0

    def work(job: Job, ctx: Context) -> None:
        write(ctx, job.n)
        if job.n == 19:
            raise world.crash

    shop, billing = prepared(world, work, attempts=3, tuning=Tuning(share_commit_for=3600))
    shop.send_many([("billing", Job(n=n)) for n in range(20)])
    shop.run_until_idle()
    world.claim_many(billing, 200)
    for _ in range(40):
        world.clock.forward(31)
        try:
            billing.run_until_idle()
        except world.crash:
            crashes += 1
            (shop, billing) = world.reopen("shop", "billing")
            world.claim_many(billing, 200)

    assert list(range(19)) == effects(billing)
    assert 6 > crashes


def test_a_message_that_expires_behind_a_slow_one_is_not_handled(world: World) -> None:
    """The time to live is judged when a message's turn comes, not when its batch was claimed."""
    ran: list[int] = []

    def work(job: Job, _: Context) -> None:
        ran.append(job.n)
        world.clock.forward(60)

    shop, billing = prepared(world, work)
    shop.send("billing", Job(n=1))
    shop.send("billing", Job(n=2), ttl=30)
    shop.run_until_idle()
    world.claim_many(billing, 10)
    billing.run_until_idle()

    assert [1] == ran
    assert 1 == billing.file.stats()["expired"]


def test_a_handler_that_returns_its_own_model_to_nobody(world: World) -> None:
    """
    A reply that cannot be sent fails the handler.

    Its effects are undone with it, and the reason is kept.
    """

    def work(job: Job, ctx: Context) -> Other:
        write(ctx, job.n)
        return Other(n=1)

    shop, billing = prepared(world, work, handler_attempts=1)
    shop.send("billing", Job(n=1), reply_to="nobody")
    world.settle()
    [letter] = billing.dead_letters.list()

    assert (letter.last_error or "").startswith("UnknownRecipient")
    assert [] == effects(billing)


def test_a_late_worker_changes_nothing(world: World) -> None:
    """
    A worker whose lease ran out while it worked loses.

    Its writes are undone, the new owner's stand.
    """
    second: list[Postbox] = []

    def work(job: Job, ctx: Context) -> None:
        if not second:
            world.clock.forward(31)
            second.append(
                Postbox(
                    world.path("billing"),
                    agent=rival,
                    start=False,
                    testing=Controls(clock=world.clock),
                )
            )
            world.elsewhere(second[0].run_until_idle)
        write(ctx, 100 + job.n)

    rival = worker(lambda job, ctx: write(ctx, job.n))
    shop, billing = prepared(world, work)
    shop.send("billing", Job(n=1))
    world.settle()
    second[0].close()
    world.wait(31)

    assert [1] == effects(billing)
    assert 1 == billing.file.stats()["processed"]


def test_a_lost_lease_undoes_its_group_and_all_are_handled_again(world: World) -> None:
    """
    Messages that share a commit with a late one are rolled back with it.

    They take effect once afterwards.
    """
    rivals: list[Postbox] = []

    def work(job: Job, ctx: Context) -> None:
        if job.n == 2 and not rivals:
            world.clock.forward(31)
            rivals.append(
                Postbox(
                    world.path("billing"),
                    agent=worker(never),
                    start=False,
                    testing=Controls(clock=world.clock),
                )
            )
            world.elsewhere(lambda: taken(rivals[0]))
        write(ctx, job.n)

    def never(*_: object) -> None:
        raise AssertionError

    def taken(rival: Postbox) -> None:
        message = rival.receive()
        assert message is not None
        message.reject("taken")

    shop, billing = prepared(world, work, tuning=Tuning(share_commit_for=0))
    for n in (1, 2, 3):
        shop.session(f"s{n}").send("billing", Job(n=n))
    shop.run_until_idle()
    world.claim_many(billing, 10)
    world.settle()
    rivals[0].close()
    world.wait(31)
    buried = [letter.last_error for letter in billing.dead_letters.list()]

    assert 3 == len(effects(billing)) + len(buried)
    assert len(effects(billing)) == billing.file.stats()["processed"]


def test_hooks_hear_nothing_of_what_was_undone(world: World) -> None:
    """A message promised by a handler that failed was never enqueued, and no hook hears of it."""

    def work(job: Job, ctx: Context) -> None:
        ctx.send("shop", Other(n=job.n))
        if job.n == 2:
            raise ValueError

    shop, billing = prepared(world, work, handler_attempts=1)
    heard: list[Event] = []
    billing.on(Enqueued, heard.append)
    for n in (1, 2, 3):
        shop.session(f"s{n}").send("billing", Job(n=n))
    world.claim_many(billing, 10)
    world.settle()

    assert 2 == billing.file.stats()["enqueued"]
    assert 2 == len(heard)


def test_the_transaction_ends_with_the_handler(world: World) -> None:
    """A transaction that a handler kept for later is closed: nothing slips into another commit."""
    kept: list[Context] = []

    def work(job: Job, ctx: Context) -> None:
        write(ctx, job.n)
        kept.append(ctx)

    shop, billing = prepared(world, work)
    shop.send("billing", Job(n=1))
    world.settle()

    with pytest.raises(StoreError):
        kept[0].tx.execute("INSERT INTO effects VALUES (7)")
    assert [1] == effects(billing)


def test_a_handlers_own_sql_errors_are_its_own(world: World) -> None:
    """What SQLite says of a handler's statement reaches the handler, who may go on."""

    def work(job: Job, ctx: Context) -> None:
        write(ctx, job.n)
        with pytest.raises(apsw.ConstraintError):
            write(ctx, job.n)

    shop, billing = prepared(world, work)
    shop.send("billing", Job(n=1))
    world.settle()

    assert [1] == effects(billing)


def test_a_handler_may_use_its_postbox_directly(world: World) -> None:
    """
    A handler that sends through the postbox, not its context, does not have to wait.

    That holds whichever messages share the commit.
    """

    def work(job: Job, ctx: Context) -> None:
        if job.n == 1:
            write(ctx, job.n)
        else:
            billing.send("shop", Other(n=job.n))

    shop, billing = prepared(world, work, busy_timeout=60.0, handler_attempts=1)
    for n in (1, 2):
        shop.session(f"s{n}").send("billing", Job(n=n))
    world.claim_many(billing, 10)
    world.settle()

    assert [] == billing.dead_letters.list()
    assert 1 == billing.file.stats()["enqueued"]


def test_a_handler_may_open_a_transaction_of_its_own_around_its_context(world: World) -> None:
    """Mail promised through the context in the handler's own block does not wait for its end."""

    def work(job: Job, ctx: Context) -> None:
        with billing.begin() as tx:
            tx.execute("INSERT INTO effects VALUES (?)", (job.n,))
            ctx.send("shop", Other(n=job.n))

    shop, billing = prepared(world, work, busy_timeout=60.0, handler_attempts=1)
    shop.send("billing", Job(n=1))
    world.settle()

    assert [] == billing.dead_letters.list()
    assert [1] == effects(billing)


def test_extending_a_lease_keeps_it(world: World) -> None:
    """A handler that extends its lease is not overtaken before the extension ends."""
    claimed: list[int] = []

    def work(job: Job, ctx: Context) -> None:
        ctx.extend(600)
        world.clock.forward(300)
        rival = Postbox(
            world.path("billing"),
            agent=worker(lambda *_: None),
            start=False,
            testing=Controls(clock=world.clock),
        )
        world.elsewhere(lambda: claimed.append(rival.run_until_idle()))
        rival.close()
        write(ctx, job.n)

    shop, billing = prepared(world, work)
    shop.send("billing", Job(n=1))
    world.settle()

    assert ([0], [1]) == (claimed, effects(billing))


def test_the_same_job_from_two_senders_is_two_jobs(world: World) -> None:
    """Ids are unique per sender: two agents that chose the same id both have their effect."""
    shop, billing = prepared(world, lambda job, ctx: write(ctx, job.n))
    store = world.open("store")
    shop.send("billing", Job(n=1), message_id="same")
    store.send("billing", Job(n=2), message_id="same")
    world.settle()

    assert [1, 2] == sorted(effects(billing))


def test_mail_for_others_lets_a_worker_rest(world: World) -> None:
    """
    A worker that found only mail for readers sleeps until the next commit.

    Then it handles the new mail.
    """
    agent, done = Agent("billing", unhandled="wait"), Flag()

    @agent.on(Job)
    def handle(_: Job) -> None:
        done.set()

    shop, billing = world.open("shop"), world.open(agent)
    [worker] = billing._workers
    shop.send("billing", Other(n=1))
    shop.run_until_idle()

    assert (0, None) == (worker.round(), worker._idle_for(nothing_here=True))
    worker.start()
    try:
        shop.send("billing", Job(n=1))
        shop.run_until_idle()
        assert done.wait(60)
    finally:
        worker.stop(60)


def test_mail_for_others_does_not_hide_what_is_wanted(world: World) -> None:
    """The wanted message is found behind any number of lanes with mail for readers."""
    agent, ran = Agent("billing", unhandled="wait"), list[int]()

    @agent.on(Job)
    def handle(job: Job) -> None:
        ran.append(job.n)

    shop, _ = world.open("shop"), world.open(agent)
    for number in range(120):
        shop.send("billing", Other(n=number), ordering_key=f"lane {number}")
    shop.send("billing", Job(n=7))
    world.settle()

    assert [7] == ran


def test_a_message_received_inside_a_handler_is_leased_by_a_commit_of_its_own(
    world: World,
) -> None:
    """
    A handler without writes takes another message without opening its transaction.

    The ack opens it.
    """
    agent, held = Agent("billing", unhandled="wait"), list[bool]()

    @agent.on(Job)
    def work(job: Job) -> None:
        message = billing.receive(Other)
        assert message is not None
        held.append(billing._db.writer.held)
        message.ack()
        held.append(billing._db.writer.held)

    billing, shop = world.open(agent), world.open("shop")
    shop.send("billing", Job(n=1))
    shop.session("aside").send("billing", Other(n=2))
    world.settle()

    assert ([False, True], 2) == (held, billing.file.stats()["processed"])
