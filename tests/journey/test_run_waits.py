"""Runs that ask, gather and wait: the run ends, and another one with its messages goes on."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, TypeVar

import pytest
from tests.journey.test_handler_requests import Job, Question, oracle

from onceward import Agent, AsyncPostbox, AsyncRun, Context, Msg, Run
from onceward.errors import AnswerTimeout, RequestFailed
from onceward.features.runs.worker import RunExecution

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.journey.conftest import World

F = TypeVar("F", bound="Callable[..., object]")
OPEN = "SELECT state, count(*) FROM onceward_runs GROUP BY state ORDER BY state"


class Approved(Msg, type="approved"):
    """What a person says."""

    by: str


def talk(agent: Agent, mode: Any = "followup") -> Callable[[F], F]:
    """Return the declaration of the sessions of these tests."""
    declare: Any = agent.runs("talk", mode=mode, debounce=0)
    found: Callable[[F], F] = declare
    return found


def test_a_run_asks_and_another_one_has_the_reply(world: World) -> None:
    """Nothing is asked twice, also after a restart, and the messages have spent no attempt."""
    asked: list[int] = []
    seen: list[tuple[int, int]] = []
    agent = Agent("bob")

    @talk(agent)
    def serve(run: Run) -> int:
        one = run.ask("oracle", Question(n=run.message.body["n"]), reply=int)
        two = run.ask("oracle", Question(n=one), reply=int)
        seen.append((run.message.attempt, one + two))
        return one + two

    world.open("oracle")
    box, alice = world.open(agent), world.open("alice")
    ticket = alice.session("talk").request("bob", Job(n=1))
    world.settle()
    waiting = box.query("SELECT awaits FROM onceward_lanes WHERE awaits IS NOT NULL")
    world.shut()
    world.open(oracle(asked))
    box, alice = world.open(agent), world.open("alice")
    world.settle()

    assert (1, [1, 10], [(1, 110)]) == (len(waiting), asked, seen)
    assert 110 == alice.result(ticket, reply=int)


def test_a_run_that_fails_after_its_reply_does_not_ask_again(world: World) -> None:
    """The next attempt finds the request among its steps."""
    asked: list[int] = []
    attempts: list[int] = []
    agent = Agent("bob")

    @talk(agent)
    def serve(run: Run) -> None:
        run.ask("oracle", Question(n=5), reply=int)
        attempts.append(run.message.attempt)
        if len(attempts) < 2:
            raise ValueError

    world.open(oracle(asked))
    box = world.open(agent)
    box.session("talk").send("bob", Job(n=1))
    world.settle()
    world.wait(5)

    assert ([5], [1, 2]) == (asked, attempts)
    assert [("request oracle", "done")] == box.query("SELECT name, state FROM onceward_steps")


def test_a_run_that_waits_goes_on_with_the_messages_that_it_had(world: World) -> None:
    """What comes meanwhile is the next run's, also where runs collect."""
    asked: list[int] = []
    served: list[list[int]] = []
    agent = Agent("bob")

    @talk(agent, "collect")
    def serve(run: Run) -> None:
        numbers = [each.body["n"] for each in run.messages]
        run.ask("oracle", Question(n=sum(numbers)), reply=int)
        served.append(numbers)

    box = world.open(agent, hold_unknown=True)
    for n in (1, 2):
        box.session("talk").send("bob", Job(n=n))
    world.settle()
    box.session("talk").send("bob", Job(n=4))
    world.settle()
    before = [*served]
    world.open(oracle(asked))
    world.wait(60)
    world.wait(60)

    assert ([], [[1, 2], [4]], [3, 4]) == (before, served, asked)


def test_a_wait_that_ended_early_hides_no_message_that_is_left(world: World) -> None:
    """Where the messages of a run that waits are gone, the session goes on with the others."""
    served: list[int] = []
    agent = Agent("bob")

    @talk(agent)
    def serve(run: Run) -> None:
        if run.message.body["n"] == 1:
            run.sleep(60)
        served.append(run.message.body["n"])

    box = world.open(agent)
    box.session("talk").send("bob", Job(n=1), ttl=30)
    world.settle()
    box.session("talk").send("bob", Job(n=2))
    world.settle()
    world.wait(61)

    assert [2] == served


def test_a_steered_run_reads_the_steps_of_the_one_that_it_replaces(world: World) -> None:
    """It begins new steps; those of the run before it are there, in their order."""
    calls: list[str] = []
    seen: list[list[tuple[str, Any]]] = []
    agent = Agent("bob")

    def search(words: list[str]) -> str:
        calls.append(" ".join(words))
        return calls[-1].upper()

    @talk(agent, "steer")
    def serve(run: Run) -> None:
        before = () if run.previous is None else run.previous.steps
        seen.append([(each.name, each.result) for each in before])
        run.step(search, [each.body["n"] for each in run.messages], name="search")
        if len(run.messages) == 1:
            run.sleep("1h")

    box = world.open(agent)
    box.session("talk").send("bob", {"n": "one"}, type="job")
    world.settle()
    box.session("talk").send("bob", {"n": "two"}, type="job")
    world.settle()

    assert ["one", "one two"] == calls
    assert [[], [("search", "ONE"), ("sleep", None)]] == seen
    assert [("done", 1), ("waiting", 1)] == box.query(OPEN)


def test_a_run_waits_for_a_message_of_its_session(world: World) -> None:
    """The message is no message of the session's queue, and its run goes on at once."""
    seen: list[tuple[int, str]] = []
    agent = Agent("bob")
    agent.waits(Approved)

    @talk(agent)
    def serve(run: Run) -> None:
        seen.append((run.message.body["n"], run.wait(Approved, timeout="7d").by))

    box = world.open(agent)
    for n in (1, 2):
        box.session("talk").send("bob", Job(n=n))
    world.settle()
    quiet = [*seen]
    box.session("talk").send("bob", Approved(by="ada"))
    world.settle()
    world.reopen()
    world.boxes["bob"].session("talk").send("bob", Approved(by="bea"))
    world.settle()

    assert ([], [(1, "ada"), (2, "bea")]) == (quiet, seen)


def test_a_reply_that_comes_while_the_run_ends_is_not_missed(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The commit that ends the run looks once more."""
    asked: list[int] = []
    served: list[int] = []
    agent = Agent("bob")

    @talk(agent)
    def serve(run: Run) -> None:
        served.append(run.ask("oracle", Question(n=1), reply=int))

    suspend = RunExecution.suspend

    def late(self: RunExecution, *args: Any, **named: Any) -> Any:
        monkeypatch.undo()
        world.elsewhere(world.settle)
        return suspend(self, *args, **named)

    monkeypatch.setattr(RunExecution, "suspend", late)
    world.open(oracle(asked))
    box = world.open(agent)
    box.session("talk").send("bob", Job(n=1))
    world.settle()

    assert ([1], [10]) == (asked, served)


@pytest.mark.parametrize("kind", ["handler", "run"])
def test_gather_ends_the_call_once_until_all_replies_are_there(world: World, kind: str) -> None:
    """The handler is called twice: when it asks, and with the last reply; in their order."""
    asked: list[int] = []
    calls: list[list[int]] = []
    agent = Agent("bob")

    def work(run: Any) -> None:
        calls.append([])
        tickets = [run.request(f"oracle{n}", Question(n=n)) for n in (3, 1, 2)]
        calls[-1] = run.gather(tickets, reply=int)

    if kind == "run":
        talk(agent)(lambda run: work(run))  # noqa: PLW0108 - its parameter bears the name
    else:
        agent.on(Job)(lambda _, ctx: work(ctx))
    box = world.open(agent, hold_unknown=True)
    box.session("talk").send("bob", Job(n=1))
    world.settle()
    for n in (2, 3, 1):
        world.open(oracle(asked, f"oracle{n}"))
        world.wait(60)
        world.wait(60)

    assert ([2, 3, 1], [[], [30, 10, 20]]) == (asked, calls)


def test_gather_raises_the_first_failure_once_all_have_ended(world: World) -> None:
    """The results of the others can be had one by one, and a late one fails like any other."""
    told: list[object] = []
    agent = Agent("bob")

    @agent.on(Job)
    def work(job: Job, ctx: Context) -> None:
        tickets = [
            ctx.request("oracle", Question(n=1)),
            ctx.request("oracle", Question(n=-1)),
            ctx.request("away", Question(n=2), timeout="1h"),
        ]
        for each in (tickets, tickets[2:], tickets[:1]):
            try:
                told.append(ctx.gather(each, reply=int))
            except (RequestFailed, AnswerTimeout) as error:
                told.append(type(error).__name__)

    world.open(oracle([]))
    box = world.open(agent, hold_unknown=True)
    box.send("bob", Job(n=1))
    world.settle()
    early = [*told]
    world.wait(3601)

    assert ([], ["RequestFailed", "AnswerTimeout", [10]]) == (early, told)


def test_what_is_gathered_too_late_does_not_hold_a_later_ask(world: World) -> None:
    """A reply that is awaited alone calls the handler again, whichever others are open."""
    told: list[object] = []
    agent = Agent("bob")

    @agent.on(Job)
    def work(job: Job, ctx: Context) -> None:
        late = [ctx.request("away", Question(n=n), timeout=60) for n in (1, 2)]
        try:
            ctx.gather(late, reply=int)
        except AnswerTimeout:
            told.append(ctx.ask("oracle", Question(n=1), reply=int))

    world.open(oracle([]))
    box = world.open(agent, hold_unknown=True)
    box.send("bob", Job(n=1))
    world.settle()
    world.wait(61)

    assert [10] == told


def test_results_of_many_tickets_come_in_their_order(world: World) -> None:
    """Outside of handlers, too: all of them in time, or the error names the first that is open."""
    box = world.open("bob", hold_unknown=True)
    tickets = [box.request("oracle", Question(n=n)) for n in (2, 1)]
    world.open(oracle([]))
    world.settle()
    away = box.request("away", Question(n=1))
    failed = box.request("oracle", Question(n=-1))
    world.settle()

    assert [20, 10] == box.gather(tickets, reply=int)
    assert [] == box.gather([], reply=int)
    with pytest.raises(AnswerTimeout) as late:
        box.gather([*tickets, away, failed], reply=int)
    assert away.id == late.value.message_id
    with pytest.raises(RequestFailed) as wrong:
        box.gather([tickets[0], failed.id], reply=int)
    assert failed.id == wrong.value.message_id


def test_an_async_run_asks_gathers_and_waits(tmp_path: Path) -> None:
    """Its verbs are those of ``Run``, awaited; so is ``gather``."""
    asyncio.run(_ask_gather_and_wait(tmp_path))


async def _ask_gather_and_wait(tmp_path: Path) -> None:
    seen: list[object] = []
    agent = Agent("bob")
    agent.waits(Approved)

    @talk(agent)
    async def serve(run: AsyncRun) -> int:
        one = await run.ask("oracle", Question(n=1), reply=int)
        tickets = [await run.request("oracle", Question(n=n)) for n in (one, 2)]
        many = await run.gather(tickets, reply=int)
        by = (await run.wait(Approved)).by
        seen.append((one, many, by))
        return sum(many)

    async with (
        AsyncPostbox(tmp_path / "oracle.db", agent=oracle([])),
        AsyncPostbox(tmp_path / "bob.db", agent=agent),
        AsyncPostbox(tmp_path / "alice.db", agent="alice") as alice,
    ):
        session = alice.session("talk")
        tickets = [await session.request("bob", Job(n=n)) for n in (1, 2)]
        for by in ("ada", "bea"):
            await session.send("bob", Approved(by=by))
        found = await session.gather(tickets, reply=int, timeout=30)

    assert [120, 120] == found
    assert [(10, [100, 20], "ada"), (10, [100, 20], "bea")] == seen
