"""Schedules: each date sends its message once, whatever process, clock or crash comes between."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any
from unittest.mock import patch
from zoneinfo import ZoneInfo

import pytest

from onceward import Agent, AsyncPostbox, Context, Postbox
from onceward.core.send.add import Outbox
from onceward.core.send.compose import Composer
from onceward.errors import InvalidArgument, InvalidMessage, TooLarge, UnknownRecipient
from onceward.message.clock import Millis
from onceward.message.dates import AT_ONCE, LATE, iso, make_rule
from onceward.testing import Controls
from onceward.types import Tick

if TYPE_CHECKING:
    from pathlib import Path

    from tests.journey.conftest import World

    from onceward.message.vocabulary import Missed

HOUR = 3_600_000
DATES = """
SELECT frame ->> '$.scheduledat' FROM onceward_outbox
 WHERE frame ->> '$.schedule' = 'tick' ORDER BY seq
"""
ZURICH = ZoneInfo("Europe/Zurich")


def at(text: str) -> Millis:
    """Return a date in milliseconds."""
    return round(1000 * datetime.fromisoformat(text).timestamp())


def dates(box: Postbox) -> list[str]:
    """Return the dates whose messages a file has sent."""
    return [date for (date,) in box.query(DATES)]


def test_each_date_sends_one_message(world: World) -> None:
    """A handler gets one tick for each date, in order, and the schedule says how far it is."""
    bob, heard = Agent("bob"), []

    @bob.every("1h", name="tick")
    def hear(tick: Tick, ctx: Context) -> None:
        heard.append((tick.schedule, tick.at, ctx.message.type))

    box = world.open(bob)
    [begun] = box.schedules.list()
    for _ in range(3):
        world.wait(3600)

    first = begun.next_at
    assert [("tick", first + k * HOUR, "schedule.tick") for k in range(3)] == heard
    [found] = box.schedules.list()
    assert (first + 3 * HOUR, 3, first + 2 * HOUR) == (found.next_at, found.sent, found.last_at)


@pytest.mark.parametrize(("missed", "sent"), [("one", 1), ("all", 5), ("skip", 0)])
def test_dates_that_passed_are_treated_as_said(world: World, missed: Missed, sent: int) -> None:
    """After a downtime one message is sent, or one for each date, or none; then it goes on."""
    box = world.open("bob")
    begun = box.schedules.add("tick", every="1h", missed=missed)
    world.shut()
    world.clock.forward(5.5 * 3600)
    (box,) = world.reopen("bob")
    world.settle()
    late = dates(box)
    world.wait(1800)

    last = begun.next_at + 4 * HOUR
    assert [iso(last - k * HOUR) for k in reversed(range(sent))] == late
    assert [*late, iso(last + HOUR)] == dates(box)


def test_a_date_that_is_hardly_late_is_not_skipped(world: World) -> None:
    """``skip`` counts a date as missed after a minute."""
    box = world.open("bob")
    box.schedules.add("tick", every="1h", missed="skip")
    world.wait(3600 + LATE / 1000)
    world.wait(3600 + 1)

    assert 1 == len(dates(box))


def test_many_dates_are_sent_by_several_commits(world: World) -> None:
    """A long downtime makes no transaction without bound, and leaves no date out."""
    box = world.open("bob")
    begun = box.schedules.add("tick", every=60, missed="all")
    count = 2 * AT_ONCE + 5
    world.wait(60 * count)

    assert [iso(begun.next_at + 60_000 * k) for k in range(count)] == dates(box)


def test_the_message_and_the_next_date_are_one_commit(world: World) -> None:
    """A crash before the commit leaves both as they were: the message is sent after it, once."""
    box = world.open("bob")
    begun = box.schedules.add("tick", every="1h")
    world.clock.forward(3600)
    with patch.object(Outbox, "add", side_effect=world.crash), pytest.raises(world.crash):
        box.run_until_idle()
    [broken] = box.schedules.list()
    (box,) = world.reopen("bob")
    world.settle()

    assert (begun.next_at, 0) == (broken.next_at, broken.sent)
    assert [iso(begun.next_at)] == dates(box)


def test_of_two_processes_one_sends(world: World) -> None:
    """A process that read the date before another sent its message sends none."""
    box = world.open("bob")
    begun = box.schedules.add("tick", every="1h")
    world.clock.forward(3600)
    with Postbox(
        world.path("bob"), agent="bob", start=False, testing=Controls(clock=world.clock)
    ) as other:
        compose = Composer.compose_at

        def overtaken(*given: Any) -> Any:
            with patch.object(Composer, "compose_at", compose):
                other.run_until_idle()
            return compose(*given)

        with patch.object(Composer, "compose_at", overtaken):
            box.run_until_idle()

    assert [iso(begun.next_at)] == dates(box)


def test_a_definition_that_was_replaced_sends_nothing(world: World) -> None:
    """A process that read the schedule before another replaced it leaves the date to the new."""
    box = world.open("bob")
    box.schedules.add("tick", every="1h", body="old")
    world.clock.forward(3600)
    with Postbox(
        world.path("bob"), agent="bob", start=False, testing=Controls(clock=world.clock)
    ) as other:
        compose = Composer.compose_at

        def overtaken(*given: Any) -> Any:
            with patch.object(Composer, "compose_at", compose):
                other.schedules.add("tick", every="1h", body="new")
            return compose(*given)

        with patch.object(Composer, "compose_at", overtaken):
            box.run_until_idle()
    world.settle()

    assert [("new",)] == box.query("SELECT body FROM onceward_inbox")


def test_a_clock_that_is_set_back_sends_nothing_twice(world: World) -> None:
    """A date that was sent has passed, whatever the clock says then."""
    box = world.open("bob")
    begun = box.schedules.add("tick", every="1h")
    world.wait(3600)
    world.clock.forward(-1800)
    world.settle()
    (box,) = world.reopen("bob")
    world.wait(1800)
    once = dates(box)
    world.wait(3600)

    assert [iso(begun.next_at)] == once
    assert [iso(begun.next_at), iso(begun.next_at + HOUR)] == dates(box)


def test_a_message_that_cannot_be_sent_holds_up_no_other(world: World) -> None:
    """Its schedule says why, and sends it once it can."""
    box = world.open("bob", hold_unknown=True)
    box.limits.set("session", "full", messages=1)
    box.session("full").send("carol", 1)
    box.schedules.add("stuck", every="1h", session="full", to="carol")
    box.schedules.add("tick", every="1h")
    world.wait(3600)
    stuck = box.schedules.get("stuck")
    sent = len(dates(box))
    box.limits.remove("session", "full")
    world.wait(10)
    moved = box.schedules.get("stuck")

    assert stuck is not None
    assert moved is not None
    assert (0, True, 1) == (stuck.sent, "full" in str(stuck.last_error), sent)
    assert (1, None, stuck.next_at + HOUR) == (moved.sent, moved.last_error, moved.next_at)


def test_a_pause_sends_nothing_and_is_not_made_up_for(world: World) -> None:
    """``resume`` goes on with the next date; ``run_now`` sends beside the dates."""
    box = world.open("bob")
    begun = box.schedules.add("tick", every="1h")
    assert [True, False] == [box.schedules.pause("tick") for _ in range(2)]
    box.schedules.add("tick", every="1h")
    world.wait(3 * 3600 + 60)
    silent = dates(box)
    box.schedules.run_now("tick")
    assert [True, False] == [box.schedules.resume("tick") for _ in range(2)]
    world.settle()
    beside = dates(box)
    world.wait(3600)

    assert ([], 1) == (silent, len(beside))
    assert [*beside, iso(begun.next_at + 3 * HOUR)] == dates(box)


def test_adding_again_changes_nothing_and_another_definition_replaces(world: World) -> None:
    """A program may add its schedules at every start; a new rule gives a new date."""
    box = world.open("bob")
    begun = box.schedules.add("tick", every="1h", body={"n": 1})
    world.wait(1800)
    again = box.schedules.add("tick", every="1h", body={"n": 1})
    other_body = box.schedules.add("tick", every="1h", body={"n": 2})
    other_rule = box.schedules.add("tick", every="2h", body={"n": 2})
    moved = box.schedules.add("tick", every="2h", body={"n": 2}, start_at=begun.next_at + 5)

    assert [begun.next_at] * 2 == [again.next_at, other_body.next_at]
    assert begun.next_at + 1.5 * HOUR == other_rule.next_at
    assert begun.next_at + 5 == moved.next_at
    assert [True, False] == [box.schedules.remove("tick") for _ in range(2)]


def test_adding_again_with_a_start_loses_no_date_that_passed(world: World) -> None:
    """A program that says *start_at* at every start sends what it missed, as without one."""
    box = world.open("bob")
    start = box._db.now() // HOUR * HOUR + 2 * HOUR
    rules: dict[str, dict[str, Any]] = {"tick": {"every": "1h"}, "cron": {"cron": "0 * * * *"}}
    for name, rule in rules.items():
        box.schedules.add(name, missed="all", start_at=start, **rule)
    world.clock.forward((start - box._db.now()) / 1000 + 2.5 * 3600)
    again = [
        box.schedules.add(name, missed="all", start_at=start, **rule)
        for name, rule in rules.items()
    ]
    earlier = box.schedules.add("cron", missed="all", start_at=start + HOUR, **rules["cron"])
    box.run_until_idle()

    assert [start, start] == [each.next_at for each in again]
    assert start + 3 * HOUR == earlier.next_at
    assert [iso(start + k * HOUR) for k in range(3)] == dates(box)


def test_bodies_and_options_arrive_as_they_were_given(world: World) -> None:
    """What a schedule sends is what ``send`` would send."""
    box = world.open("bob")
    box.schedules.add("a", every=1, body=b"\x00\xff", topic="t.x", headers={"tags": "x"})
    box.schedules.add("b", every=1, body="text", priority="urgent", ttl=timedelta(hours=1))
    box.schedules.add("c", every=1, body={"n": 0.1}, type="job", session="s")
    world.wait(1)
    found = {m.headers["schedule"]: m for m in (box.receive(), box.receive()) if m is not None}
    other = box.session("s").receive()

    assert (b"\x00\xff", "t.x", "x") == (
        found["a"].body,
        found["a"].topic,
        found["a"].headers["tags"],
    )
    assert ("text", "urgent") == (found["b"].body, found["b"].priority)
    assert other is not None
    assert ({"n": 0.1}, "job") == (other.body, other.type)


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ({}, InvalidArgument),
        ({"every": 5, "cron": "* * * * *"}, InvalidArgument),
        ({"every": 0.5}, InvalidArgument),
        ({"every": 5, "timezone": "UTC"}, InvalidArgument),
        ({"cron": "* * *"}, InvalidArgument),
        ({"cron": "0 0 30 2 *"}, InvalidArgument),
        ({"cron": "* * * * * *"}, InvalidArgument),
        ({"cron": ""}, InvalidArgument),
        ({"cron": "* * * * *", "timezone": ""}, InvalidArgument),
        ({"cron": 7}, InvalidArgument),
        ({"cron": b"* * * * *"}, InvalidArgument),
        ({"cron": f"{'9' * 5000} * * * *"}, InvalidArgument),
        ({"cron": "* * * * *", "timezone": "Mars/Base"}, InvalidArgument),
        ({"cron": "* * * * *", "timezone": "../../etc/passwd"}, InvalidArgument),
        ({"every": 5, "missed": "some"}, InvalidArgument),
        ({"every": 5, "to": "carol"}, UnknownRecipient),
        ({"every": 5, "body": object()}, InvalidMessage),
        ({"every": 5, "body": "x" * 2_000_000}, TooLarge),
        ({"every": 5, "headers": {"id": "x"}}, InvalidMessage),
        ({"every": 5, "key": "x"}, TypeError),
        ({"every": 5, "name": "a b"}, InvalidArgument),
        ({"every": 5, "name": ""}, InvalidArgument),
        ({"every": 5, "session": ""}, InvalidMessage),
        ({"every": 5, "to": ""}, InvalidArgument),
    ],
)
def test_what_cannot_be_sent_is_refused_when_it_is_added(
    world: World, given: dict[str, Any], error: type[Exception]
) -> None:
    """Nothing is stored then."""
    box = world.open("bob")
    with pytest.raises(error):
        box.schedules.add(**({"name": "tick"} | given))

    assert [] == box.schedules.list()


def test_cron_dates_are_those_of_the_time_zone() -> None:
    """Three o'clock is three o'clock in winter and in summer."""
    rule = make_rule(None, "0 3 * * *", "Europe/Zurich")
    march = at("2026-03-28T12:00:00+01:00")
    found = [march := rule.after(march, date=march) for _ in range(2)]

    assert [at("2026-03-29T03:00:00+02:00"), at("2026-03-30T03:00:00+02:00")] == found


def test_an_hour_that_is_skipped_moves_its_date_and_one_that_comes_twice_has_it_once() -> None:
    """02:30 is 03:00 where the clock jumps over it, and the first one where it comes twice."""
    rule = make_rule(None, "30 2 * * *", "Europe/Zurich")
    spring, autumn = at("2026-03-28T12:00:00+01:00"), at("2026-10-24T12:00:00+02:00")
    nights = [autumn := rule.after(autumn, date=autumn) for _ in range(2)]

    assert at("2026-03-29T03:00:00+02:00") == rule.after(spring, date=spring)
    assert [at("2026-10-25T02:30:00+02:00"), at("2026-10-26T02:30:00+01:00")] == nights


def test_each_night_has_one_date_in_every_year() -> None:
    """No change of the clock doubles or drops a night, and looking back finds the same dates."""
    rule = make_rule(None, "30 2 * * *", "Europe/Zurich")
    date, found = at("2026-01-01T00:00:00+01:00"), []
    for _ in range(730):
        date = rule.after(date, date=date)
        found.append(date)
    back = [rule.until(each + 1000, date=0) for each in found]

    assert 730 == len({datetime.fromtimestamp(d / 1000, ZURICH).date() for d in found})
    assert found == back


def test_a_start_is_the_first_date(world: World) -> None:
    """An interval counts from it, a cron expression has no date before it."""
    box = world.open("bob")
    start = datetime(2030, 1, 1, 12, tzinfo=UTC)
    every = box.schedules.add("a", every="1h", start_at=start)
    cron = box.schedules.add("b", cron="0 12 * * *", start_at=start)
    past = box.schedules.add("c", every="1h", start_at=datetime(2000, 1, 1, 0, 30, tzinfo=UTC))

    noon = at("2030-01-01T12:00:00+00:00")
    assert [noon, noon] == [every.next_at, cron.next_at]
    assert HOUR / 2 == past.next_at % HOUR


@pytest.mark.parametrize("given", [{"name": ""}, {"timezone": ""}, {"session": ""}])
def test_an_empty_word_is_no_default(given: dict[str, Any]) -> None:
    """A declaration refuses it, as it refuses a wrong one."""
    with pytest.raises(InvalidArgument, match=next(iter(given))):
        Agent("bob").cron("* * * * *", **given)(lambda _: None)


def test_two_declarations_of_one_name_are_refused() -> None:
    """Neither would know which dates are its own."""
    agent = Agent("bob")

    def hear(tick: Tick) -> None:
        raise NotImplementedError

    agent.every(5)(hear)
    with pytest.raises(InvalidArgument, match=r"already handles 'schedule.hear'"):
        agent.cron("* * * * *")(hear)
    with pytest.raises(InvalidArgument, match="brackets"):
        agent.every(hear)  # type: ignore[arg-type]


def test_the_async_face_has_the_same_calls(tmp_path: Path) -> None:
    """Engines send at the dates, also of a schedule that was added while they wait."""

    async def journey() -> str:
        async with AsyncPostbox(tmp_path / "bob.db", agent="bob") as box:
            await box.schedules.add("tick", every=1)
            message = await box.receive(timeout=60)
            assert message is not None
            await message.ack()
            return str(message.headers["schedule"])

    assert "tick" == asyncio.run(journey())
