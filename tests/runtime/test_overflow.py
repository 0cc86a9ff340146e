"""A full queue: victims, refusals and what the next run is told; no message vanishes silently."""

from typing import Any

import pytest

from onceward import Postbox, Run
from onceward.errors import InvalidArgument
from onceward.model.queue_modes import QueuedItem, QueuePolicy, checked, make_room, summary_line


def paused(desk: Any, **options: Any) -> Any:
    """Return a desk whose session takes mail in and begins nothing."""
    one = desk(**options)
    one.box.queues.pause("s")
    return one


@pytest.mark.parametrize(
    ("overflow", "left", "ends"),
    [
        ("drop_old", [2, 3], ["dropped", "processed", "processed"]),
        ("summarize", [2, 3], ["dropped", "processed", "processed"]),
        ("reject", [1, 2], ["processed", "processed", "dead"]),
    ],
)
def test_a_policy_says_who_goes(desk: Any, overflow: str, left: list[int], ends: list[str]) -> None:
    """
    ``drop_old`` and ``summarize`` make space for the young; ``reject`` makes dead letters.

    Those can be replayed.
    """
    one = paused(desk, cap=2, overflow=overflow)
    ids = one.say(1, 2, 3)
    one.go()
    one.box.queues.resume("s")
    one.go()

    assert left == [body for bodies in one.seen for body in bodies]
    assert ends == [one.ends()[each] for each in ids]


def test_a_victim_can_be_read_in_sql_and_is_counted(desk: Any) -> None:
    """A dropped row says why and what it was; the totals and an event know of it."""
    one = paused(desk, cap=1, overflow="summarize")
    heard: list[Any] = []
    one.box.on("overflowed", heard.append)
    one.say("first thought", "second")
    one.go()

    rows = one.harness.sql("SELECT state, reason FROM onceward_inbox WHERE state = 'dropped'")
    assert [("dropped", "overflow: user: first thought")] == rows
    assert (1, [(1, 0)]) == (
        one.box.stats()["dropped"],
        [(event.dropped, event.refused) for event in heard],
    )


def test_the_sender_of_a_refused_message_learns_it(desk: Any) -> None:
    """Refusal is an outcome: the sender's row is failed, with the reason."""
    one = paused(desk, cap=1, overflow="reject")
    ids = one.say(1, 2)
    one.go()
    one.go(61)

    assert "failed" == one.user.resolve(ids[1])
    assert [("queue", "overflow", "s")] == one.harness.sql(
        "SELECT origin, reason, queue FROM onceward_dead_letters"
    )


def test_the_summary_is_given_to_the_next_run_once(desk: Any) -> None:
    """Count and one line per message, before the messages; the run after it is not told again."""
    one = paused(desk, mode="collect", cap=2, overflow="summarize")
    one.say("a", "b", "c", {"n": 4})
    one.go()
    one.box.queues.resume("s")
    one.go()
    one.say("e")
    one.go()

    assert (2, ("user: a", "user: b")) == (one.runs[0].summary.count, one.runs[0].summary.lines)
    assert (
        "2 earlier messages were dropped because the queue was full:\n- user: a\n- user: b"
        == str(one.runs[0].summary)
    )
    assert one.runs[1].summary is None


def test_the_summary_survives_a_failed_run_and_a_change_of_policy(desk: Any) -> None:
    """A failed run's notices are told to the next run, together with what was dropped since."""
    one = paused(desk, cap=1, overflow="summarize")

    def fails(_: Run) -> None:
        one.say("c", "d")
        one.harness.deliver()
        one.box.queues.set("s", overflow="drop_old", cap=5)
        raise RuntimeError("no")

    one.script = [fails]
    one.say("a", "b")
    one.go()
    one.box.queues.resume("s")
    one.go()
    one.go(1.5)

    assert [["b"], ["b"], ["d"]] == one.seen
    assert [("user: a",), ("user: a", "user: c"), None] == [
        run.summary and run.summary.lines for run in one.runs
    ]


def test_lines_are_bounded_and_the_count_is_not(desk: Any) -> None:
    """Of very many dropped messages the newest have a line, and all are counted."""
    one = paused(desk, cap=1, overflow="summarize")
    one.say(*range(251))
    one.go()
    one.box.queues.resume("s")
    one.go()

    assert (250, 200, "user: 50") == (
        one.runs[0].summary.count,
        len(one.runs[0].summary.lines),
        one.runs[0].summary.lines[0],
    )


def test_protected_messages_are_never_victims(desk: Any) -> None:
    """Critical mail may exceed the cap, and where only such is left a new message is refused."""
    one = paused(desk, cap=2, overflow="drop_old")
    ids = []
    for body, priority in (("x", "normal"), ("p", "critical"), ("q", "critical"), ("y", "normal")):
        ids += one.say(body, priority=priority)
        one.go()

    assert ["pending", "pending", "pending", "dead"] == [one.ends()[each] for each in ids]


def test_bound_messages_are_neither_counted_nor_victims(desk: Any) -> None:
    """The cap is for what waits: a run in progress loses nothing to it."""
    one = desk(cap=2, overflow="drop_old")

    def busy(_: Run) -> None:
        one.say(2, 3, 4)
        one.harness.deliver()

    one.script = [busy]
    one.say(1)

    assert [[1], [3], [4]] == one.go()


def test_a_burst_is_judged_message_by_message() -> None:
    """Arrivals of one look may push each other out, oldest first, whatever waited before."""
    fresh = [QueuedItem(seq) for seq in (7, 8, 9)]
    found = make_room(
        QueuePolicy(cap=2, overflow="drop_old"),
        held=1,
        protected=0,
        fresh=fresh,
        oldest=lambda n: [QueuedItem(1)][:n],
    )

    assert ([1, 7], []) == ([each.seq for each in found.dropped], found.refused)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"debounce": -3}, {"debounce_for": 0}),
        ({"debounce": 0.25}, {"debounce_for": 250}),
        ({"cap": 9.8}, {"cap": 9}),
        ({"cap": 1}, {"cap": 1}),
    ],
)
def test_settings_are_put_right(options: dict[str, Any], expected: dict[str, Any]) -> None:
    """A negative debounce is none, a fractional cap loses its fraction."""
    assert expected == {
        name: value for name, value in checked(options).items() if value is not None
    }


@pytest.mark.parametrize(
    "options",
    [{"cap": 0}, {"cap": 0.9}, {"cap": -1}, {"cap": "many"}, {"mode": "loud"}, {"overflow": "burn"},
     {"aborted": ""}, {"debounce": None, "x": 1}, {"cap": float("nan")}, {"debounce": float("inf")},
     {"cap": True}],
)  # fmt: skip
def test_settings_that_mean_nothing_are_refused(options: dict[str, Any], desk: Any) -> None:
    """The error says what is wrong, and the queue stays as it was."""
    one = desk(cap=7)

    with pytest.raises(InvalidArgument):
        one.box.queues.set("s", **options)
    assert one.box.queues.get("s") is None


def test_cap_zero_names_the_way_out() -> None:
    """Who wants no mail is told about pausing."""
    with pytest.raises(InvalidArgument, match="pause the queue"):
        checked({"cap": 0})


def test_the_nearest_level_wins(desk: Any, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """
    Session before agent, agent before home, home before default.

    None falls back to the next wider one.
    """
    one = desk({"queue_cap": 9.8, "queue_overflow": "reject"}, mode="collect", cap=5)
    one.box.queues.set("s", cap=3)
    one.box.queues.set("other")
    both = [(q.session, q.mode, q.cap, q.overflow, q.aborted) for q in one.box.queues.list()]
    one.box.queues.set("s")

    assert [
        ("other", "collect", 5, "reject", "return"),
        ("s", "collect", 3, "reject", "return"),
    ] == both
    assert 5 == one.box.queues.get("s").cap

    monkeypatch.setenv("ONCEWARD_QUEUE_MODE", "steer")
    with Postbox(tmp_path / "x.db", agent="x", start=False) as box:
        assert "steer" == box._settings.queue_mode


def test_lines_are_short_and_flat() -> None:
    """A line is one line, of at most 160 characters."""
    assert "a: b c" == summary_line("a", "b\n\n c")
    assert 160 == len(summary_line("a", "x" * 999))


def test_a_long_backlog_of_several_lanes_is_taken_in_its_order(
    desk: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However little one look takes in, nothing of a session overtakes what arrived before it."""
    monkeypatch.setattr("onceward.runtime.runs.scheduler.ARRIVALS", 3)
    monkeypatch.setattr("onceward.store.session_queues.LANES_MAX", 2)
    one = desk(cap=100)
    for n in range(20):
        one.say(n, ordering_key=f"lane {n % 4}")
    one.user.run_until_idle()
    arrived = [
        body
        for (body,) in one.harness.sql(
            "SELECT frame ->> '$.data' FROM _onceward_inbox ORDER BY seq"
        )
    ]

    assert [[body] for body in arrived] == one.go()
