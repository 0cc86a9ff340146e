"""A clock that stands still until a test turns it."""

import pytest

from onceward import Postbox
from onceward.testing import ManualClock
from onceward.testing.clock import START_AT


def test_it_stands_still() -> None:
    """Looking twice shows the same time: every run of a test sees the same dates."""
    clock = ManualClock()

    assert (START_AT, 0.0) == (clock.now(), clock.monotonic())
    assert (START_AT, 0.0) == (clock.now(), clock.monotonic())


def test_advance_moves_both_clocks() -> None:
    """Waiting moves the wall clock in milliseconds and the monotonic one in seconds."""
    clock = ManualClock(start_at=1000)

    clock.advance(1.5)

    assert (2500, 1.5) == (clock.now(), clock.monotonic())


def test_many_small_waits_do_not_drift() -> None:
    """A thousand milliseconds are a second, however they were waited."""
    clock = ManualClock(start_at=0)

    for _ in range(1000):
        clock.advance(0.001)

    assert (1000, 1.0) == (clock.now(), clock.monotonic())


def test_time_runs_one_way() -> None:
    """Waiting a negative time is a mistake of the test."""
    with pytest.raises(ValueError, match="step"):
        ManualClock().advance(-1)


def test_step_moves_the_wall_clock_alone() -> None:
    """A time server may set the clock back; no time is waited by that."""
    clock = ManualClock(start_at=10_000)

    clock.step(-3)

    assert (7000, 0.0) == (clock.now(), clock.monotonic())


def test_a_postbox_lives_by_it(postbox: Postbox, manual_clock: ManualClock) -> None:
    """Delayed mail leaves when the clock has been turned far enough, and not before."""
    postbox.send("tester", "later", delay=10)
    assert 0 == postbox.run_until_idle()

    manual_clock.advance(10)

    assert 0 < postbox.run_until_idle()
