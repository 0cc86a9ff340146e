"""Spans and moments in calls: a timedelta, a datetime or text says the same as a number."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from onceward import Agent, Postbox, Retry
from onceward.errors import AnswerTimeout, InvalidArgument, InvalidMessage
from onceward.testing import Controls
from onceward.testing.clock import ManualClock
from onceward.types import Start

NOW = 1_767_225_600_000
START = datetime(2026, 1, 1, tzinfo=UTC)
DUE = "SELECT due_at, expires_at FROM onceward_outbox ORDER BY seq DESC LIMIT 1"


@pytest.fixture
def clock() -> ManualClock:
    """Return a clock that stands still at a known date."""
    return ManualClock(NOW)


@pytest.fixture
def box(tmp_path: Path, clock: ManualClock) -> Iterator[Postbox]:
    """Return a postbox that sends messages to itself."""
    with Postbox(
        tmp_path / "a.db", agent="a", start=False, hold_unknown=True, testing=Controls(clock=clock)
    ) as opened:
        yield opened


@pytest.mark.parametrize("span", [90, 90.0, timedelta(seconds=90), "90s", "1m30s"])
def test_delay_and_ttl_take_a_span(box: Postbox, span: Any) -> None:
    """A message leaves and expires as long after its send."""
    box.send("b", 1, delay=span, ttl=span)

    assert [(NOW + 90_000, NOW + 90_000)] == box.query(DUE)


@pytest.mark.parametrize(
    "at", [START + timedelta(hours=1), NOW + 3_600_000, "2026-01-01T01:00:00Z"]
)
def test_a_message_leaves_at_a_moment(box: Postbox, at: Any) -> None:
    """``at`` says when, ``delay`` in how long; a moment that has passed is now."""
    with box.begin() as tx:
        tx.send("b", 1, at=at)

    assert [(NOW + 3_600_000, None)] == box.query(DUE)


def test_a_moment_that_has_passed_is_now(box: Postbox) -> None:
    """A message that is late already leaves at once."""
    box.send("b", 1, at=START - timedelta(hours=1))

    assert [(None, None)] == box.query(DUE)


@pytest.mark.parametrize(
    "options",
    [
        {"at": START, "delay": 5},
        {"at": NOW / 1000},
        {"at": START.replace(tzinfo=None)},
        {"at": "2h"},
        {"delay": timedelta(seconds=-1)},
        {"ttl": "soon"},
    ],
    ids=repr,
)
def test_a_time_that_cannot_be_meant_is_refused(box: Postbox, options: Any) -> None:
    """The message is not written."""
    with pytest.raises(InvalidMessage):
        box.send("b", 1, **options)
    assert 0 == box.file.stats()["enqueued"]


@pytest.mark.parametrize(
    ("since", "until", "expected"),
    [
        (START + timedelta(minutes=1), None, [2]),
        (None, START + timedelta(minutes=1), [1]),
        (timedelta(minutes=5), None, [2]),
        ("5m", None, [2]),
        ("2026-01-01T00:01:00Z", "2026-01-01T01:00:00Z", [2]),
        (NOW, NOW + 1, [1]),
        (0, None, [2, 1]),
    ],
)
def test_history_takes_moments(
    box: Postbox, clock: ManualClock, since: Any, until: Any, expected: list[int]
) -> None:
    """A datetime, milliseconds, a date as text, or how long ago it was."""
    box.send("b", 1)
    clock.advance(600)
    box.send("b", 2)

    assert expected == [past.body for past in box.history(since=since, until=until).messages]


@pytest.mark.parametrize("name", ["since", "until"])
@pytest.mark.parametrize("given", [NOW / 1000, NOW * 1000, True, "yesterday", ""], ids=repr)
def test_history_refuses_mistaken_units(box: Postbox, name: str, given: Any) -> None:
    """Seconds or microseconds would give an empty page without a word."""
    with pytest.raises(InvalidArgument, match=rf"^{name} "):
        box.history(**{name: given})


def test_a_position_starts_from_a_datetime(box: Postbox, clock: ManualClock) -> None:
    """A reader of a mailbox begins at a moment, however it is written."""
    jobs = box.mailboxes.create("jobs", public=True, ttl=timedelta(days=1))
    jobs.send(1)
    box.run_until_idle()
    clock.advance(600)
    jobs.send(2)
    box.run_until_idle()
    starts: tuple[Any, ...] = (
        START + timedelta(minutes=1),
        NOW + 60_000,
        "5m",
        timedelta(minutes=5),
    )
    found = [
        [record.body for record in jobs.read(f"r{n}", start=Start("from_time", start))]
        for n, start in enumerate(starts)
    ]

    assert [[2]] * 4 == found
    with pytest.raises(InvalidArgument):
        Start("from_time", NOW // 1000)


def test_waits_take_a_timedelta(box: Postbox) -> None:
    """Every timeout may be a timedelta or text; one that is none is refused at once."""
    nothing, short = timedelta(0), timedelta(milliseconds=1)
    box.send("b", 1)

    assert (None, None, 1) == (
        box.receive(timeout=nothing),
        box.receive(timeout="1ms"),
        box.flush(timeout=short),
    )
    with pytest.raises(AnswerTimeout, match=r"within 0\.001 s"):
        box.ask("b", 1, reply=int, timeout=short)
    with pytest.raises(InvalidArgument, match=r"^timeout "):
        box.receive(timeout=-1)


@pytest.mark.parametrize("after", [600, timedelta(minutes=10), "10m"])
def test_a_retry_takes_a_span(tmp_path: Path, clock: ManualClock, after: Any) -> None:
    """``Retry(after=)`` and ``message.retry(after=)`` mean the same as seconds."""
    agent, tries = Agent("a"), list[int]()

    @agent.on("json")
    def handle(body: int) -> None:
        tries.append(body)
        if len(tries) == 1:
            raise Retry(after=after)

    with Postbox(tmp_path / "a.db", agent=agent, start=False, testing=Controls(clock=clock)) as box:
        box.send("a", 1)
        for step in (599, 1):
            box.run_until_idle()
            before = len(tries)
            clock.advance(step)
        box.run_until_idle()

    assert (1, 2) == (before, len(tries))


def test_a_retry_after_no_span_follows_the_policy(tmp_path: Path, clock: ManualClock) -> None:
    """A mistake in ``after`` costs the message nothing: it is told, and tried again by policy."""
    agent = Agent("a")

    @agent.on("json")
    def handle(body: int) -> None:
        raise Retry("not yet", after="soon")

    with Postbox(tmp_path / "a.db", agent=agent, start=False, testing=Controls(clock=clock)) as box:
        box.send("a", 1)
        box.run_until_idle()
        [(state, reason)] = box.query("SELECT state, reason FROM onceward_inbox")

    assert "pending" == state
    assert "not yet (after 'soon' is not a valid duration" in reason


RATES = "SELECT name, per_second, burst FROM _onceward_rate_limits ORDER BY name"


@pytest.mark.parametrize(
    ("given", "burst", "expected"),
    [
        (2, None, [("accept", 2.0, 100.0), ("send", 2.0, 1.0)]),
        ("2/s", None, [("accept", 2.0, 2.0), ("send", 2.0, 2.0)]),
        ("30/m", 5, [("accept", 0.5, 5.0), ("send", 0.5, 5.0)]),
    ],
)
def test_limits_take_rates(
    box: Postbox, given: Any, burst: float | None, expected: list[tuple[Any, ...]]
) -> None:
    """A number a second, or text as for handlers, all of whose messages may come at once."""
    box.limits.set("send", rate=7)
    box.limits.set("accept", rate=7)
    box.limits.set("send", rate=given, burst=burst)
    box.limits.set("accept", rate=given, burst=burst)

    assert expected == box.query(RATES)


def test_a_rate_is_removed_by_its_scope(box: Postbox) -> None:
    """It is gone, and the other one stays; a second removal finds nothing."""
    box.limits.set("send", rate=7)
    box.limits.set("accept", rate=7)

    assert [True, False] == [box.limits.remove("send"), box.limits.remove("send")]
    assert ["accept"] == [limit.scope for limit in box.limits.list()]


@pytest.mark.parametrize(
    "limit",
    [
        lambda box: box.limits.set("send", rate="often"),
        lambda box: box.limits.set("accept", rate=0),
        lambda box: box.limits.set("send", rate="2/s", burst=0.5),
        lambda box: box.dead_letters.replay_all(rate="0/s"),
    ],
)
def test_what_is_no_rate_is_refused(box: Postbox, limit: Any) -> None:
    """Nothing is written."""
    with pytest.raises(InvalidArgument):
        limit(box)

    assert [] == box.query(RATES)
