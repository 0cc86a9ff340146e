"""The options of a handler: which errors are tried again, how often, and what is dropped."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest

from onceward import Agent, Context, Drop, Msg, Postbox, Reject, Retry, RetryPolicy
from onceward.errors import InvalidArgument
from onceward.testing import Controls

if TYPE_CHECKING:
    from pathlib import Path

    from tests.journey.conftest import World

    from onceward.message.handler_options import HandlerOptions

TOLD = "SELECT state, reason FROM onceward_inbox ORDER BY seq"
FATES = "SELECT reason, attempts FROM onceward_dead_letters ORDER BY seq"


class Job(Msg, type="job"):
    """A task with a number."""

    n: int


def failing(error: BaseException, **options: Any) -> tuple[Agent, list[int]]:
    """Return an agent whose handler always raises, and the numbers that it was called with."""
    agent, called = Agent("bob"), list[int]()

    @agent.on(Job, **options)
    def work(job: Job) -> None:
        called.append(job.n)
        raise error

    return agent, called


@pytest.mark.parametrize(
    ("error", "options", "calls", "reason"),
    [
        (KeyError("k"), {"no_retry": KeyError}, 1, "rejected"),
        (KeyError("k"), {"no_retry": LookupError}, 1, "rejected"),
        (KeyError("k"), {"no_retry": (OSError,), "attempts": 3}, 3, "attempts_spent"),
        (KeyError("k"), {"retry_on": (OSError, ValueError)}, 1, "rejected"),
        (OSError("k"), {"retry_on": (OSError,), "attempts": 2}, 2, "attempts_spent"),
        (OSError("k"), {"retry_on": OSError, "no_retry": OSError}, 1, "rejected"),
        (Retry(after=1), {"retry_on": OSError, "attempts": 2}, 2, "attempts_spent"),
        (Reject("no"), {"retry_on": OSError}, 1, "rejected"),
        (ExceptionGroup("g", [OSError(), OSError()]), {"retry_on": OSError, "attempts": 2}, 2,
         "attempts_spent"),
        (ExceptionGroup("g", [OSError(), KeyError()]), {"retry_on": OSError}, 1, "rejected"),
        (ExceptionGroup("g", [ExceptionGroup("h", [KeyError()]), OSError()]),
         {"no_retry": KeyError}, 1, "rejected"),
        (ExceptionGroup("g", [OSError()]), {"no_retry": ExceptionGroup}, 1, "rejected"),
        (KeyError("k"), {"retry": RetryPolicy.ten_retries()}, 11, "attempts_spent"),
    ],
)  # fmt: skip
def test_errors_are_tried_again_as_said(
    world: World, error: BaseException, options: dict[str, Any], calls: int, reason: str
) -> None:
    """An exception that is not to be tried again ends its message at the first attempt."""
    agent, called = failing(error, **options)
    box = world.open(agent)
    box.send("bob", Job(n=7))
    for _ in range(40):
        world.wait(60)

    assert [7] * calls == called
    assert [(reason, calls)] == box.query(FATES)


def test_a_policy_of_a_handler_sets_the_pauses(world: World) -> None:
    """Its delays hold, not those of the postbox."""
    agent, called = failing(OSError(), retry=RetryPolicy.ten_retries())
    box = world.open(agent, delivery_retry="30s ±0%", handler_retry="30s ±0%")
    box.send("bob", Job(n=1))
    world.settle()
    world.wait(1)
    world.wait(2)

    assert [1, 1, 1] == called


def test_a_signal_is_no_error(world: World) -> None:
    """``drop`` raised by a handler is not an error that ``retry_on`` speaks of."""
    agent, _ = failing(Drop(), retry_on=OSError)
    box = world.open(agent)
    box.send("bob", Job(n=1))
    world.settle()

    assert [("dropped", "dropped")] == box.query(TOLD)


def test_a_like_message_is_dropped_for_a_while(world: World) -> None:
    """The same type and body, of any sender; another body or a later one is handled."""
    agent, called = Agent("bob"), list[int]()

    @agent.on(Job, unique_for="10m")
    def work(job: Job) -> None:
        called.append(job.n)

    alice, box = world.open("alice"), world.open(agent)
    for sender, n in ((alice, 1), (box, 1), (alice, 2), (alice, 1)):
        sender.send("bob", Job(n=n))
    world.settle()
    at_first = [*called]
    told = box.query(TOLD)
    world.wait(601)
    alice.send("bob", Job(n=1))
    world.settle()
    noted = "SELECT count(*) FROM _onceward_unique_bodies"
    world.wait(601)
    box.file.run_maintenance()

    assert [1, 2] == sorted(at_first)
    assert [1, 1, 2] == sorted(called)
    assert 2 == sum(state == "dropped" and "unique_for" in reason for state, reason in told)
    assert [(0,)] == box.query(noted)


def test_the_order_of_keys_makes_no_other_body(world: World) -> None:
    """A message with the same keys and values in another order is a repetition."""
    agent, called = Agent("bob"), list[dict[str, int]]()

    @agent.on("order", unique_for="10m")
    def work(order: dict[str, int]) -> None:
        called.append(order)

    box = world.open(agent)
    box.send("bob", {"id": 7, "cents": 5}, type="order")
    box.send("bob", {"cents": 5, "id": 7}, type="order")
    world.settle()

    assert [{"id": 7, "cents": 5}] == called


def test_a_failed_call_makes_no_later_one_a_repetition(world: World) -> None:
    """A message is not a repetition of itself: its note is bound to it until it ends."""
    agent, called = Agent("bob"), list[int]()

    @agent.on(Job, unique_for="10m", attempts=2)
    def work(job: Job) -> None:
        called.append(job.n)
        if len(called) == 1:
            raise OSError

    box = world.open(agent)
    box.send("bob", Job(n=1))
    world.wait(60)
    world.wait(60)

    assert ([1, 1], [("processed", None)]) == (called, box.query(TOLD))


def test_other_writers_do_not_wait_for_a_handler_of_unique_messages(tmp_path: Path) -> None:
    """The file is free while the handler runs: its note is committed before."""
    agent, sent, done = Agent("bob"), list[bool](), threading.Event()

    @agent.on(Job, unique_for="10m")
    def work(job: Job) -> None:
        other = threading.Thread(target=outsider.send, args=("bob", "more"))
        other.start()
        other.join(20)
        sent.append(not other.is_alive())
        done.set()

    path = tmp_path / "bob.db"
    with Postbox(path, agent=agent) as box, Postbox(path, start=False) as outsider:
        box.send("bob", Job(n=1))
        done.wait(60)

    assert [True] == sent


def asking(calls: list[int], **options: Any) -> Agent:
    """Return an agent whose handler of unique messages asks another agent."""
    agent = Agent("bob")

    @agent.on(Job, unique_for="10m", **options)
    def work(job: Job, ctx: Context) -> None:
        calls.append(job.n)
        ctx.ask("oracle", "what?", reply=str, timeout=60)

    return agent


def test_a_like_message_is_dropped_while_the_first_waits_for_a_reply(world: World) -> None:
    """The note stays when a call ends to wait; the message that it is bound to goes on."""
    calls: list[int] = []
    box, oracle = world.open(asking(calls)), world.open("oracle")
    for session in ("one", "two"):
        box.session(session).send("bob", Job(n=1))
    world.settle()
    early = box.query(TOLD)
    [question] = oracle.receive_each(timeout=0)
    with question:
        question.reply("that")
    world.settle()

    assert [1, 1] == calls
    assert ["pending", "dropped"] == [state for state, _ in early]
    assert ["processed", "dropped"] == [state for state, _ in box.query(TOLD)][:2]


@pytest.mark.parametrize("end", ["dead", "expired", "dropped"])
def test_a_message_that_was_not_handled_makes_no_later_one_a_repetition(
    world: World, end: str
) -> None:
    """The note of a message that is dead, expired or dropped by its handler holds no longer."""
    agent, called = Agent("bob"), list[int]()
    ends = {"dead": Reject("no"), "expired": Retry(after=3600), "dropped": Drop()}

    @agent.on(Job, unique_for="30d")
    def work(job: Job) -> None:
        called.append(job.n)
        if len(called) == 1:
            raise ends[end]

    box = world.open(agent)
    box.session("one").send("bob", Job(n=1), ttl=60)
    world.settle()
    world.wait(61)
    for session in ("two", "three"):
        box.session(session).send("bob", Job(n=1))
        world.settle()

    assert [1, 1] == called
    assert ["processed", "dropped"] == [state for state, _ in box.query(TOLD)][-2:]


def test_a_replayed_dead_letter_is_handled_unless_a_like_one_was(world: World) -> None:
    """It competes with what came since like any other message."""
    agent, called = Agent("bob"), list[int]()

    @agent.on(Job, unique_for="10m")
    def work(job: Job) -> None:
        called.append(job.n)
        if called.count(job.n) == 1:
            raise Reject

    box = world.open(agent)
    for session, n in (("a", 1), ("b", 2), ("c", 2)):
        box.session(session).send("bob", Job(n=n))
    world.settle()
    for letter in box.dead_letters.list():
        box.dead_letters.replay(letter.id)
    world.settle()

    assert [1, 1, 2, 2] == sorted(called)
    assert [] == box.dead_letters.list()


def test_the_note_outlives_a_crash_and_holds_for_its_own_message_only(world: World) -> None:
    """The message that a worker died of is handled again; a like one is dropped meanwhile."""
    agent, called = Agent("bob"), list[str]()

    @agent.on(Job, unique_for="1s")
    def work(job: Job, ctx: Context) -> None:
        called.append(ctx.session)
        if len(called) == 1:
            raise world.crash

    box = world.open(agent)
    box.session("one").send("bob", Job(n=1))
    with pytest.raises(world.crash):
        world.settle()
    world.shut()
    with Postbox(
        world.path("bob"), agent=agent, start=False, testing=Controls(clock=world.clock)
    ) as box:
        box.session("two").send("bob", Job(n=1))
        world.clock.forward(1)
        box.run_until_idle()
        box.file.run_maintenance()
        world.clock.forward(600)
        box.run_until_idle()
        ends = box.query(TOLD)

    assert ["one", "one"] == called
    assert ["processed", "dropped"] == [state for state, _ in ends]


@pytest.mark.parametrize(
    "options",
    [
        {"attempts": 0},
        {"attempts": "3"},
        {"retry_on": "OSError"},
        {"no_retry": (OSError, 5)},
        {"retry_on": KeyboardInterrupt},
        {"timeout": 0},
        {"timeout": -1},
        {"unique_for": "often"},
    ],
)
def test_a_wrong_option_is_refused_where_it_is_written(options: HandlerOptions) -> None:
    """The error names the option."""
    with pytest.raises(InvalidArgument, match=next(iter(options))):
        Agent("bob").on(Job, **options)
    with pytest.raises(TypeError, match="no option atempts"):
        Agent("bob").on(Job, atempts=3)  # type: ignore[call-arg]
