"""How each mode treats mail that comes while a session is busy, on real files and one thread."""

from typing import Any

import pytest

from onceward import Agent, Run
from onceward.errors import RunLost
from onceward.message.vocabulary import QUEUE_MODES
from onceward.testing import Harness

BATCHED = {"strategy": "events"}


@pytest.mark.parametrize("mode", ["followup", "queue"])
def test_one_message_a_run_in_order(scripted_agent: Any, mode: str) -> None:
    """
    A backlog is taken first in, first out, each message by a run of its own.

    Nothing is waited for in between.
    """
    one = scripted_agent(mode=mode, debounce=60)
    one.say(1, 2, 3)

    assert [[1], [2], [3]] == one.go()
    assert [{}, {}, {}] == [run.metadata for run in one.runs]
    assert [("done", True)] * 3 == one.states()


@pytest.mark.parametrize("mode", ["followup", "queue"])
def test_what_comes_while_busy_waits(scripted_agent: Any, mode: str) -> None:
    """
    A message that arrives during a run is bound to the next one.

    The run that is open never hears of it.
    """
    one = scripted_agent(mode=mode)

    def busy(_: Run) -> None:
        one.say(2, 3)
        one.harness.deliver()
        assert 2 == one.box.runs.queue("s").waiting

    one.script = [busy]
    one.say(1)

    assert [[1], [2], [3]] == one.go()
    assert [("done", True)] * 3 == one.states()


def test_collect_waits_for_quiet_and_takes_everything(scripted_agent: Any) -> None:
    """
    The debounce counts from the last arrival.

    Then all waiting messages are one run of distinct messages, the last one current.
    """
    one = scripted_agent(mode="collect", debounce=1.0)
    ids = one.say("a")
    assert [] == one.go(0.6)
    ids += one.say("b")
    assert [] == one.go()
    assert [] == one.go(0.9)
    assert [["a", "b"]] == one.go(0.2)

    assert "b" == one.runs[0].message.body
    assert {"collect_batch": {"count": 2, "event_ids": ids, **BATCHED}} == one.runs[0].metadata


def test_collect_does_not_wait_for_ever(scripted_agent: Any) -> None:
    """Mail that never stops coming cannot put a collect off for longer than five debounces."""
    one = scripted_agent(mode="collect", debounce=1.0, cap=100)
    for n in range(12):
        one.say(n)
        one.go(0.6)

    assert list(range(10)) == one.seen[0]


def test_a_full_collect_begins_at_once(scripted_agent: Any) -> None:
    """A queue that is full to its cap has nothing to wait for but losses."""
    one = scripted_agent(mode="collect", debounce=60.0, cap=3)
    one.say(1, 2, 3)

    assert [[1, 2, 3]] == one.go()


def test_collect_keeps_destinations_and_threads_apart(scripted_agent: Any) -> None:
    """
    Messages with other replies or conversations get runs of their own, in order.

    Their replies go elsewhere, or they belong to another conversation.
    """
    one = scripted_agent(mode="collect")
    one.harness.peer("other")
    one.say(1, 2)
    one.say(3, reply_to="other")
    one.say(4, correlation_id="thread")
    one.say(5, correlation_id="thread")

    assert [[1, 2], [3], [4, 5]] == one.go()


@pytest.mark.parametrize("mode", ["steer", "interrupt"])
def test_a_new_message_ends_the_run_that_is_open(scripted_agent: Any, mode: str) -> None:
    """
    The open run can commit nothing more, and its mail was never sent.

    Its messages and the new one are one run.
    """
    one = scripted_agent(mode=mode)
    ended: list[str] = []

    def busy(run: Run) -> None:
        run.send("user", "never")
        ended.extend(one.say("new"))
        one.harness.deliver()
        with pytest.raises(RunLost):
            run.checkpoint("too late")

    one.script = [busy, lambda run: run.reply("answer")]
    first = one.say("first")
    one.go()

    assert [["first"], ["first", "new"]] == one.seen
    assert [("aborted", False), ("done", True)] == one.states()
    assert {
        "queue_batch": {"mode": mode, "count": 2, "event_ids": first + ended, **BATCHED}
    } == one.runs[1].metadata
    assert ["answer"] == [message.body for message in one.got()]
    assert f"{mode} by message {ended[0]}" == one.runs[1].previous.cause


def test_nothing_of_the_conversation_vanishes(scripted_agent: Any) -> None:
    """
    The next run has the messages of the ended one, then the backlog, then the new message.

    It reads the stored output, and which messages the ended run had.
    """
    one = scripted_agent(mode="followup", allow_override_from=["user"])

    def busy(run: Run) -> None:
        run.checkpoint({"done": "half"})
        one.say("waiting")
        one.harness.deliver()
        one.say("no, in Python", headers={"queuemode": "steer"})
        one.harness.deliver()

    one.script = [busy]
    [first] = one.say("first")
    one.go()

    previous = one.runs[1].previous
    assert [["first"], ["first", "waiting", "no, in Python"]] == one.seen
    assert ("aborted", {"done": "half"}, (first,)) == (
        previous.state,
        previous.partial,
        previous.event_ids,
    )
    assert (["first"], False) == ([m.body for m in previous.messages], previous.delivered)
    assert None is one.runs[0].previous
    assert {"processed"} == set(one.ends().values())


def test_a_checkpoint_outlives_a_second_steering(scripted_agent: Any) -> None:
    """A run that is ended before it has stored anything hides nothing that was stored before."""
    one = scripted_agent(mode="steer")

    def busy(run: Run) -> None:
        if run.previous is None:
            run.checkpoint("half")
        one.say(f"after run {len(one.seen)}")
        one.harness.deliver()

    one.script = [busy, busy]
    one.say("first")
    one.go()
    one.say("another matter")
    one.go()

    third, fourth = one.runs[2:]
    assert ["first", "after run 1", "after run 2"] == one.seen[2]
    assert ("half", ["first", "after run 1"]) == (
        third.previous.partial,
        [message.body for message in third.previous.messages],
    )
    assert (["another matter"], None) == (one.seen[3], fourth.previous)


def test_a_failed_run_leaves_its_checkpoint(scripted_agent: Any) -> None:
    """The next attempt reads what the failed one had stored, and what it failed by."""
    one = scripted_agent()

    def fails(run: Run) -> None:
        run.checkpoint("half")
        raise RuntimeError("broken")

    one.script = [fails]
    one.say("first")
    one.go()
    one.go(1)

    previous = one.runs[1].previous
    assert ("failed", "half", "RuntimeError: broken") == (
        previous.state,
        previous.partial,
        previous.cause,
    )


@pytest.mark.parametrize(
    ("aborted", "expected"), [("deliver", ["new"]), ("return", ["first", "new"])]
)
def test_partial_output_decides_about_the_messages_of_an_aborted_run(
    scripted_agent: Any, aborted: str, expected: list[str]
) -> None:
    """
    With partial output stored, messages count as delivered if the queue is set so.

    The next run reads what was left behind.
    """
    one = scripted_agent(mode="steer", aborted=aborted)

    def busy(run: Run) -> None:
        run.send("user", "said before the checkpoint")
        run.checkpoint({"done": "half"})
        run.send("user", "said after it")
        one.say("new")
        one.harness.deliver()

    one.script = [busy]
    one.say("first")
    one.go()

    assert expected == one.seen[1]
    assert {"done": "half"} == one.runs[1].previous.partial
    assert (aborted == "deliver") == one.runs[1].previous.delivered
    assert ["said before the checkpoint"] == [message.body for message in one.got()]
    assert {"processed"} == set(one.ends().values())


def test_steer_drains_the_backlog(scripted_agent: Any) -> None:
    """What waited when the steering message came goes into the same next run, before it."""
    one = scripted_agent(mode="followup")

    def busy(_: Run) -> None:
        one.say("waiting")
        one.harness.deliver()
        one.box.runs.set("s", mode="steer")
        one.say("steering")
        one.harness.deliver()

    one.script = [busy]
    one.say("first")
    one.go()

    assert [["first"], ["first", "waiting", "steering"]] == one.seen


def test_new_messages_are_injected_into_the_open_run(scripted_agent: Any) -> None:
    """
    With ``inject``, a new message does not end the run, which takes it by ``inbox()``.

    It needs no call of ``inbox()`` before, and what the run took ends with it.
    """
    one = scripted_agent(mode="steer", inject=True)
    taken: list[Any] = []

    def takes(run: Run) -> None:
        one.say("more")
        one.harness.deliver()
        assert not run.cancelled
        taken.extend([m.body for m in run.inbox()] for _ in range(2))

    one.script = [takes]
    one.say("first")
    one.go()

    assert [["more"], []] == taken
    assert [["first"]] == one.seen
    assert [("done", True)] == one.states()
    assert ["processed", "processed"] == list(one.ends().values())
    assert ["first", "more"] == [m.body for m in one.runs[0].messages]


def test_a_run_that_takes_no_injection_goes_on(scripted_agent: Any) -> None:
    """Messages for a run that never asks for its inbox are the next run, all of them."""
    one = scripted_agent(mode="steer", inject=True)

    def deaf(_: Run) -> None:
        one.say("more", "and more")
        one.harness.deliver()

    one.script = [deaf]
    one.say("first")
    one.go()

    assert [["first"], ["more", "and more"]] == one.seen
    assert [("done", True)] * 2 == one.states()


def test_an_interrupt_is_never_injected(scripted_agent: Any) -> None:
    """``inject`` is for steering: an interrupt ends the run."""
    one = scripted_agent(mode="interrupt", inject=True)

    cancelled: list[bool] = []

    def busy(run: Run) -> None:
        one.say("stop")
        one.harness.deliver()
        cancelled.append(run.cancelled)

    one.script = [busy]
    one.say("first")

    assert [["first"], ["first", "stop"]] == one.go()
    assert [True] == cancelled


def test_what_a_run_did_not_take_waits_for_the_next(scripted_agent: Any) -> None:
    """A message left to a run that ends without asking again is not lost."""
    one = scripted_agent(mode="steer", inject=True)

    def asks_once(run: Run) -> None:
        run.inbox()
        one.say("late")
        one.harness.deliver()

    one.script = [asks_once]
    one.say("first")

    assert [["first"], ["late"]] == one.go()


@pytest.mark.parametrize("mode", QUEUE_MODES)
def test_a_mode_may_change_while_messages_wait(scripted_agent: Any, mode: str) -> None:
    """Whatever the new mode, what waited is taken, in order, and once."""
    one = scripted_agent(mode="followup")
    one.box.runs.pause("s")
    one.say(1, 2, 3)
    one.go()
    one.box.runs.set("s", mode=mode)
    one.box.runs.resume("s")
    one.go(1.0)

    assert [1, 2, 3] == [body for bodies in one.seen for body in bodies]
    assert (3 if mode in {"followup", "queue"} else 1) == len(one.seen)


def test_a_trusted_sender_may_ask_for_a_mode(scripted_agent: Any) -> None:
    """
    The call is nearer than session and agent for senders the handler obeys.

    In mode queue the call changes nothing.
    """
    one = scripted_agent(mode="collect", debounce=60, allow_override_from=["user"])
    one.say("waits")
    one.go()
    one.say("now", headers={"queuemode": "steer"})

    assert [["waits", "now"]] == one.go()
    assert {"mode": "steer", "count": 2} == {
        k: one.runs[0].metadata["queue_batch"][k] for k in ("mode", "count")
    }


@pytest.mark.parametrize(
    ("mode", "allowed", "wish"),
    [("queue", ["user"], "steer"), ("followup", [], "steer"), ("followup", ["user"], "nonsense")],
)
def test_a_wish_is_not_always_heard(
    scripted_agent: Any, mode: str, allowed: list[str], wish: str
) -> None:
    """A stranger's wish, a word that is not a mode, and any wish in mode queue change nothing."""
    one = scripted_agent(mode=mode, allow_override_from=allowed)

    def busy(_: Run) -> None:
        one.say("wishing", headers={"queuemode": wish})
        one.harness.deliver()

    one.script = [busy]
    one.say("first")

    assert [["first"], ["wishing"]] == one.go()
    assert [("done", True)] * 2 == one.states()


@pytest.mark.parametrize("first", ["s", "plain"])
def test_sessions_that_share_a_lane_keep_their_handlers(first: str) -> None:
    """By one ordering key a session with runs and others are in order, each with its handler."""
    agent, plain, runs = Agent("coder"), list[int](), list[int]()
    agent.on("json")(plain.append)

    @agent.runs("s")
    def turn(run: Run) -> None:
        runs.extend(each.body for each in run.messages)

    sessions = [first, "s", "plain", "plain", "s", "other", "s"]
    with Harness(agent) as harness:
        for n, session in enumerate(sessions):
            harness.send(n, sender="user", session=session, ordering_key="k")
        harness.deliver()
        wrong = harness.postbox.file.check()
        queues = [queue.session for queue in harness.postbox.runs.queues()]

    assert [n for n, session in enumerate(sessions) if session == "s"] == runs
    assert [n for n, session in enumerate(sessions) if session != "s"] == plain
    assert ([], ["s"]) == (wrong, queues)


def test_a_reader_of_one_session_takes_no_other_of_a_shared_lane() -> None:
    """Receiving in a session passes by a lane whose oldest message is of another one."""
    taken: list[tuple[str, int | None]] = []
    with Harness(Agent("coder")) as harness:
        for n, session in enumerate(["a", "b"]):
            harness.send(n, sender="user", session=session, ordering_key="k")
        harness.peer("user").run_until_idle()
        for session in ("b", "a", "b"):
            message = harness.postbox.session(session).receive()
            taken.append((session, None if message is None else message.body))
            if message is not None:
                message.ack()

    assert [("b", None), ("a", 0), ("b", 1)] == taken
