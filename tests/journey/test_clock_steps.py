"""A wall clock that jumps and is set right delays mail by seconds, never by its jump."""

from collections.abc import Callable
from pathlib import Path

from onceward import Postbox
from onceward.errors import Unreachable
from onceward.model.clock import MonotonicFileClock
from onceward.model.parcel import Answer, Parcel
from onceward.testing import ManualClock
from onceward.transports.base import Features

DAY = 86_400.0


class LateTransport:
    """A transport of one test: there is no answer until a receiver is set."""

    features = Features(schemes=frozenset({"late"}))

    def __init__(self) -> None:
        self.accept: Callable[[Parcel], Answer] | None = None

    def deliver(self, url: str, parcel: Parcel) -> Answer:
        """Hand the parcel to the receiver, once there is one."""
        if self.accept is None:
            raise Unreachable(url)
        return self.accept(parcel)

    def close(self) -> None:
        """Nothing is held."""


def test_a_clock_set_back_by_a_day_holds_no_retry_back_for_a_day(tmp_path: Path) -> None:
    """A backoff that was written by a clock a day ahead ends after twice its span at most."""
    clock, late = ManualClock(), LateTransport()
    with (
        Postbox(tmp_path / "bob.db", agent="bob", start=False, clock=clock) as bob,
        Postbox(
            tmp_path / "ada.db",
            agent="ada",
            start=False,
            clock=clock,
            transports={"late": late},
            retry_jitter=0.0,
        ) as ada,
    ):
        ada.peers.register("bob", "late:bob")
        clock.step(DAY)
        mail = ada.send("bob", "hello")
        ada.run_until_idle()
        late.accept = bob.accept
        clock.step(-DAY)
        ada.run_until_idle()
        clock.advance(2.0)
        ada.run_until_idle()

        assert "sent" == ada.resolve(mail)


def test_whoever_dies_ahead_of_time_leaves_no_lease_a_day_away(tmp_path: Path) -> None:
    """
    The file itself remembers how far the clock had come.

    So the next process waits for a lease, not for the clock.
    """
    clock, path = ManualClock(), tmp_path / "ada.db"
    with Postbox(path, agent="ada", start=False, clock=clock, lease=5.0, hold_unknown=True) as ada:
        ada.send("ada", "hello")
        ada.run_until_idle()
        clock.step(DAY)
        taken = ada.receive()
        assert taken is not None
    clock.step(-DAY)
    with Postbox(path, agent="ada", start=False, clock=clock, lease=5.0) as ada:
        early = ada.receive()
        clock.advance(2 * (5.0 + 90.0))
        again = ada.receive()

        assert (None, 2) == (early, None if again is None else again.attempt)


def test_time_goes_on_at_half_pace_until_the_wall_clock_has_caught_up() -> None:
    """It never runs backwards, never stands still, and is the wall clock again in the end."""
    clock, time = ManualClock(), MonotonicFileClock()
    begun = time.now(clock)
    clock.step(-100.0)
    seen = [time.now(clock) - begun]
    for _ in range(3):
        clock.advance(100.0)
        seen.append(time.now(clock) - begun)

    assert [0, 50_000, 100_000, 200_000] == seen


def test_a_file_that_remembers_more_is_believed() -> None:
    """Time goes on from what the file has stored, whatever this process had seen before."""
    clock, time = ManualClock(), MonotonicFileClock()
    begun = time.now(clock)
    time.observe(begun + 10_000)
    clock.advance(4.0)
    first = time.now(clock)
    clock.advance(4.0)

    assert (10_000, 12_000) == (first - begun, time.now(clock) - begun)
    assert [False, True] == [
        begun + 100_000 > time.persist_after,
        begun + 100_001 > time.persist_after,
    ]


def test_a_process_that_never_saw_the_clock_ahead_learns_of_it(tmp_path: Path) -> None:
    """
    A time that one process of a file wrote ahead does not hold another process back.

    The other one reads how far the first had come.
    """
    clock, file = ManualClock(), MonotonicFileClock()
    ahead = file.now(clock) + 86_400_000
    file.observe_remote(ahead)
    heard = file.now(clock)
    clock.advance(10.0)
    file.observe_remote(ahead)

    assert (ahead, ahead + 5_000) == (heard, file.now(clock))
