"""Test the assistant with the model ``test``, without threads, network or waiting."""

from assistant import Task, assistant, brain

from onceward.testing import Harness


def test_a_task_is_answered() -> None:
    """The model calls the tools, and its answer is the reply."""
    with brain.override(model="test"), Harness(assistant) as harness:
        harness.send(Task(goal="remember the milk"), sender="caller", reply_to="caller")
        harness.deliver()

        [answer] = harness.sent("caller", str)
        notes = harness.sql("SELECT count(*) FROM note")

    assert "written down" in answer
    assert notes == [(1,)]


def test_a_crash_writes_nothing_down_twice() -> None:
    """A process that dies after the note was saved continues after it."""
    with brain.override(model="test"), Harness(assistant) as harness:
        harness.send(Task(goal="remember the milk"), sender="caller")
        with harness.crash_at("before-step", step="assistant__model.request#2"):
            harness.deliver()
        harness.advance(60)  # the lease of the dead process expires
        harness.deliver()

        assert harness.sql("SELECT count(*) FROM note") == [(1,)]
