"""Requests of handlers: the call ends, and another one has the replies."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest

from onceward import Agent, AsyncContext, AsyncPostbox, Context, Drop, Msg, Reject, Retry, Ticket
from onceward.core import maintenance
from onceward.errors import AnswerTimeout, Conflict, InvalidArgument, RequestFailed
from onceward.events import Processed, Retried
from onceward.features.requests.handler import HandlerRequests, MadeRequest
from onceward.testing import Harness

if TYPE_CHECKING:
    from pathlib import Path

    from tests.journey.conftest import World

NOTES = "CREATE TABLE IF NOT EXISTS notes (text TEXT)"
OPEN = "SELECT count(*) FROM _onceward_pending_replies WHERE state = 'open'"


class Job(Msg, type="job"):
    """A task with a number."""

    n: int


class Question(Msg, type="question"):
    """A question to another agent."""

    n: int


def oracle(calls: list[int], name: str = "oracle") -> Agent:
    """Return an agent that answers with a tenfold number, and notes what it was asked."""
    agent = Agent(name)

    @agent.on(Question)
    def answer(question: Question) -> int:
        calls.append(question.n)
        if question.n < 0:
            raise Reject("negative")
        return 10 * question.n

    return agent


def test_a_handler_is_called_again_with_the_replies(world: World) -> None:
    """Nothing is asked twice; what the calls wrote before the last one is gone; one attempt."""
    asked: list[int] = []
    calls: list[tuple[int, int]] = []
    agent = Agent("bob")

    @agent.on(Job)
    def work(job: Job, ctx: Context) -> int:
        calls.append((job.n, ctx.message.attempt))
        ctx.tx.execute(NOTES)
        ctx.tx.execute("INSERT INTO notes VALUES ('begun')")
        one = ctx.ask("oracle", Question(n=job.n), reply=int)
        two = ctx.ask("oracle", Question(n=one), reply=int)
        ctx.tx.execute("INSERT INTO notes VALUES (?)", (f"{one} {two}",))
        return one + two

    world.open(oracle(asked))
    box, alice = world.open(agent), world.open("alice")
    ticket = alice.request("bob", Job(n=1))
    world.settle()

    assert ([1, 10], [(1, 1)] * 3) == (asked, calls)
    assert [("begun",), ("10 100",)] == box.query("SELECT text FROM notes")
    assert 110 == alice.result(ticket, reply=int)
    assert [] == box.file.check()


def test_requests_may_be_made_before_their_replies_are_needed(world: World) -> None:
    """Both leave with the first end of the call, and the lane waits for both."""
    asked: list[int] = []
    agent, calls = Agent("bob"), []

    @agent.on(Job)
    def work(job: Job, ctx: Context) -> None:
        tickets = [ctx.request("oracle", Question(n=n)) for n in (1, 2)]
        calls.append([ctx.result(each, reply=int) for each in tickets])

    world.open(oracle(asked))
    box = world.open(agent)
    box.send("bob", Job(n=1))
    box.send("bob", Job(n=2))
    world.settle()

    assert ([1, 2, 1, 2], [[10, 20], [10, 20]]) == (asked, calls)


def test_a_request_whose_reply_is_not_needed_leaves_with_the_commit(world: World) -> None:
    """It is a message of the handler like any other."""
    asked: list[int] = []
    agent = Agent("bob")

    @agent.on(Job)
    def work(job: Job, ctx: Context) -> None:
        ctx.request("oracle", Question(n=job.n))
        if job.n < 0:
            raise Reject

    world.open(oracle(asked))
    box = world.open(agent)
    for n in (-1, 5):
        box.send("bob", Job(n=n))
    world.settle()

    assert [5] == asked


def test_no_lock_is_held_and_other_lanes_go_on(world: World) -> None:
    """While a reply is awaited the file is free; messages behind it in its lane wait."""
    agent, handled = Agent("bob"), []

    @agent.on(Job)
    def work(job: Job, ctx: Context) -> None:
        if job.n == 1:
            ctx.ask("oracle", Question(n=1), reply=int)
        handled.append(job.n)

    box = world.open(agent, hold_unknown=True)
    for session, n in (("a", 1), ("a", 2), ("b", 3)):
        box.session(session).send("bob", Job(n=n))
    world.settle()
    before = [*handled]
    [(reason,)] = box.query("SELECT reason FROM onceward_inbox WHERE reason IS NOT NULL")
    world.open(oracle([]))
    world.wait(60)
    world.wait(60)

    assert ([3], [3, 1, 2]) == (before, handled)
    assert "waits for the reply to" in reason


def test_a_call_that_ends_to_wait_is_told_as_no_retry(world: World) -> None:
    """It is not an attempt, so programs that watch for trouble hear of failures only."""
    agent, told = Agent("bob"), []

    @agent.on(Job)
    def work(job: Job, ctx: Context) -> None:
        ctx.ask("oracle", Question(n=job.n), reply=int)
        if ctx.message.attempt == 1:
            raise ValueError(job.n)

    world.open(oracle([]))
    box = world.open(agent)
    box.on(Retried, lambda event: told.append((event.attempt, event.error)))
    box.on(Processed, lambda event: told.append((event.message_id, event.outcome)))
    sent = box.send("bob", Job(n=1))
    world.settle()
    world.wait(60)

    assert [(1, "ValueError: 1"), (sent, "processed")] == told


def test_it_goes_on_after_a_restart(world: World) -> None:
    """Another process has the reply; the question was not asked again."""
    asked: list[int] = []
    agent, done = Agent("bob"), []

    @agent.on(Job)
    def work(job: Job, ctx: Context) -> None:
        done.append(ctx.ask("oracle", Question(n=job.n), reply=int))

    box = world.open(agent, hold_unknown=True)
    box.send("bob", Job(n=1))
    world.settle()
    (box,) = world.reopen("bob")
    world.open(oracle(asked))
    world.wait(60)
    (box, _) = world.reopen("bob", "oracle")
    world.settle()

    assert ([1], [10]) == (asked, done)
    assert [(0,)] == box.query(OPEN)


def test_failed_and_late_replies_are_exceptions(world: World) -> None:
    """A handler that catches them goes on, and later calls find the same."""
    agent, told = Agent("bob"), []

    @agent.on(Job)
    def work(job: Job, ctx: Context) -> None:
        try:
            ctx.ask("oracle", Question(n=-1), reply=int)
        except RequestFailed as error:
            first = error.reason
        try:
            ctx.ask("deaf", Question(n=1), reply=int, timeout=30)
        except AnswerTimeout:
            told.append((first, ctx.ask("oracle", Question(n=2), reply=int)))

    world.open(oracle([]))
    box = world.open(agent, hold_unknown=True)
    box.send("bob", Job(n=1))
    world.settle()
    early = [*told]
    world.wait(31)
    world.settle()

    assert ([], [("rejected", 20)]) == (early, told)


def test_another_question_at_the_same_place_is_refused(world: World) -> None:
    """The error names the request; nothing else is asked."""
    asked: list[int] = []
    agent, count = Agent("bob"), iter(range(1, 9))

    @agent.on(Job, no_retry=Conflict)
    def work(job: Job, ctx: Context) -> None:
        ctx.ask("oracle", Question(n=next(count)), reply=int)

    world.open(oracle(asked))
    box = world.open(agent)
    box.send("bob", Job(n=1))
    world.settle()
    [letter] = box.dead_letters.list()

    assert ([1], "rejected") == (asked, letter.reason)
    assert "request 1 of this handler differs from that of its first call" in str(letter.last_error)


def test_a_question_with_its_keys_in_another_order_is_the_same(world: World) -> None:
    """The second call gets the reply to the question of the first one."""
    oracle, agent, replies = Agent("oracle"), Agent("bob"), list[int]()
    questions = iter([{"a": 1, "b": 2}, {"b": 2, "a": 1}])

    @oracle.on("sum")
    def add(question: dict[str, int]) -> int:
        return sum(question.values())

    @agent.on(Job)
    def work(job: Job, ctx: Context) -> None:
        replies.append(ctx.ask("oracle", next(questions), type="sum", reply=int))

    world.open(oracle)
    box = world.open(agent)
    box.send("bob", Job(n=1))
    world.settle()

    assert [3] == replies


def test_an_agent_may_ask_itself(world: World) -> None:
    """The question does not wait behind the message whose handler asks it."""
    agent, done = Agent("bob"), []

    @agent.on(Question)
    def answer(question: Question) -> int:
        return -question.n

    @agent.on(Job)
    def work(job: Job, ctx: Context) -> None:
        done.append(ctx.ask("bob", Question(n=job.n), reply=int))

    box = world.open(agent)
    box.send("bob", Job(n=1))
    world.settle()

    assert [-1] == done


@pytest.mark.parametrize("options", [{"key": "k"}, {"message_id": "x"}])
def test_requests_are_told_apart_by_their_order(world: World, options: dict[str, Any]) -> None:
    """A key or an id of their own would make two of them one."""
    agent = Agent("bob")

    @agent.on(Job, attempts=1)
    def work(job: Job, ctx: Context) -> None:
        with pytest.raises(InvalidArgument, match="by their order"):
            ctx.ask("bob", 1, reply=int, **options)

    box = world.open(agent)
    box.send("bob", Job(n=1))
    world.settle()

    assert [] == box.dead_letters.list()


def test_a_reply_between_the_look_and_the_end_of_the_call_is_seen(world: World) -> None:
    """The call that would wait for it is repeated at once."""
    agent, calls, done = Agent("bob"), list[int](), list[int]()

    def reply_now() -> None:
        [question] = [oracle_box.receive()]
        assert question is not None
        question.reply(10)
        question.ack()
        oracle_box.run_until_idle()

    @agent.on(Job)
    def work(job: Job, ctx: Context) -> None:
        calls.append(job.n)
        try:
            done.append(ctx.ask("oracle", Question(n=1), reply=int))
        except BaseException:
            if len(calls) == 2:  # it has looked, and found no reply
                reply_now()
            raise

    oracle_box, box = world.open("oracle"), world.open(agent)
    box.send("bob", Job(n=1))
    world.settle()
    box._db.write(lambda tx: tx.run("UPDATE _onceward_lanes SET due_at = NULL"))
    world.settle()

    assert ([1, 1, 1], [10]) == (calls, done)


def test_coroutines_ask_at_the_same_time(tmp_path: Path) -> None:
    """Both questions leave with one end of the call."""
    asked: list[int] = []
    agent = Agent("bob")
    calls: list[int] = []

    @agent.on(Job)
    async def work(job: Job, ctx: AsyncContext) -> int:
        calls.append(job.n)
        found = await asyncio.gather(
            ctx.ask("oracle", Question(n=1), reply=int),
            ctx.ask("oracle", Question(n=2), reply=int),
        )
        return sum(found)

    async def journey() -> int:
        async with (
            AsyncPostbox(tmp_path / "oracle.db", agent=oracle(asked)),
            AsyncPostbox(tmp_path / "bob.db", agent=agent),
            AsyncPostbox(tmp_path / "alice.db", agent="alice") as alice,
        ):
            return await alice.ask("bob", Job(n=1), reply=int, timeout=60)

    assert 30 == asyncio.run(journey())
    assert [1, 2] == sorted(asked)


def test_a_trial_says_how_to_test_an_ask() -> None:
    """The plain function that a handler is has no replies."""

    def work(job: Job, ctx: Context) -> int:
        return ctx.ask("oracle", Question(n=job.n), reply=int)

    with Harness("bob") as harness, pytest.raises(InvalidArgument, match="send the message"):
        work(Job(n=1), harness.context(Job(n=1)))


def test_the_harness_answers() -> None:
    """A peer with handlers replies, with no thread and no waiting."""
    agent, done = Agent("bob"), []

    @agent.on(Job)
    def work(job: Job, ctx: Context) -> None:
        done.append(ctx.ask("oracle", Question(n=job.n), reply=int))

    with Harness(agent) as harness:
        harness.peer("oracle", oracle([]))
        harness.send(Job(n=4))
        harness.deliver()

    assert [40] == done


def test_progress_is_told_while_the_handler_runs(world: World) -> None:
    """The asker sees the last value, no handler gets it, and a failed call does not undo it."""
    agent, seen = Agent("bob"), []

    @agent.on(Job, attempts=2)
    def work(job: Job, ctx: Context) -> int:
        ctx.progress({"share": 0.5 * ctx.message.attempt})
        if ctx.message.attempt == 1:
            raise OSError
        return job.n

    alice, box = world.open("alice"), world.open(agent)
    ticket = alice.request("bob", Job(n=3))
    seen.append(alice.progress_of(ticket))
    world.settle()
    seen.append(alice.progress_of(ticket))
    world.wait(60)
    told = alice.result(ticket, reply=int)
    late = alice.progress_of(ticket.id)

    assert ([None, {"share": 0.5}], 3) == (seen, told)
    assert {"share": 1.0} == late
    assert None is alice.receive()
    assert [] == [*alice.file.check(box.file), *box.file.check(alice.file)]
    with pytest.raises(InvalidArgument, match="no message"):
        alice.progress_of("nothing")


def test_a_stranger_tells_no_progress(world: World) -> None:
    """Only the agent that was asked is believed; its word about nothing is kept nowhere."""
    agent = Agent("mallory")

    @agent.on("text")
    def work(text: str, ctx: Context) -> None:
        ctx.progress(text)

    alice, mallory = world.open("alice"), world.open(agent)
    world.open("bob")
    ticket = alice.request("bob", Job(n=3))
    mallory.send("mallory", "mine", reply_to="alice", message_id=ticket.id)
    world.settle()

    assert None is alice.progress_of(ticket)
    assert None is alice.receive()


def test_a_task_group_asks(tmp_path: Path) -> None:
    """Its group of exceptions ends the call like the one that it holds; the worker lives on."""
    asked: list[int] = []
    agent = Agent("bob")

    @agent.on(Job)
    async def work(job: Job, ctx: AsyncContext) -> int:
        async with asyncio.TaskGroup() as outer, asyncio.TaskGroup() as inner:
            one = inner.create_task(ctx.ask("oracle", Question(n=1), reply=int))
            two = outer.create_task(ctx.ask("oracle", Question(n=2), reply=int))
        return one.result() + two.result()

    async def journey() -> int:
        async with (
            AsyncPostbox(tmp_path / "oracle.db", agent=oracle(asked)),
            AsyncPostbox(tmp_path / "bob.db", agent=agent, workers=1),
            AsyncPostbox(tmp_path / "alice.db", agent="alice") as alice,
        ):
            return await alice.ask("bob", Job(n=1), reply=int, timeout=60)

    assert 30 == asyncio.run(journey())
    assert [1, 2] == sorted(asked)


def test_what_fails_in_a_task_group_counts_more_than_what_waits(world: World) -> None:
    """The attempt failed: nothing of it is sent."""
    asked: list[int] = []
    agent = Agent("bob")

    @agent.on(Job, attempts=1)
    async def work(job: Job, ctx: AsyncContext) -> None:
        found = await asyncio.gather(
            ctx.ask("oracle", Question(n=1), reply=int), return_exceptions=True
        )
        msg = "two ends"
        waiting = [each for each in found if isinstance(each, BaseException)]
        raise BaseExceptionGroup(msg, [*waiting, ValueError("broken")])

    world.open(oracle(asked))
    box = world.open(agent)
    box.send("bob", Job(n=1))
    world.settle()
    [letter] = box.dead_letters.list()

    assert ([], "attempts_spent") == (asked, letter.reason)
    assert "two ends" in str(letter.last_error)


def test_a_task_that_outlives_its_handler_is_cancelled(world: World) -> None:
    """The worker makes no more calls for it; before, it waited for ever."""
    agent, cancelled = Agent("bob"), []
    left: list[tuple[asyncio.Task[int], asyncio.Event]] = []

    @agent.on(Job)
    async def work(job: Job, ctx: AsyncContext) -> int:
        event = asyncio.Event()

        async def later() -> int:
            await event.wait()
            return await ctx.ask("oracle", Question(n=2), reply=int)

        if left:
            task, first = left[0]
            first.set()
            _, pending = await asyncio.wait([task], timeout=10)
            cancelled.append((task.cancelled(), pending))
            event.set()
        left.append((asyncio.create_task(later()), event))
        return await ctx.ask("oracle", Question(n=1), reply=int)

    world.open(oracle([]))
    box = world.open(agent)
    box.send("bob", Job(n=1))
    world.settle()

    assert (True, set()) == cancelled[0]


def test_replies_are_kept_while_their_handler_waits(world: World) -> None:
    """Retention prunes neither the request, which would be made again, nor its reply."""
    asked: list[int] = []
    agent, done = Agent("bob"), []

    @agent.on(Job)
    def work(job: Job, ctx: Context) -> None:
        one = ctx.ask("oracle", Question(n=1), reply=int)
        done.append((one, ctx.ask("late", Question(n=2), reply=int, timeout="90d")))

    world.open(oracle(asked))
    box = world.open(agent, hold_unknown=True, retention="30d")
    box.send("bob", Job(n=1))
    world.settle()
    world.wait(40 * 86400)
    box.file.run_maintenance()
    world.settle()
    world.open(oracle([], "late"))
    for _ in range(3):
        world.wait(86400)
    found = [*done]
    world.wait(40 * 86400)
    box.file.run_maintenance()

    assert ([1], [(10, 20)]) == (asked, found)
    assert [(0, 0)] == box.query(
        "SELECT (SELECT count(*) FROM _onceward_pending_replies), "
        "(SELECT count(*) FROM _onceward_inbox)"
    )


def test_a_request_that_fails_after_its_timeout_stays_timed_out(world: World) -> None:
    """Later calls of the handler take the same way as the first that saw the time-out."""
    agent, seen = Agent("bob"), []

    @agent.on(Job)
    def work(job: Job, ctx: Context) -> None:
        try:
            ctx.ask("late", Question(n=-1), reply=int, timeout=30)
        except (AnswerTimeout, RequestFailed) as error:
            seen.append(type(error).__name__)
        ctx.ask("later", Question(n=1), reply=int)

    box = world.open(agent, hold_unknown=True)
    box.send("bob", Job(n=1))
    world.settle()
    world.wait(31)
    for name in ("late", "later"):
        world.open(oracle([], name))
        world.wait(60)
        world.wait(60)

    assert ["AnswerTimeout"] * 3 == seen


@pytest.mark.parametrize("asks", [True, False])
def test_a_message_that_expires_while_it_waits_holds_up_no_other(world: World, asks: bool) -> None:
    """Its lane goes on when it expires, whether it waits for a reply or for its next attempt."""
    agent, seen = Agent("bob"), []

    @agent.on(Job)
    def work(job: Job, ctx: Context) -> None:
        seen.append(job.n)
        if job.n == 1:
            if asks:
                ctx.ask("oracle", Question(n=1), reply=int)
            raise Retry(after=3600)

    box = world.open(agent, hold_unknown=True)
    expiring = box.send("bob", Job(n=1), ttl=60)
    box.send("bob", Job(n=2))
    world.settle()
    world.wait(61)

    assert [1, 2] == seen
    assert [("expired",)] == box.query("SELECT state FROM onceward_inbox WHERE id = ?", (expiring,))


@pytest.mark.parametrize(("signal", "state"), [(Reject("no"), "failed"), (Drop(), "acked")])
def test_a_signal_in_a_task_group_is_what_the_handler_says(
    world: World, signal: Exception, state: str
) -> None:
    """It ends the message as it does outside of a group, also beside a task that waits."""
    agent = Agent("bob")

    @agent.on(Job)
    async def work(job: Job, ctx: AsyncContext) -> None:
        found = await asyncio.gather(
            ctx.ask("oracle", Question(n=1), reply=int), return_exceptions=True
        )
        waiting = [each for each in found if isinstance(each, BaseException)]
        msg = "two ends"
        raise BaseExceptionGroup(msg, [*waiting, ExceptionGroup(msg, [signal])])

    world.open(oracle([]))
    box = world.open(agent)
    message_id = box.send("bob", Job(n=1))
    world.settle()
    dead = [letter.reason for letter in box.dead_letters.list()]

    assert (["rejected"] if state == "failed" else []) == dead
    assert state == box.state(message_id)


def test_an_archived_reply_stays_while_its_handler_waits(world: World) -> None:
    """Pruning what an archive has leaves the reply to the call that will need it."""
    agent, done = Agent("bob"), []

    @agent.on(Job)
    def work(job: Job, ctx: Context) -> None:
        one = ctx.ask("oracle", Question(n=1), reply=int)
        done.append((one, ctx.ask("late", Question(n=2), reply=int, timeout="90d")))

    world.open(oracle([]))
    box = world.open(agent, hold_unknown=True)
    box.send("bob", Job(n=1))
    world.settle()
    rows = "SELECT seq, id, state, ended_at FROM onceward_inbox WHERE ended_at IS NOT NULL"
    archived = [maintenance.ArchivedRow(*row) for row in box.query(rows)]

    def prune() -> int:
        return box._db.write(lambda tx: maintenance.prune_archived(tx, "inbox", archived))

    early = prune()
    world.open(oracle([], "late"))
    world.wait(86400)

    assert ([(10, 20)], 1) == (done, len(archived))
    assert [0, 1] == [early, prune()]


def test_a_request_that_another_worker_has_made_is_not_made_again(world: World) -> None:
    """The call that comes second has lost its message; the other one's reply is used."""
    asked: list[int] = []
    agent, done = Agent("bob"), []
    make = HandlerRequests.find_or_make

    def overtaken(self: HandlerRequests, *given: Any, **named: Any) -> Any:
        made = make(self, *given, **named)
        if isinstance(made, MadeRequest) and not asked:
            other = made._replace(message=made.message._replace(id="another"))
            asked.append(0)
            box._db.write(lambda tx: self.add(tx, other))
        return made

    @agent.on(Job)
    def work(job: Job, ctx: Context) -> None:
        done.append(ctx.ask("oracle", Question(n=1), reply=int))

    world.open(oracle(asked))
    box = world.open(agent)
    box.send("bob", Job(n=1))
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(HandlerRequests, "find_or_make", overtaken)
        world.settle()
        world.wait(60)

    assert [10] == done


def test_a_question_that_a_limit_drops_fails_in_the_handler(world: World) -> None:
    """The handler is called again at once, with the error that names the limit."""
    agent, reasons = Agent("bob"), list[str]()

    @agent.on(Job)
    def work(job: Job, ctx: Context) -> None:
        try:
            ctx.ask("oracle", Question(n=1), reply=int, ordering_key="questions")
        except RequestFailed as error:
            reasons.append(error.reason)

    box = world.open(agent, hold_unknown=True)
    box.limits.set("lane", "oracle/questions", messages=1, overflow="drop_new")
    box.send("oracle", "first", ordering_key="questions")
    box.send("bob", Job(n=1))
    world.settle()

    assert ["dropped: drop_new: the limit of lane oracle/questions is reached"] == reasons
    assert [("processed",)] == box.query("SELECT state FROM onceward_inbox")


def test_a_replayed_message_does_not_ask_again_what_was_answered(world: World) -> None:
    """Answers that are there are used again; a question that failed is asked again."""
    asked: list[int] = []
    agent, done, broken = Agent("bob"), list[int](), [True]
    mended = Agent("oracle")

    @agent.on(Job, attempts=1)
    def work(job: Job, ctx: Context) -> None:
        one = ctx.ask("oracle", Question(n=1), reply=int)
        two = ctx.ask("oracle", Question(n=-2), reply=int)
        if broken:
            raise ValueError(broken.pop())
        done.append(one + two)

    @mended.on(Question)
    def answer(question: Question) -> int:
        asked.append(question.n)
        return 100

    world.open(oracle(asked))
    box = world.open(agent)
    box.send("bob", Job(n=1))
    world.settle()
    world.boxes.pop("oracle").close()
    world.open(mended)
    for _ in range(2):
        [letter] = box.dead_letters.list()
        box.dead_letters.replay(letter.id)
        world.settle()

    assert ([1, -2, -2], [110]) == (asked, done)


def test_a_replayed_message_may_ask_something_else(world: World) -> None:
    """What differs is asked, the rest is not asked again; later calls ask what this one did."""
    asked: list[int] = []
    agent, done, broken, number = Agent("bob"), list[int](), [True], [1]

    @agent.on(Job, attempts=1)
    def work(job: Job, ctx: Context) -> None:
        one = ctx.ask("oracle", Question(n=number[0]), reply=int)
        if broken:
            raise ValueError(broken.pop())
        number[0] += 1
        done.append(one + ctx.ask("oracle", Question(n=7), reply=int))

    world.open(oracle(asked))
    box = world.open(agent)
    box.send("bob", Job(n=1))
    world.settle()
    errors = list[str]()
    for n in (1, 5):
        number[0] = n
        [letter] = box.dead_letters.list()
        errors.append(str(letter.last_error))
        box.dead_letters.replay(letter.id)
        world.settle()

    assert ([1, 7, 5], [120]) == (asked, done)
    assert "request 1 of this handler differs from that of its first call" in errors[1]


def test_a_replayed_message_asks_again_what_was_pruned(world: World) -> None:
    """A reply whose row is gone by retention is not a reply that is there."""
    asked: list[int] = []
    agent, done = Agent("bob"), list[int]()

    @agent.on(Job, attempts=1)
    def work(job: Job, ctx: Context) -> None:
        one = ctx.ask("oracle", Question(n=1), reply=int)
        if len(asked) == 1:
            raise ValueError("broken")
        done.append(one)

    world.open(oracle(asked))
    box, alice = world.open(agent, retention="30d"), world.open("alice")
    alice.send("bob", Job(n=1))
    world.settle()
    [letter] = box.dead_letters.list()
    asked += [0]
    world.wait(40 * 86400)
    box.file.run_maintenance()
    box.dead_letters.replay(letter.id)
    world.settle()

    assert ([1, 0, 1], [10]) == (asked, done)


def test_a_reply_after_a_failure_changes_no_later_call(world: World) -> None:
    """The request has failed for its handler, which goes the same way at each call."""
    agent, seen = Agent("bob"), list[str]()

    @agent.on(Job)
    def work(job: Job, ctx: Context) -> None:
        try:
            ctx.ask("oracle", Question(n=1), reply=int)
            seen.append("answered")
        except RequestFailed as error:
            seen.append(error.reason)
        ctx.ask("late", Question(n=2), reply=int)

    oracle_box, box = world.open("oracle"), world.open(agent, hold_unknown=True)
    box.send("bob", Job(n=1))
    world.settle()
    [question] = oracle_box.receive_each(timeout=0)
    question.ack()
    world.settle()
    oracle_box.send("bob", 10, in_reply_to=question.id)
    world.settle()
    world.open(oracle([], "late"))
    world.wait(60)
    world.wait(60)

    assert ["processed without a reply"] * 2 == seen
    assert [] == box.dead_letters.list()


def test_a_request_that_is_replayed_has_failed_for_its_handler(world: World) -> None:
    """The peer gets the message after all; the handler goes the same way at each call."""
    asked: list[int] = []
    agent, seen = Agent("bob"), list[str]()

    @agent.on(Job)
    def work(job: Job, ctx: Context) -> None:
        try:
            ctx.ask("oracle", Question(n=1), reply=int)
            seen.append("answered")
        except RequestFailed as error:
            seen.append(error.reason)
        ctx.ask("late", Question(n=2), reply=int)

    box, _ = world.wired(agent, oracle(asked), hold_unknown=True)
    world.wire.script = ["refuse"]
    box.send("bob", Job(n=1))
    world.settle()
    [letter] = box.dead_letters.list()
    box.dead_letters.replay(letter.id)
    world.settle()
    world.open(oracle([], "late"))
    world.wait(60)
    world.wait(60)

    assert ([1], ["rejected"] * 2) == (asked, seen)


def test_a_handler_that_catches_the_end_of_its_call_waits_all_the_same(world: World) -> None:
    """What it does then is rolled back; it is called again with the reply."""
    asked: list[int] = []
    agent, seen = Agent("bob"), list[object]()

    @agent.on(Job)
    async def work(job: Job, ctx: AsyncContext) -> None:
        await ctx.tx.execute(NOTES)
        found: list[object] = [
            *await asyncio.gather(
                ctx.ask("oracle", Question(n=1), reply=int), return_exceptions=True
            )
        ]
        with suppress(BaseException):
            found.append(await ctx.ask("oracle", Question(n=2), reply=int))
        seen.append(found)
        await ctx.tx.execute("INSERT INTO notes VALUES (?)", (str(found),))

    world.open(oracle(asked))
    box = world.open(agent)
    box.send("bob", Job(n=1))
    world.settle()

    assert ([1, 2], [10, 20]) == (asked, seen[-1])
    assert [("[10, 20]",)] == box.query("SELECT text FROM notes")


def test_a_flood_of_progress_leaves_the_newest_only(world: World) -> None:
    """An asker that is away costs neither a message for each value nor dead letters."""
    agent = Agent("bob")

    @agent.on(Job)
    def work(job: Job, ctx: Context) -> int:
        for n in range(50):
            ctx.progress(n)
        return job.n

    alice, box = world.wired("alice", agent)
    ticket = alice.request("bob", Job(n=3))
    alice.run_until_idle()
    world.wire.always = "down"
    box.run_until_idle()
    waiting = box.file.stats()["pending"]
    world.wait(7200)
    dead = [letter.reason for letter in box.dead_letters.list()]
    world.wire.always = "ok"
    world.wait(7200)

    assert ([], True) == (dead, waiting <= 3)
    assert (49, 3) == (alice.progress_of(ticket), alice.result(ticket, reply=int))


def test_a_handler_waits_for_its_own_requests_only(world: World) -> None:
    """No reply to a request that was made elsewhere would call it; the error says so."""
    agent, seen = Agent("bob"), list[int]()
    tickets = list[Ticket]()

    @agent.on(Job, attempts=1)
    def work(job: Job, ctx: Context) -> None:
        seen.append(ctx.result(tickets[0], reply=int))

    box = world.open(agent, hold_unknown=True)
    tickets.append(box.request("oracle", Question(n=1)))
    box.send("bob", Job(n=1))
    world.settle()
    [letter] = box.dead_letters.list()
    world.open(oracle([]))
    world.wait(60)
    box.send("bob", Job(n=2))
    world.settle()

    assert "was not made by this handler" in str(letter.last_error)
    assert [10] == seen
