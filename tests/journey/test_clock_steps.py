"""A wall clock that jumps and is set right delays mail by seconds, never by its jump."""

from __future__ import annotations

import random
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from onceward import Postbox
from onceward.core.deliver.transport import Features
from onceward.errors import Unreachable
from onceward.message.clock import MonotonicFileClock
from onceward.message.parcel import Answer, Parcel
from onceward.testing import Controls, ManualClock
from onceward.testing.clock import START_AT

if TYPE_CHECKING:
    from onceward.message.vocabulary import Missed

DAY = 86_400.0
HOUR = 3_600_000


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
        Postbox(
            tmp_path / "bob.db", agent="bob", start=False, testing=Controls(clock=clock)
        ) as bob,
        Postbox(
            tmp_path / "ada.db",
            agent="ada",
            start=False,
            testing=Controls(clock=clock),
            transports={"late": late},
            delivery_retry="±0%",
            handler_retry="±0%",
        ) as ada,
    ):
        ada.peers.add("bob", "late:bob")
        clock.step(DAY)
        mail = ada.send("bob", "hello")
        ada.run_until_idle()
        late.accept = bob.accept
        clock.step(-DAY)
        ada.run_until_idle()
        clock.advance(2.0)
        ada.run_until_idle()

        assert "sent" == ada.state(mail)


def test_whoever_dies_ahead_of_time_leaves_no_lease_a_day_away(tmp_path: Path) -> None:
    """
    The file itself remembers how far the clock had come.

    So the next process waits for a lease, not for the clock.
    """
    clock, path = ManualClock(), tmp_path / "ada.db"
    with Postbox(
        path, agent="ada", start=False, testing=Controls(clock=clock), lease=5.0, hold_unknown=True
    ) as ada:
        ada.send("ada", "hello")
        ada.run_until_idle()
        clock.step(DAY)
        taken = ada.receive()
        assert taken is not None
    clock.step(-DAY)
    with Postbox(path, agent="ada", start=False, testing=Controls(clock=clock), lease=5.0) as ada:
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


def hourly(box: Postbox, name: str = "tick") -> list[int]:
    """Return the dates whose messages a file has sent, in the order of sending."""
    sql = "SELECT frame ->> '$.scheduledat' FROM onceward_outbox WHERE frame ->> '$.schedule' = ?"
    return [
        round(1000 * datetime.fromisoformat(at).timestamp()) for (at,) in box.query(sql, (name,))
    ]


def wait_hours(box: Postbox, clock: ManualClock, hours: int) -> None:
    """Let hours pass, ten minutes at a time."""
    for _ in range(6 * hours):
        clock.advance(600)
        box.run_until_idle()


@pytest.mark.parametrize("missed", ["one", "skip"])
def test_an_hourly_job_goes_on_hourly_after_a_minute_a_day_ahead(
    tmp_path: Path, missed: Missed
) -> None:
    """Each hour has its date, none is sent twice, also when the clock reaches those of the jump."""
    clock = ManualClock()
    with Postbox(
        tmp_path / "bob.db", agent="bob", start=False, testing=Controls(clock=clock)
    ) as box:
        first = box.schedules.add("tick", every="1h", missed=missed).next_at
        wait_hours(box, clock, 1)
        clock.step(DAY + 600)
        wait_hours(box, clock, 1)
        clock.step(-DAY - 600)
        wait_hours(box, clock, 30)
        sent = hourly(box)

    hours = [(at - first) // HOUR for at in sent]
    jumped = [24, 25] if missed == "one" else [25]
    assert len(set(hours)) == len(hours)
    assert [0, *jumped] == hours[: 1 + len(jumped)]
    assert [n for n in range(2, 32) if n not in jumped] == hours[1 + len(jumped) :]


def test_each_date_is_sent_once_where_all_are_sent(tmp_path: Path) -> None:
    """A jump sends the dates up to it; the clock that was set back repeats none of them."""
    clock, path = ManualClock(), tmp_path / "bob.db"
    with Postbox(path, agent="bob", start=False, testing=Controls(clock=clock)) as box:
        first = box.schedules.add("tick", every="1h", missed="all", start_at=clock.now()).next_at
        clock.step(DAY)
        box.run_until_idle()
        clock.step(-DAY)
        box.schedules.add("tick", every="1h", missed="all", start_at=clock.now())
        box.run_until_idle()
    with Postbox(path, agent="bob", start=False, testing=Controls(clock=clock)) as box:
        wait_hours(box, clock, 26)
        sent = hourly(box)

    assert [first + n * HOUR for n in range(26)] == sent


def test_a_clock_that_jumps_again_and_again_repeats_no_date(tmp_path: Path) -> None:
    """Whatever was sent ahead, and by whichever process, is not sent again."""
    clock, path, dice = ManualClock(), tmp_path / "bob.db", random.Random(5)
    for _ in range(40):
        with Postbox(path, agent="bob", start=False, testing=Controls(clock=clock)) as box:
            for name in ("one", "all", "skip"):
                box.schedules.add(name, every="1m", missed=name, start_at=START_AT)
            clock.step(dice.choice((0, 600, -600, 4000, -4000, 90)))
            for _ in range(5):
                clock.advance(dice.choice((20, 60, 200)))
                box.run_until_idle()
            sent = {name: hourly(box, name) for name in ("one", "all", "skip")}

    assert {name: len(dates) for name, dates in sent.items()} == {
        name: len(set(dates)) for name, dates in sent.items()
    }
    assert list(range(sent["all"][0], sent["all"][-1] + 1, 60_000)) == sent["all"]


def test_a_message_that_waits_to_be_sent_does_not_wait_for_the_clock(tmp_path: Path) -> None:
    """A schedule that could not send while the clock was ahead tries again as it did before."""
    clock = ManualClock()
    with Postbox(
        tmp_path / "bob.db",
        agent="bob",
        start=False,
        testing=Controls(clock=clock),
        hold_unknown=True,
    ) as box:
        box.limits.set("session", "full", messages=1)
        box.session("full").send("carol", 1)
        box.schedules.add("tick", every="1h", session="full", to="carol")
        clock.step(DAY)
        box.run_until_idle()
        clock.step(-DAY)
        box.limits.remove("session", "full")
        wait_hours(box, clock, 2)

        assert 2 == len(hourly(box))


def test_a_pause_that_ends_after_the_clock_was_set_back_ends_at_once(tmp_path: Path) -> None:
    """The next date is the first one of the wall clock that was not sent."""
    clock = ManualClock()
    with Postbox(
        tmp_path / "bob.db", agent="bob", start=False, testing=Controls(clock=clock)
    ) as box:
        first = box.schedules.add("tick", every="1h").next_at
        clock.step(DAY)
        box.run_until_idle()
        box.schedules.pause("tick")
        clock.step(-DAY)
        box.schedules.resume("tick")
        [found] = box.schedules.list()

    assert first == found.next_at


def test_health_tells_how_far_the_file_is_ahead_of_the_clock(tmp_path: Path) -> None:
    """Also to a process that never saw the clock ahead."""
    clock, path = ManualClock(), tmp_path / "bob.db"
    with Postbox(path, agent="bob", start=False, testing=Controls(clock=clock)) as box:
        level = box.file.health().clock_ahead
        clock.step(DAY)
        box.send("bob", "hello")
        clock.step(-DAY)
    with Postbox(path, agent="bob", start=False, testing=Controls(clock=clock)) as box:
        ahead = box.file.health().clock_ahead

    assert (0, 1000 * DAY) == (level, ahead)


@pytest.mark.parametrize("start", [False, True])
@pytest.mark.parametrize("missed", ["one", "all", "skip"])
def test_a_schedule_declared_while_the_clock_was_ahead_runs_once_it_is_right(
    tmp_path: Path, missed: Any, *, start: bool
) -> None:
    """Each hour, from the first hour on, and not before its start."""
    clock = ManualClock()
    begin = datetime.fromtimestamp(clock.now() / 1000, UTC)
    given: dict[str, Any] = {"start_at": begin} if start else {}
    clock.step(86_400)
    with Postbox(
        tmp_path / "bob.db", agent="bob", start=False, testing=Controls(clock=clock)
    ) as box:
        rules: dict[str, dict[str, Any]] = {"every": {"every": "1h"}, "cron": {"cron": "0 * * * *"}}
        for name, rule in rules.items():
            box.schedules.add(name, missed=missed, **rule, **given)
        clock.step(-86_400)
        box.run_until_idle()
        for _ in range(3):
            clock.advance(3600)
            box.run_until_idle()

        assert [("cron", 3), ("every", 3)] == [(e.name, e.sent) for e in box.schedules.list()]
