"""Retry policies: the pauses and budgets of the presets are what their names promise."""

import random

import pytest
from tenacity import stop_after_attempt, wait_fixed, wait_incrementing

from onceward import RetryPolicy, Settings


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
    """No pause is longer than ``retry_cap``, and jitter still varies it."""
    policy = Settings(retry_first=1, retry_cap=10, retry_jitter=0.5).delivery_policy
    rng = random.Random(1)
    pauses = {policy.delay(attempt, rng) for attempt in range(1, 12) for _ in range(50)}

    assert 10_000 == max(pauses)
    assert len(pauses) > 100
