"""Parts of a stored schedule are changed, in the file and from a shell."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest

from onceward import Agent, AsyncPostbox, Postbox
from onceward.errors import InvalidArgument, UnknownRecipient
from onceward.testing import Controls, ManualClock
from onceward.types import Tick

if TYPE_CHECKING:
    from pathlib import Path

    from tests.journey.conftest import World

STORED = "SELECT recipient, session, body, options FROM onceward_schedules"
SENT = "SELECT type, body FROM onceward_outbox ORDER BY seq"


def test_a_part_is_changed_and_the_others_stay(world: World) -> None:
    """Body, options, recipient and policies are those of before, until they are given."""
    world.open(Agent("bob"))
    box = world.open("ann")
    box.schedules.add("a", cron="0 3 * * *", timezone="Europe/Zurich", to="bob", body=1, type="t")
    before = box.query(STORED)
    moved = box.schedules.edit("a", cron="30 4 * * *", missed="all")
    same = box.query(STORED)
    box.schedules.edit("a", body=2, ttl="1h")

    assert before == same
    assert ("30 4 * * *", "Europe/Zurich", "all") == (moved.cron, moved.timezone, moved.missed)
    assert [("bob", "default", "2")] == [tuple(each[:3]) for each in box.query(STORED)]
    assert '{"ordering_key": "schedule.a", "ttl": 3600.0, "type": "t"}' == box.query(STORED)[0][3]


def test_a_changed_rule_applies_from_now(world: World) -> None:
    """Its next date is one of the new rule, and a pause and what was sent stay."""
    box = world.open("bob")
    box.schedules.add("a", every="1h", to="bob")
    world.wait(3600)
    box.schedules.pause("a")
    found = box.schedules.edit("a", every="10m")
    box.schedules.resume("a")
    world.wait(600)
    [then] = box.schedules.list()

    assert (600_000, True, 1) == (found.every, found.paused_at is not None, found.sent)
    assert 2 == then.sent
    assert 2 == len(box.query(SENT))


def test_the_dates_of_a_zone_keep_their_hour_over_a_change_of_the_clock(tmp_path: Path) -> None:
    """Half past four is an hour earlier in UTC from the day on that has one hour less."""
    clock = ManualClock(round(1000 * datetime(2027, 3, 26, 12, tzinfo=UTC).timestamp()))
    with Postbox(tmp_path / "a.db", agent="a", start=False, testing=Controls(clock=clock)) as box:
        box.schedules.add("a", cron="30 4 * * *", timezone="UTC")
        made = box.schedules.edit("a", timezone="Europe/Zurich")
        told = [made.local(at).strftime("%d %H:%M %z") for at in made.dates(4)]
        spans = [int(made.local(at).astimezone(UTC).hour) for at in made.dates(4)]

    assert ["27 04:30 +0100", "28 04:30 +0200", "29 04:30 +0200", "30 04:30 +0200"] == told
    assert [3, 2, 2, 2] == spans


def test_an_interval_takes_the_place_of_an_expression(world: World) -> None:
    """And back again; an interval has no zone."""
    box = world.open("bob")
    box.schedules.add("a", cron="0 3 * * *", timezone="Europe/Zurich")
    once = box.schedules.edit("a", every="1h")
    back = box.schedules.edit("a", cron="0 4 * * *")

    assert (3_600_000, None, None) == (once.every, once.cron, once.timezone)
    assert (None, "0 4 * * *", "UTC") == (back.every, back.cron, back.timezone)


@pytest.mark.parametrize(
    ("given", "error", "said"),
    [
        ({"cron": "often"}, InvalidArgument, "cron"),
        ({"cron": "0 3 * * *", "every": 3600}, InvalidArgument, "either"),
        ({"timezone": "Europe/Zurich"}, InvalidArgument, "interval"),
        ({"missed": "al"}, InvalidArgument, "missed"),
        ({"missed": "all", "overlap": "skip"}, InvalidArgument, "missed='all'"),
        ({"to": "nobody"}, UnknownRecipient, "nobody"),
        ({"prioriti": "low"}, TypeError, "did you mean priority"),
    ],
)
def test_a_wrong_part_changes_nothing(
    world: World, given: dict[str, Any], error: type[Exception], said: str
) -> None:
    """The error names it, and the schedule is as before."""
    box = world.open("bob")
    before = box.schedules.add("a", every="1h")
    with pytest.raises(error, match=said):
        box.schedules.edit("a", **given)

    assert before == box.schedules.get("a")


def test_a_declared_schedule_is_changed_in_the_code(world: World) -> None:
    """What the code says at each start would replace the change, so it is refused."""
    agent = Agent("bob")

    @agent.every("1h", name="hourly")
    def work(_: Tick) -> None: ...

    box = world.open(agent)
    with pytest.raises(InvalidArgument, match="declared by the agent's code"):
        box.schedules.edit("hourly", every="2h")
    with pytest.raises(InvalidArgument, match="no schedule 'hurly'"):
        box.schedules.edit("hurly", every="2h")

    assert 3_600_000 == box.schedules.list()[0].every


def test_the_async_face_edits_too(tmp_path: Path) -> None:
    """With the same arguments."""

    async def edited() -> int | None:
        async with AsyncPostbox(tmp_path / "a.db", agent="a", start=False) as box:
            await box.schedules.add("a", every="1h")
            return (await box.schedules.edit("a", every="2h")).every

    assert 7_200_000 == asyncio.run(edited())
