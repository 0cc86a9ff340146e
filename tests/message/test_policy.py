"""Retry policies: the pauses and budgets of the presets are what their names promise."""

import random
from collections.abc import Callable
from datetime import timedelta
from threading import Event
from typing import Any

import pytest
import tenacity
from tenacity import (
    retry_if_exception_cause_type,
    retry_if_result,
    retry_never,
    stop_after_attempt,
    stop_after_delay,
    stop_before_delay,
    stop_never,
    stop_when_event_set,
    wait_chain,
    wait_exception,
    wait_exponential,
    wait_exponential_jitter,
    wait_fixed,
    wait_incrementing,
    wait_none,
    wait_random,
    wait_random_exponential,
)

from onceward import Agent, RetryPolicy
from onceward.errors import InvalidArgument
from onceward.message.retry import LONGEST


def plan(policy: RetryPolicy) -> list[int]:
    """Return the pauses between the attempts that a policy allows, in seconds."""
    pauses: list[int] = []
    while not policy.exhausted(len(pauses) + 1):
        pauses.append(policy.delay(len(pauses) + 1, random.Random(0)) // 1000)
    return pauses


@pytest.mark.parametrize(
    ("policy", "pauses"),
    [
        (RetryPolicy.ten_retries(), [1, 2, 4, 8, 16, 32, 60, 60, 60, 60]),
        (RetryPolicy.three_retries(), [1, 2, 4]),
        (RetryPolicy.three_retries(ack_timeout=30), [31, 32, 34]),
        (RetryPolicy(wait_fixed(7), stop_after_attempt(1)), []),
        (RetryPolicy(wait_incrementing(start=1, increment=2), stop_after_attempt(4)), [1, 3, 5]),
    ],
)
def test_pauses_and_re_attempts(policy: RetryPolicy, pauses: list[int]) -> None:
    """
    After the k-th failure the k-th pause is made, and after the last one none.

    The number of pauses is that of re-attempts.
    """
    assert pauses == plan(policy)


def test_ten_retries_take_five_minutes() -> None:
    """Ten re-attempts take 303 seconds."""
    assert 303 == sum(plan(RetryPolicy.ten_retries()))


def test_the_cap_is_the_longest_pause_jitter_included() -> None:
    """No pause is longer than the cap, and jitter still varies it."""
    policy = RetryPolicy.parse("1s..10s ±50%")
    rng = random.Random(1)
    pauses = {policy.delay(attempt, rng) for attempt in range(1, 12) for _ in range(50)}

    assert 10_000 == max(pauses)
    assert len(pauses) > 100


WAITS = (
    wait_none(), wait_fixed(1), wait_random(1, 2), wait_incrementing(1, 2), wait_exponential(),
    wait_random_exponential(max=60), wait_exponential_jitter(), wait_chain(wait_fixed(1)),
    wait_fixed(1) + wait_random(0, 1), sum([wait_fixed(1), wait_none()]),
)  # fmt: skip
STOPS = (
    stop_never, stop_after_attempt(3), stop_after_attempt(3) | stop_never,
    stop_after_attempt(3) & stop_after_attempt(4),
)  # fmt: skip
NO_WAITS = {
    "wait_exception": wait_exception(lambda _: 1.0),
    "late in a chain": wait_chain(*map(wait_fixed, range(30)), wait_exception(lambda _: 1.0)),
    "in a sum": wait_fixed(1) + wait_exception(lambda _: 1.0),
    "a stop": stop_after_attempt(3),
    "a retry": retry_if_result(lambda _: True),
    "nan": lambda _: float("nan"),
    "inf": lambda _: float("inf"),
    "negative": wait_fixed(-1),
    "a text": lambda _: "soon",
    "raises": lambda _: 1 / 0,
    "looks": lambda state: state.outcome.exception().after,
    "a number": 5,
}
NO_STOPS = {
    "stop_after_delay": stop_after_delay(5),
    "stop_before_delay": stop_before_delay(5),
    "stop_when_event_set": stop_when_event_set(Event()),
    "in any": stop_after_attempt(3) | stop_after_delay(5),
    "in all": stop_after_attempt(30) & stop_after_delay(5),
    "in all of all": stop_after_attempt(30) & (stop_after_attempt(3) & stop_after_delay(5)),
    "event in all": stop_after_attempt(3) & stop_when_event_set(Event()),
    "a wait": wait_fixed(1),
    "a retry": retry_never,
    "a cause": retry_if_exception_cause_type(OSError),
    "no answer": lambda _: None,
    "raises": lambda _: 1 / 0,
    "looks": lambda state: state.seconds_since_start > 5,
}


@pytest.mark.parametrize("wait", WAITS, ids=lambda each: type(each).__name__)
def test_a_wait_of_tenacity_is_the_delay(wait: Any) -> None:
    """Of each attempt, however many came before, in milliseconds that fit into a row."""
    policy = RetryPolicy(wait, stop_never)
    random.seed(1)  # tenacity takes its random waits from there
    delays = [policy.delay(attempt, random.Random(0)) for attempt in (1, 20, 5000)]
    random.seed(1)
    state = tenacity.RetryCallState(tenacity.Retrying(), None, (), {})
    expected = []
    for state.attempt_number in (1, 20, 5000):
        expected.append(round(1000 * min(wait(state), LONGEST)))

    assert expected == delays


@pytest.mark.parametrize("stop", STOPS, ids=lambda each: type(each).__name__)
def test_a_stop_of_tenacity_decides(stop: Any) -> None:
    """By the number of the attempt."""
    policy = RetryPolicy(wait_none(), stop)
    state = tenacity.RetryCallState(tenacity.Retrying(), None, (), {})
    expected = []
    for state.attempt_number in range(1, 6):
        expected.append(stop(state))

    assert expected == [policy.exhausted(attempt) for attempt in range(1, 6)]


@pytest.mark.parametrize("name", NO_WAITS)
def test_a_wait_that_does_not_fit_a_stored_message_is_refused(name: str) -> None:
    """When the policy is made, wherever it stands in a combination."""
    wait: Any = NO_WAITS[name]
    with pytest.raises(InvalidArgument, match=r"^wait="):
        RetryPolicy(wait, stop_never)


@pytest.mark.parametrize("name", NO_STOPS)
def test_a_stop_that_does_not_fit_a_stored_message_is_refused(name: str) -> None:
    """When the policy is made, although no attempt of a combination may ever ask it."""
    stop: Any = NO_STOPS[name]
    with pytest.raises(InvalidArgument, match=r"^stop="):
        RetryPolicy(wait_none(), stop)


@pytest.mark.parametrize(
    ("stop", "cure"),
    [
        (stop_after_delay(5), "seconds_since_start, .*: give the message a ttl$"),
        (stop_when_event_set(Event()), "an event of one process"),
        (lambda state: state.outcome.failed, "outcome, .*: raise Retry"),
    ],
)
def test_a_refusal_names_the_cure(stop: Any, cure: str) -> None:
    """What the message itself, or its handler, has for that purpose."""
    with pytest.raises(InvalidArgument, match=cure):
        RetryPolicy(wait_none(), stop)


def test_an_object_that_chooses_by_exception_is_no_policy() -> None:
    """The options of a handler do that."""
    agent, retry = Agent("crm"), retry_if_result(lambda _: True)
    with pytest.raises(InvalidArgument, match="retry_on and no_retry"):
        agent.on("order", retry=retry)(print)  # type: ignore[arg-type]


def _late(broken: Callable[[], Any], good: Any) -> Any:
    """Return a function of an attempt that breaks at the hundredth."""
    return lambda state: broken() if state.attempt_number >= 100 else good


@pytest.mark.parametrize(
    "broken",
    [
        lambda: 1 / 0,
        lambda: float("nan"),
        lambda: float("inf"),
        lambda: -1,
        lambda: None,
        lambda: timedelta(seconds=-1),
    ],
)
def test_a_wait_that_breaks_later_waits_as_by_default(
    broken: Callable[[], Any], caplog: pytest.LogCaptureFixture
) -> None:
    """A second, doubled up to a minute, and the log says why."""
    policy = RetryPolicy(_late(broken, 7.0), stop_never)

    assert [7_000, 60_000] == [policy.delay(attempt, random.Random(0)) for attempt in (99, 100)]
    assert ["a retry policy's wait failed"] == [
        line.getMessage().partition(" attempt=")[0] for line in caplog.records
    ]


@pytest.mark.parametrize("broken", [lambda: 1 / 0, lambda: None, lambda: 1])
def test_a_stop_that_breaks_later_stops(
    broken: Callable[[], Any], caplog: pytest.LogCaptureFixture
) -> None:
    """So a message ends, and the log says why."""
    stop = _late(broken, good=False)
    policy = RetryPolicy(wait_none(), stop)

    assert [False, True] == [policy.exhausted(attempt) for attempt in (99, 100)]
    assert ["a retry policy's stop failed"] == [
        line.getMessage().partition(" attempt=")[0] for line in caplog.records
    ]


@pytest.mark.parametrize("jitter", [-0.1, 1.1, float("nan")])
def test_a_jitter_is_a_share(jitter: float) -> None:
    """More would make a delay negative."""
    with pytest.raises(InvalidArgument, match="jitter"):
        RetryPolicy(wait_none(), stop_never, jitter)
