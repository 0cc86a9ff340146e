"""The options of a handler: which errors are tried again, how often, and what is dropped."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from onceward import Agent, Drop, Msg, Reject, Retry, RetryPolicy
from onceward.errors import InvalidArgument

if TYPE_CHECKING:
    from tests.journey.conftest import World

    from onceward.model.handler_options import HandlerOptions

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
        (KeyError("k"), {"no_retry": (OSError,), "attempts": 3}, 3, "max_retries_exceeded"),
        (KeyError("k"), {"retry_on": (OSError, ValueError)}, 1, "rejected"),
        (OSError("k"), {"retry_on": (OSError,), "attempts": 2}, 2, "max_retries_exceeded"),
        (OSError("k"), {"retry_on": OSError, "no_retry": OSError}, 1, "rejected"),
        (Retry(after=1), {"retry_on": OSError, "attempts": 2}, 2, "max_retries_exceeded"),
        (Reject("no"), {"retry_on": OSError}, 1, "rejected"),
        (KeyError("k"), {"retry": RetryPolicy.ten_retries()}, 11, "max_retries_exceeded"),
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
    box = world.open(agent, retry_first=30.0)
    box.send("bob", Job(n=1))
    world.settle()
    world.wait(1)
    world.wait(2)

    assert [1, 1, 1] == called


def test_a_signal_is_no_error(world: World) -> None:
    """``drop`` raised by a handler is no error that ``retry_on`` speaks of."""
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
    box.run_maintenance()

    assert [1, 2] == sorted(at_first)
    assert [1, 1, 2] == sorted(called)
    assert 2 == sum(state == "dropped" and "unique_for" in reason for state, reason in told)
    assert [(0,)] == box.query(noted)


def test_a_failed_call_makes_no_later_one_a_repetition(world: World) -> None:
    """The note is an effect of the handler: it is rolled back with the others."""
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
