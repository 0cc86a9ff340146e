"""Handlers that ask each other: no question waits behind the handler that waits for its reply."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest

from onceward import Agent, Context, Msg
from onceward.errors import RequestFailed

if TYPE_CHECKING:
    from tests.journey.conftest import World

AWAITED = """
SELECT sender, head_id, awaits, request_id
  FROM onceward_lanes
 WHERE awaits IS NOT NULL
"""


class Job(Msg, type="job"):
    """A task whose handler asks another agent."""

    n: int = 0


class Question(Msg, type="question"):
    """A question that is answered at once."""

    n: int = 0


class Countdown(Msg, type="countdown"):
    """A question whose handler asks the asker for one less, until there is none."""

    left: int


def asker(name: str, other: str, done: list[str]) -> Agent:
    """Return an agent that asks *other* while it handles a job, and answers questions."""
    agent = Agent(name)

    @agent.on(Job)
    def work(job: Job, ctx: Context) -> None:
        done.append(ctx.ask(other, Question(n=job.n), reply=str))

    @agent.on(Question)
    def answer(question: Question) -> str:
        return f"{name} to {other}"

    return agent


def counting(name: str, other: str) -> Agent:
    """Return an agent that counts by asking *other* to count on."""
    agent = Agent(name)

    @agent.on(Countdown)
    def count(countdown: Countdown, ctx: Context) -> int:
        if not countdown.left:
            return 0
        return 1 + ctx.ask(other, Countdown(left=countdown.left - 1), reply=int)

    return agent


def restless(name: str, names: list[str], seed: int, done: list[int]) -> Agent:
    """Return an agent whose handlers ask up to three questions, some before they need the reply."""
    agent = Agent(name)

    def ask(ctx: Context, left: int) -> int:
        dice = random.Random(f"{seed} {ctx.message.id}")
        peers = [dice.choice(names) for _ in range(dice.randint(0, 3))] if left else []
        early = [ctx.request(peer, Countdown(left=left - 1)) for peer in peers[1:]]
        found = [ctx.ask(peer, Countdown(left=left - 1), reply=int) for peer in peers[:1]]
        return 1 + sum(found) + sum(ctx.result(ticket, reply=int) for ticket in early)

    @agent.on(Job)
    def work(job: Job, ctx: Context) -> None:
        ask(ctx, 3)
        done.append(job.n)

    @agent.on(Countdown)
    def answer(countdown: Countdown, ctx: Context) -> int:
        return ask(ctx, countdown.left)

    return agent


@pytest.mark.parametrize("names", [["a", "b"], ["a", "b", "c"], ["a"]], ids=len)
def test_agents_that_ask_around_a_circle_all_get_replies(world: World, names: list[str]) -> None:
    """Each has a job of the agent that asks it, in one session, and asks the next one."""
    done: list[str] = []
    ring = dict(zip(names, [*names[1:], names[0]], strict=True))
    boxes = {name: world.open(asker(name, ring[name], done)) for name in names}
    for name, other in ring.items():
        boxes[name].session("s").send(other, Job(n=1))
    world.settle()

    assert [f"{other} to {ring[other]}" for other in sorted(ring.values())] == sorted(done)
    assert [[]] * len(boxes) == [box.query(AWAITED) for box in boxes.values()]


@pytest.mark.parametrize("names", [["a", "b"], ["a"]], ids=len)
def test_questions_may_lead_back_to_the_asker(world: World, names: list[str]) -> None:
    """Each waits for the next one, in the same session, and the last one ends them all."""
    for name, other in zip(names, reversed(names), strict=True):
        world.open(counting(name, other))
    box = world.boxes["a"]
    ticket = box.request(names[-1], Countdown(left=7))
    world.settle()

    assert 7 == box.result(ticket, reply=int)


def test_questions_without_an_end_fail(world: World) -> None:
    """The last one is refused as one too many, and says so to the handler that asked it."""
    told: list[str] = []
    agent = Agent("a")

    @agent.on(Countdown)
    def ask(countdown: Countdown, ctx: Context) -> int:
        try:
            return ctx.ask("a", countdown, reply=int)
        except RequestFailed as error:
            told.append(error.reason or "")
            return 0

    box = world.open(agent)
    ticket = box.request("a", Countdown(left=1))
    world.settle()

    assert 0 == box.result(ticket, reply=int)
    assert [True] == [reason.startswith("hops_exceeded") for reason in told]


def test_a_question_keeps_its_place_where_no_reply_is_awaited(world: World) -> None:
    """A message that is tried again later holds the question behind it, as it holds messages."""
    seen: list[str] = []
    agent = Agent("b")

    @agent.on("put")
    def put(body: int, ctx: Context) -> None:
        if ctx.message.attempt == 1:
            raise OSError
        seen.append(f"put {body}")

    @agent.on(Question)
    def answer(question: Question) -> str:
        seen.append("asked")
        return "answer"

    done: list[str] = []
    box = world.open(asker("a", "b", done))
    world.open(agent)
    box.session("s").send("b", 1, type="put")
    world.settle()
    box.session("s").send("a", Job())
    world.settle()
    before = [*seen]
    world.wait(60)

    assert ([], ["put 1", "asked"], ["answer"]) == (before, seen, done)


def test_only_questions_pass_a_handler_that_waits(world: World) -> None:
    """Messages behind it keep their order, also those that were sent before the question."""
    seen: list[int] = []
    agent = Agent("b")

    @agent.on("number")
    def note(body: int) -> None:
        seen.append(body)

    @agent.on(Job)
    def work(job: Job, ctx: Context) -> None:
        ctx.ask("away", Question(), reply=str)
        seen.append(job.n)

    @agent.on(Question)
    def answer(question: Question) -> str:
        return "answer"

    done: list[str] = []
    box = world.open(asker("a", "b", done))
    other = world.open(agent, hold_unknown=True)
    session = box.session("s")
    session.send("b", Job(n=1))
    world.settle()
    session.send("b", 2, type="number")
    session.send("a", Job())
    world.settle()
    before = ([*done], [*seen])
    [waiting] = other.query(AWAITED)
    world.open(asker("away", "b", []))
    world.wait(60)
    world.wait(60)

    assert (["answer"], []) == before
    assert ("a", "away") == (waiting[0], waiting[2])
    assert [1, 2] == seen


def test_a_reply_wakes_a_lane_that_has_messages_without_a_handler(world: World) -> None:
    """They wait in front of the message whose handler asked; it is called again at once."""
    done: list[str] = []
    waiting = Agent("a", unhandled="wait")

    @waiting.on(Job)
    def work(job: Job, ctx: Context) -> None:
        done.append(ctx.ask("b", Question(n=job.n), reply=str))

    world.open(waiting)
    box = world.open(asker("b", "a", []))
    box.send("a", {}, type="else")
    box.send("a", Job())
    world.settle()

    assert ["b to a"] == done


@pytest.mark.parametrize("seed", range(12))
def test_no_handler_waits_for_ever(world: World, seed: int) -> None:
    """Whatever is asked of which agent, in which order and how deeply, all get their replies."""
    dice = random.Random(seed)
    names = ["a", "b", "c", "d"][: dice.randint(1, 4)]
    done: list[int] = []
    boxes = [world.open(restless(name, names, seed, done)) for name in names]
    for n in range(12):
        dice.choice(boxes).session("s").send(dice.choice(names), Job(n=n))
        if dice.random() < 0.3:
            dice.choice(boxes).run_until_idle()
    world.settle()

    assert [*range(12)] == sorted(done)
    assert [[]] * len(boxes) == [box.dead_letters.list() for box in boxes]
