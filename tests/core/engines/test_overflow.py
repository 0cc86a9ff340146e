"""A full queue: victims, refusals and what the next run is told; no message vanishes silently."""

from typing import Any

import pytest

from onceward import Postbox, Run, Settings
from onceward.errors import InvalidArgument, RequestFailed
from onceward.events import Dropped, Overflowed
from onceward.message.queue_modes import QueuedItem, QueuePolicy, checked, make_room, summary_line


def paused(scripted_agent: Any, settings: Any = None, **options: Any) -> Any:
    """Return an agent whose session takes mail in and begins nothing."""
    one = scripted_agent(settings, **options) if settings else scripted_agent(**options)
    one.box.runs.pause("s")
    return one


def test_a_session_with_default_settings_drops_nothing(scripted_agent: Any) -> None:
    """Thirty messages that come at once are handled, one by one, and their sender sees so."""
    one = scripted_agent()
    ids = one.say(*range(30))
    one.go()
    one.go(61)

    assert [[n] for n in range(30)] == one.seen
    assert {"acked"} == {one.user.state(each) for each in ids}
    assert (None, "reject") == (one.box.runs.queue("s").cap, one.box.runs.queue("s").overflow)


def test_twenty_and_a_summary_are_one_preset_away(scripted_agent: Any) -> None:
    """The preset holds at most 20 messages, drops the oldest, and tells the next run."""
    preset = Settings.summarize_beyond_20()
    one = paused(scripted_agent, {name: getattr(preset, name) for name in preset.model_fields_set})
    one.say(*range(30))
    one.go()
    queue = one.box.runs.queue("s")

    assert (20, "summarize", 1.0) == (queue.cap, queue.overflow, queue.debounce)
    assert (20, 10) == (queue.waiting, queue.dropped)


def test_drops_count_while_the_run_that_is_told_of_them_is_open(scripted_agent: Any) -> None:
    """All drops that a run summarizes are the queue's until the run has ended."""
    one = paused(scripted_agent, cap=1, overflow="summarize")
    found = list[int]()
    one.script = [lambda _: found.append(one.box.runs.queue("s").dropped)]
    one.say(*range(5))
    one.go()
    one.box.runs.resume("s")
    one.go(61)

    assert ([4], 0) == (found, one.box.runs.queue("s").dropped)


@pytest.mark.parametrize("mode", ["followup", "queue"])
def test_a_full_queue_refuses_where_nothing_else_is_said(scripted_agent: Any, mode: str) -> None:
    """With a cap and no policy the sender of the message too many sees that it failed."""
    one = paused(scripted_agent, mode=mode, cap=1)
    ids = one.say(1, 2)
    one.go()
    one.go(61)

    assert ["sent", "failed"] == [one.user.state(each) for each in ids]
    assert "overflow" == one.harness.sql("SELECT reason FROM onceward_dead_letters")[0][0]


@pytest.mark.parametrize("overflow", ["drop_old", "summarize"])
def test_a_sender_is_told_of_a_drop_and_its_policy(scripted_agent: Any, overflow: str) -> None:
    """A message that a full queue dropped ends as dropped for its sender, by an event, too."""
    one = paused(scripted_agent, cap=1, overflow=overflow)
    heard: dict[str, list[Any]] = {"there": [], "here": []}
    one.user.on(Dropped, heard["there"].append)
    one.box.on(Dropped, heard["here"].append)
    ids = one.say(1, 2)
    one.go()
    one.go(61)
    told = "the queue of session 's' is full at 1"

    assert ["dropped", "sent"] == [one.user.state(each) for each in ids]
    assert f"{overflow}: {told}" == one.user.history(state="dropped").messages[0].reason
    assert [(ids[0], overflow, told)] == [(e.message_id, e.policy, e.scope) for e in heard["there"]]
    assert [(ids[0], overflow, "queue s")] == [
        (e.message_id, e.policy, e.scope) for e in heard["here"]
    ]
    assert (1, 0) == (one.user.file.stats()["outbox_dropped"], one.user.file.stats()["acked"])
    assert (1, 1) == (one.box.file.stats()["dropped"], one.box.file.stats()["dropped_by_policy"])


def test_a_drop_is_told_again(scripted_agent: Any) -> None:
    """A sender whose receipt got lost is told of the drop, not of success, when it asks."""
    one = paused(scripted_agent, cap=1, overflow="drop_old")
    ids = one.say(1, 2)
    one.user.run_until_idle()
    one.box._runners[0].run_due()
    one.box._db.write(lambda tx: tx.run("DELETE FROM _onceward_receipts"))
    one.go(61)

    assert ["dropped", "sent"] == [one.user.state(each) for each in ids]


def test_a_request_that_a_policy_drops_fails(scripted_agent: Any) -> None:
    """The wait for the reply to a dropped request ends with the policy."""
    one = paused(scripted_agent, cap=1, overflow="drop_old")
    ticket = one.user.session("s").request(one.box.agent, 1)
    one.say(2)
    one.go()
    one.go(61)

    with pytest.raises(RequestFailed, match="dropped: drop_old: the queue of session 's' is full"):
        one.user.result(ticket, reply=int)


def test_a_message_removed_from_its_queue_is_told_so(scripted_agent: Any) -> None:
    """Removing a waiting message by hand is not a success for its sender either."""
    one = paused(scripted_agent)
    [message_id] = one.say(1)
    one.go()
    one.box.runs.discard("s", message_id)
    one.go(61)

    assert "dropped" == one.user.state(message_id)


@pytest.mark.parametrize(
    ("overflow", "left", "ends"),
    [
        ("drop_old", [2, 3], ["dropped", "processed", "processed"]),
        ("summarize", [2, 3], ["dropped", "processed", "processed"]),
        ("reject", [1, 2], ["processed", "processed", "dead"]),
    ],
)
def test_a_policy_says_who_goes(
    scripted_agent: Any, overflow: str, left: list[int], ends: list[str]
) -> None:
    """
    ``drop_old`` and ``summarize`` make space for the young; ``reject`` makes dead letters.

    Those can be replayed.
    """
    one = paused(scripted_agent, cap=2, overflow=overflow)
    ids = one.say(1, 2, 3)
    one.go()
    one.box.runs.resume("s")
    one.go()

    assert left == [body for bodies in one.seen for body in bodies]
    assert ends == [one.ends()[each] for each in ids]


def test_a_victim_can_be_read_in_sql_and_is_counted(scripted_agent: Any) -> None:
    """A dropped row says why and what it was; the totals and an event know of it."""
    one = paused(scripted_agent, cap=1, overflow="summarize")
    heard: list[Any] = []
    one.box.on(Overflowed, heard.append)
    one.say("first thought", "second")
    one.go()

    rows = one.harness.sql("SELECT state, reason FROM onceward_inbox WHERE state = 'dropped'")
    assert [("dropped", "summarize: the queue of session 's' is full at 1")] == rows
    assert [("queue", "s", "summarize", "user: first thought")] == one.harness.sql(
        "SELECT scope, name, policy, line FROM onceward_drops"
    )
    assert (1, [(1, 0)]) == (
        one.box.file.stats()["dropped"],
        [(event.dropped, event.refused) for event in heard],
    )


def test_the_sender_of_a_refused_message_learns_it(scripted_agent: Any) -> None:
    """Refusal is an outcome: the sender's row is failed, with the reason."""
    one = paused(scripted_agent, cap=1, overflow="reject")
    ids = one.say(1, 2)
    one.go()
    one.go(61)

    assert "failed" == one.user.state(ids[1])
    assert [("queue", "overflow", "s")] == one.harness.sql(
        "SELECT origin, reason, queue FROM onceward_dead_letters"
    )


def test_the_summary_is_given_to_the_next_run_once(scripted_agent: Any) -> None:
    """Count and one line per message, before the messages; the run after it is not told again."""
    one = paused(scripted_agent, mode="collect", cap=2, overflow="summarize")
    one.say("a", "b", "c", {"n": 4})
    one.go()
    one.box.runs.resume("s")
    one.go()
    one.say("e")
    one.go()

    assert (2, ("user: a", "user: b")) == (one.runs[0].summary.count, one.runs[0].summary.lines)
    assert (
        "2 earlier messages were dropped because the queue was full:\n- user: a\n- user: b"
        == str(one.runs[0].summary)
    )
    assert one.runs[1].summary is None


def test_the_summary_survives_a_failed_run_and_a_change_of_policy(scripted_agent: Any) -> None:
    """A failed run's notices are told to the next run, together with what was dropped since."""
    one = paused(scripted_agent, cap=1, overflow="summarize")

    def fails(_: Run) -> None:
        one.say("c", "d")
        one.harness.deliver()
        one.box.runs.set("s", overflow="drop_old", cap=5)
        raise RuntimeError("no")

    one.script = [fails]
    one.say("a", "b")
    one.go()
    one.box.runs.resume("s")
    one.go()
    one.go(1.5)

    assert [["b"], ["b"], ["d"]] == one.seen
    assert [("user: a",), ("user: a", "user: c"), None] == [
        run.summary and run.summary.lines for run in one.runs
    ]


def test_lines_are_bounded_and_the_count_is_not(scripted_agent: Any) -> None:
    """Of very many dropped messages the newest have a line, and all are counted."""
    one = paused(scripted_agent, cap=1, overflow="summarize")
    one.say(*range(251))
    one.go()
    one.box.runs.resume("s")
    one.go()

    assert (250, 200, "user: 50") == (
        one.runs[0].summary.count,
        len(one.runs[0].summary.lines),
        one.runs[0].summary.lines[0],
    )


def test_protected_messages_are_never_victims(scripted_agent: Any) -> None:
    """Critical mail may exceed the cap, and where only such is left a new message is refused."""
    one = paused(scripted_agent, cap=2, overflow="drop_old")
    ids = []
    for body, priority in (("x", "normal"), ("p", "critical"), ("q", "critical"), ("y", "normal")):
        ids += one.say(body, priority=priority)
        one.go()

    assert ["pending", "pending", "pending", "dead"] == [one.ends()[each] for each in ids]


def test_bound_messages_are_neither_counted_nor_victims(scripted_agent: Any) -> None:
    """The cap is for what waits: a run in progress loses nothing to it."""
    one = scripted_agent(cap=2, overflow="drop_old")

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
def test_settings_that_mean_nothing_are_refused(
    options: dict[str, Any], scripted_agent: Any
) -> None:
    """The error says what is wrong, and the queue stays as it was."""
    one = scripted_agent(cap=7)

    with pytest.raises(InvalidArgument):
        one.box.runs.set("s", **options)
    assert one.box.runs.queue("s") is None


def test_cap_zero_names_the_way_out() -> None:
    """Who wants no mail is told about pausing."""
    with pytest.raises(InvalidArgument, match="pause the queue"):
        checked({"cap": 0})


def test_the_nearest_level_wins(
    scripted_agent: Any, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    Session before agent, agent before home, home before default.

    None falls back to the next wider one.
    """
    one = scripted_agent({"queue_cap": 9.8, "queue_overflow": "reject"}, mode="collect", cap=5)
    one.box.runs.set("s", cap=3)
    one.box.runs.set("other")
    both = [(q.session, q.mode, q.cap, q.overflow, q.aborted) for q in one.box.runs.queues()]
    one.box.runs.set("s")

    assert [
        ("other", "collect", 5, "reject", "return"),
        ("s", "collect", 3, "reject", "return"),
    ] == both
    assert 5 == one.box.runs.queue("s").cap

    monkeypatch.setenv("ONCEWARD_QUEUE_MODE", "steer")
    with Postbox(tmp_path / "x.db", agent="x", start=False) as box:
        assert "steer" == box._settings.queue_mode


def test_lines_are_short_and_flat() -> None:
    """A line is one line, of at most 160 characters."""
    assert "a: b c" == summary_line("a", "b\n\n c")
    assert 160 == len(summary_line("a", "x" * 999))


def test_a_long_backlog_of_several_lanes_is_taken_in_its_order(
    scripted_agent: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However little one look takes in, nothing of a session overtakes what arrived before it."""
    monkeypatch.setattr("onceward.features.runs.scheduler.ARRIVALS", 3)
    monkeypatch.setattr("onceward.features.runs.session_queues.LANES_MAX", 2)
    one = scripted_agent(cap=100)
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
