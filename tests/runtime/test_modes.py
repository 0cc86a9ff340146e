"""How each mode treats mail that comes while a session is busy, on real files and one thread."""

from typing import Any

import pytest

from onceward import Run
from onceward.errors import RunAborted
from onceward.model.vocabulary import QUEUE_MODES

BATCHED = {"strategy": "events"}


@pytest.mark.parametrize("mode", ["followup", "queue"])
def test_one_message_a_run_in_order(desk: Any, mode: str) -> None:
    """
    A backlog is taken first in, first out, each message by a run of its own.

    Nothing is waited for in between.
    """
    one = desk(mode=mode, debounce=60)
    one.say(1, 2, 3)

    assert [[1], [2], [3]] == one.go()
    assert [{}, {}, {}] == [run.metadata for run in one.runs]
    assert [("done", True)] * 3 == one.states()


@pytest.mark.parametrize("mode", ["followup", "queue"])
def test_what_comes_while_busy_waits(desk: Any, mode: str) -> None:
    """
    A message that arrives during a run is bound to the next one.

    The run that is open never hears of it.
    """
    one = desk(mode=mode)

    def busy(_: Run) -> None:
        one.say(2, 3)
        one.harness.deliver()
        assert 2 == one.box.queues.get("s").waiting

    one.script = [busy]
    one.say(1)

    assert [[1], [2], [3]] == one.go()
    assert [("done", True)] * 3 == one.states()


def test_collect_waits_for_quiet_and_takes_everything(desk: Any) -> None:
    """
    The debounce counts from the last arrival.

    Then all waiting messages are one run of distinct messages, the last one current.
    """
    one = desk(mode="collect", debounce=1.0)
    ids = one.say("a")
    assert [] == one.go(0.6)
    ids += one.say("b")
    assert [] == one.go()
    assert [] == one.go(0.9)
    assert [["a", "b"]] == one.go(0.2)

    assert "b" == one.runs[0].message.body
    assert {"collect_batch": {"count": 2, "event_ids": ids, **BATCHED}} == one.runs[0].metadata


def test_collect_does_not_wait_for_ever(desk: Any) -> None:
    """Mail that never stops coming cannot put a collect off for longer than five debounces."""
    one = desk(mode="collect", debounce=1.0, cap=100)
    for n in range(12):
        one.say(n)
        one.go(0.6)

    assert list(range(10)) == one.seen[0]


def test_a_full_collect_begins_at_once(desk: Any) -> None:
    """A queue that is full to its cap has nothing to wait for but losses."""
    one = desk(mode="collect", debounce=60.0, cap=3)
    one.say(1, 2, 3)

    assert [[1, 2, 3]] == one.go()


def test_collect_keeps_destinations_and_threads_apart(desk: Any) -> None:
    """
    Messages with other replies or conversations get runs of their own, in order.

    Their replies go elsewhere, or they belong to another conversation.
    """
    one = desk(mode="collect")
    one.harness.peer("other")
    one.say(1, 2)
    one.say(3, reply_to="other")
    one.say(4, correlation_id="thread")
    one.say(5, correlation_id="thread")

    assert [[1, 2], [3], [4, 5]] == one.go()


@pytest.mark.parametrize("mode", ["steer", "interrupt"])
def test_a_new_message_ends_the_run_that_is_open(desk: Any, mode: str) -> None:
    """
    The open run can commit nothing more, and its mail was never sent.

    Its messages and the new one are one run.
    """
    one = desk(mode=mode)
    ended: list[str] = []

    def busy(run: Run) -> None:
        run.send("user", "never")
        ended.extend(one.say("new"))
        one.harness.deliver()
        with pytest.raises(RunAborted):
            run.checkpoint("too late")

    one.script = [busy, lambda _: "answer"]
    first = one.say("first")
    one.go()

    assert [["first"], ["first", "new"]] == one.seen
    assert [("aborted", False), ("done", True)] == one.states()
    assert {
        "queue_batch": {"mode": mode, "count": 2, "event_ids": first + ended, **BATCHED}
    } == one.runs[1].metadata
    assert ["answer"] == [message.body for message in one.got()]
    assert f"{mode} by message {ended[0]}" == one.runs[1].previous_run.cause


@pytest.mark.parametrize(
    ("aborted", "expected"), [("deliver", ["new"]), ("return", ["first", "new"])]
)
def test_partial_output_decides_about_the_messages_of_an_aborted_run(
    desk: Any, aborted: str, expected: list[str]
) -> None:
    """
    With partial output stored, messages count as delivered if the queue is set so.

    The next run reads what was left behind.
    """
    one = desk(mode="steer", aborted=aborted)

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
    assert {"done": "half"} == one.runs[1].previous
    assert (aborted == "deliver") == one.runs[1].previous_run.delivered
    assert ["said before the checkpoint"] == [message.body for message in one.got()]
    assert {"processed"} == set(one.ends().values())


def test_steer_drains_the_backlog(desk: Any) -> None:
    """What waited when the steering message came goes into the same next run, before it."""
    one = desk(mode="followup")

    def busy(_: Run) -> None:
        one.say("waiting")
        one.harness.deliver()
        one.box.queues.set("s", mode="steer")
        one.say("steering")
        one.harness.deliver()

    one.script = [busy]
    one.say("first")
    one.go()

    assert [["first"], ["first", "waiting", "steering"]] == one.seen


def test_injection_needs_a_run_that_takes_it(desk: Any) -> None:
    """
    With ``inject``, a run that calls ``inbox()`` is given new messages and not ended.

    What it took ends with it.
    """
    one = desk(mode="steer", inject=True)
    taken: list[Any] = []

    def takes(run: Run) -> None:
        taken.append([m.body for m in run.inbox()])
        one.say("more")
        one.harness.deliver()
        taken.append([m.body for m in run.inbox()])

    one.script = [takes]
    one.say("first")
    one.go()

    assert [[], ["more"]] == taken
    assert [["first"]] == one.seen
    assert [("done", True)] == one.states()
    assert ["processed", "processed"] == list(one.ends().values())
    assert ["first", "more"] == [m.body for m in one.runs[0].messages]


def test_injection_falls_back_to_ending_the_run(desk: Any) -> None:
    """A run that never asked for its inbox is ended as without ``inject``."""
    one = desk(mode="steer", inject=True)

    def deaf(_: Run) -> None:
        one.say("more")
        one.harness.deliver()

    one.script = [deaf]
    one.say("first")
    one.go()

    assert [["first"], ["first", "more"]] == one.seen
    assert [("aborted", False), ("done", True)] == one.states()


def test_what_a_run_did_not_take_waits_for_the_next(desk: Any) -> None:
    """A message left to a run that ends without asking again is not lost."""
    one = desk(mode="steer", inject=True)

    def asks_once(run: Run) -> None:
        run.inbox()
        one.say("late")
        one.harness.deliver()

    one.script = [asks_once]
    one.say("first")

    assert [["first"], ["late"]] == one.go()


@pytest.mark.parametrize("mode", QUEUE_MODES)
def test_a_mode_may_change_while_messages_wait(desk: Any, mode: str) -> None:
    """Whatever the new mode, what waited is taken, in order, and once."""
    one = desk(mode="followup")
    one.box.queues.pause("s")
    one.say(1, 2, 3)
    one.go()
    one.box.queues.set("s", mode=mode)
    one.box.queues.resume("s")
    one.go(1.0)

    assert [1, 2, 3] == [body for bodies in one.seen for body in bodies]
    assert (3 if mode in {"followup", "queue"} else 1) == len(one.seen)


def test_a_trusted_sender_may_ask_for_a_mode(desk: Any) -> None:
    """
    The call is nearer than session and agent for senders the handler obeys.

    In mode queue the call changes nothing.
    """
    one = desk(mode="collect", debounce=60, allow_override_from=["user"])
    one.say("waits")
    one.go()
    one.say("now", headers={"queuemode": "steer"})

    assert [["waits", "now"]] == one.go()
    assert {"mode": "steer", "count": 2} == {
        k: one.runs[0].metadata["queue_batch"][k] for k in ("mode", "count")
    }


@pytest.mark.parametrize(
    ("mode", "obey", "wish"),
    [("queue", ["user"], "steer"), ("followup", [], "steer"), ("followup", ["user"], "nonsense")],
)
def test_a_wish_is_not_always_heard(desk: Any, mode: str, obey: list[str], wish: str) -> None:
    """A stranger's wish, a word that is no mode, and any wish in mode queue change nothing."""
    one = desk(mode=mode, allow_override_from=obey)

    def busy(_: Run) -> None:
        one.say("wishing", headers={"queuemode": wish})
        one.harness.deliver()

    one.script = [busy]
    one.say("first")

    assert [["first"], ["wishing"]] == one.go()
    assert [("done", True)] * 2 == one.states()
