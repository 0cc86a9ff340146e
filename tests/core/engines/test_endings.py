"""
How runs end: well, badly, by hand, by a death.

The tests ask what that means for messages, mail, attempts and callers.
"""

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from tenacity import stop_after_attempt, wait_fixed

from onceward import Agent, Drop, Msg, Postbox, Reject, Retry, RetryPolicy, Run
from onceward.errors import InvalidArgument, RunLost
from onceward.events import MessageBound, RunAborted, RunEnded, RunStarted
from onceward.features.runs.scheduler import handler_of
from onceward.testing import Controls, ManualClock


def test_effects_mail_and_marks_are_one_commit(scripted_agent: Any) -> None:
    """
    A run's sends, replies, writes at its end and return value are there with its end.

    The value is the run's result, and no message to the sender of a plain message.
    """
    one = scripted_agent(mode="collect")
    one.harness.sql("CREATE TABLE notes (text TEXT)")

    def works(run: Run) -> dict[str, int]:
        run.send("user", "aside")
        run.at_end(lambda tx: tx.execute("INSERT INTO notes VALUES ('end')"))
        run.write(lambda tx: tx.execute("INSERT INTO notes VALUES ('now')"))
        assert [("now",)] == one.harness.sql("SELECT text FROM notes")
        run.reply("so far")
        return {"count": len(run.messages)}

    one.script = [works]
    ids = one.say(1, 2)
    one.go()

    assert ["aside", "so far"] == [message.body for message in one.got()]
    assert [("now",), ("end",)] == one.harness.sql("SELECT text FROM notes")
    assert {"count": 2} == one.box.runs.list()[0].result
    assert tuple(ids) == one.box.runs.list()[0].event_ids
    assert ["acked", "acked"] == [one.user.state(each) for each in ids]


def test_a_failed_batch_is_retried_whole(
    scripted_agent: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """
    A failed run sends nothing, and its messages come again together, after the backoff.

    The mistake is logged once.
    """
    one = scripted_agent(mode="collect")

    def fails(run: Run) -> None:
        run.send("user", "never")
        raise RuntimeError("broken")

    one.script = [fails]
    ids = one.say(1, 2)
    one.go()
    one.say(3)
    assert [[1, 2]] == one.go(0.5)
    assert [[1, 2], [1, 2, 3]] == one.go(1.0)

    assert [] == one.got()
    assert [("failed", False), ("done", True)] == one.states()
    assert [2, 2, 1] == [message.attempt for message in one.runs[1].messages]
    assert "RuntimeError: broken" == one.box.runs.list()[1].cause
    [line] = caplog.records
    said = f"handler failed agent=coder session=s message_id={ids[0]} type=json attempt=1 run_id="
    assert line.getMessage().startswith(said)
    assert line.getMessage().endswith(" error='RuntimeError: broken'")


def test_the_policy_of_a_postbox_is_that_of_its_runs(tmp_path: Path) -> None:
    """
    ``handler_retry`` goes before the settings in sessions with runs as well.

    It asks for two tries, seven seconds between them.
    """
    clock, agent, began = ManualClock(), Agent("coder"), list[int]()

    @agent.runs()
    def fails(run: Run) -> None:
        began.append(clock.now())
        raise RuntimeError(run.session)

    twice = RetryPolicy(wait=wait_fixed(7), stop=stop_after_attempt(2))
    with Postbox(
        tmp_path / "coder.db",
        agent=agent,
        start=False,
        testing=Controls(clock=clock),
        handler_retry=twice,
    ) as box:
        box.send("coder", "work")
        for _ in range(20):
            box.run_until_idle()
            clock.advance(1)
        reasons = [letter.reason for letter in box.dead_letters.list()]

    assert [7000] == [later - earlier for earlier, later in pairwise(began)]
    assert ["attempts_spent"] == [reason for reason in reasons if reason != "dead"]


def test_the_last_attempt_is_made_alone(scripted_agent: Any) -> None:
    """A message that makes its batch fail dies alone: its neighbours are done."""
    one = scripted_agent(mode="collect", attempts=3)

    def picky(run: Run) -> None:
        if "poison" in [message.body for message in run.messages]:
            raise RuntimeError("eaten")

    one.script = [picky] * 10
    ids = one.say("a", "poison", "b")
    for _ in range(8):
        one.go(60)

    assert [["a", "poison", "b"]] * 2 + [["a"], ["poison"], ["b"]] == one.seen
    assert ["processed", "dead", "processed"] == [one.ends()[each] for each in ids]


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (Reject("no"), ("failed", "dead")),
        (Drop(), ("done", "dropped")),
        (Retry(after=5), ("failed", "pending")),
    ],
)
def test_a_handler_says_how_its_run_ends(
    scripted_agent: Any, error: Exception, expected: tuple[str, str]
) -> None:
    """
    Reject buries, Drop drops and Retry puts back all messages of the run, as elsewhere.

    Other handlers do so with their one message.
    """
    one = scripted_agent()

    def raises(_: Run) -> None:
        raise error

    one.script = [raises]
    [message_id] = one.say(1)
    one.go()

    assert expected == (one.states()[0][0], one.ends()[message_id])


def test_a_run_of_a_dead_process_is_aborted_by_the_next_look(scripted_agent: Any) -> None:
    """
    After the lease has ended, a run's messages are back, in order, the attempt counted.

    Its sends are gone.
    """
    one = scripted_agent({"lease": 30.0}, mode="collect")

    def says(run: Run) -> None:
        run.checkpoint("half")
        run.send("user", "never")

    one.script = [says]
    one.say(1, 2)
    with one.harness.crash_at("after-handler"):
        one.harness.deliver()
    one.say(3)
    assert [[1, 2]] == one.go(10)
    one.go(25)

    assert [[1, 2], [1, 2, 3]] == one.seen
    assert [2, 2, 1] == [message.attempt for message in one.runs[1].messages]
    assert [("aborted", False), ("done", True)] == one.states()
    assert "half" == one.runs[1].previous.partial
    assert [] == one.got()


def test_a_message_that_kills_its_process_becomes_a_dead_letter(scripted_agent: Any) -> None:
    """Attempts are counted before they are made, so a killer has only so many."""
    one = scripted_agent({"lease": 1.0}, mode="collect", attempts=2)
    [message_id] = one.say("killer")
    for _ in range(2):
        with one.harness.crash_at("before-handler"):
            one.harness.deliver()
        one.harness.advance(2)
    one.go()

    assert "dead" == one.ends()[message_id]
    assert [("aborted", False)] * 2 == one.states()


def test_a_late_process_can_commit_nothing(scripted_agent: Any) -> None:
    """
    A run that slept through its lease finds checkpoint, write, inbox and end refused.

    The run that took over is not disturbed.
    """
    one = scripted_agent({"lease": 5.0})
    refused: list[str] = []

    def sleeps(run: Run) -> str:
        one.harness.advance(6)
        one.harness.deliver()
        for name, call in (
            ("checkpoint", lambda: run.checkpoint(1)),
            ("write", lambda: run.write(lambda _: None)),
            ("inbox", run.inbox),
        ):
            with pytest.raises(RunLost):
                call()
            refused.append(name)
        run.send("user", "late")
        return "late"

    one.script = [sleeps, lambda run: run.reply("in time")]
    one.say("m")
    one.go()

    assert ["checkpoint", "write", "inbox"] == refused
    assert ["in time"] == [message.body for message in one.got()]
    assert [("aborted", False), ("done", True)] == one.states()


def test_a_run_can_be_aborted_by_hand(scripted_agent: Any) -> None:
    """
    ``runs.abort`` fences the holder off and gives its messages back.

    A second call finds nothing open.
    """
    one = scripted_agent()
    told: list[bool] = []

    def busy(run: Run) -> str:
        one.box.runs.pause("s")
        told.extend([one.box.runs.abort(run.id, "by me"), one.box.runs.abort(run.id)])
        return "never"

    one.script = [busy]
    [message_id] = one.say("m")
    one.go()

    assert ([True, False], "pending") == (told, one.ends()[message_id])
    assert ("aborted", "by me") == (
        one.box.runs.list()[0].state,
        one.box.runs.list()[0].cause,
    )
    assert [] == one.got()


def test_the_queue_is_in_your_hands(scripted_agent: Any) -> None:
    """List, reorder and remove what waits; pause and resume; each is durable and visible."""
    one = scripted_agent()
    one.box.runs.pause("s")
    ids = one.say("a", "b", "c", "d")
    one.go()

    assert ids == [each.id for each in one.box.runs.waiting("s")]
    assert [ids[2], ids[0], ids[1], ids[3]] == one.box.runs.reorder("s", [ids[2]])
    assert (True, False) == (
        one.box.runs.discard("s", ids[1]),
        one.box.runs.discard("s", ids[1]),
    )
    with pytest.raises(InvalidArgument):
        one.box.runs.reorder("s", [ids[1]])
    assert ("paused", 3) == (one.box.runs.queue("s").state, one.box.runs.queue("s").waiting)
    one.harness.restart()
    one.box.runs.resume("s")
    one.go()

    assert [["c"], ["a"], ["d"]] == one.seen
    assert ("dropped", "removed: removed from its queue manually") == one.harness.sql(
        "SELECT state, reason FROM onceward_inbox WHERE id = ?", (ids[1],)
    )[0]


def test_readers_and_workers_leave_sessions_with_runs_alone(scripted_agent: Any) -> None:
    """Messages of such a session are for runs only; other sessions are served as ever."""
    one = scripted_agent(pattern="s*")
    one.agent.on("text")(lambda _: None)
    one.harness.restart()
    one.box.runs.pause("s1")
    one.say("for runs", session="s1")
    one.say("for a worker", session="t1")
    one.go()

    assert one.box.receive() is None
    assert one.box.session("s1").receive() is None
    assert ([], 1) == (one.seen, one.box.file.stats()["processed"])


def test_a_pattern_can_be_dissolved(scripted_agent: Any) -> None:
    """With its handler removed from the code, a queue is for readers again, in order."""
    one = scripted_agent()
    one.box.runs.pause("s")
    one.say("a", "b")
    one.go()
    one.box.runs.remove("*")

    first = one.box.receive()
    assert (first.body, first.attempt) == ("a", 1)
    first.ack()
    assert "b" == one.box.receive().body


class Task(Msg, type="task"):
    """Work for another agent."""

    text: str


def test_bodies_are_read_as_their_classes(scripted_agent: Any) -> None:
    """
    A body of a listed type is that class; one that does not fit is a dead letter.

    It stops no other message.
    """
    one = scripted_agent(types=[Task], mode="collect")
    ids = one.say(Task(text="x"), "plain")
    bad = one.say({"no": "text"}, type="task")
    one.go()

    assert [[Task(text="x"), "plain"]] == one.seen
    assert (["processed", "processed"], "dead") == (
        [one.ends()[each] for each in ids],
        one.ends()[bad[0]],
    )


def test_expired_mail_reaches_no_run(scripted_agent: Any) -> None:
    """A message that is not wanted any more ends as expired while it waits."""
    one = scripted_agent()
    one.box.runs.pause("s")
    [message_id] = one.say("old", ttl=5)
    one.go()
    one.go(6)
    one.box.runs.resume("s")
    one.go()

    assert ([], "expired") == (one.seen, one.ends()[message_id])


def test_events_tell_the_life_of_a_run(scripted_agent: Any) -> None:
    """Each is told after the commit that made it true, in order."""
    one = scripted_agent(mode="steer")
    heard: list[str] = []
    for kind in (RunStarted, MessageBound, RunAborted, RunEnded):
        one.box.on(kind, lambda event: heard.append(event.name))

    def busy(_: Run) -> None:
        one.say("b")
        one.harness.deliver()

    one.script = [busy]
    one.say("a")
    one.go()

    started = ["run_started", "message_bound"]
    assert [*started, "run_aborted", *started, "message_bound", "run_ended"] == heard


def test_two_handlers_of_one_pattern_are_refused() -> None:
    """A session has one handler: the nearest pattern's, and exactly one of those."""
    agent = Agent("a")
    for pattern in ("*", "chat-*", "chat-1"):
        agent.runs(pattern)(print)

    with pytest.raises(InvalidArgument):
        agent.runs("chat-*")(print)
    found = [handler_of(name, agent.sessions) for name in ("chat-1", "chat-2", "x", "chat[1]")]
    assert ["chat-1", "chat-*", "*", "*"] == [handler and handler.pattern for handler in found]
