"""The assistant on a model that answers from memory, without threads, network or waiting."""

from assistant import Task, assistant, brain

from onceward.testing import Harness


def test_a_task_is_answered() -> None:
    """The tools are called, and the answer of the model is the reply."""
    with brain.override(model="test"), Harness(assistant) as harness:
        harness.send(Task(goal="remember the milk"), sender="caller")
        harness.deliver()

        [answer] = harness.sent("caller", str)
        notes = harness.sql("SELECT count(*) FROM note")

    assert "written down" in answer
    assert notes == [(1,)]


def test_a_crash_writes_nothing_down_twice() -> None:
    """A process that dies after the note goes on behind it."""
    with brain.override(model="test"), Harness(assistant) as harness:
        harness.send(Task(goal="remember the milk"), sender="caller")
        with harness.crash_at("before-step", step="assistant__model.request#2"):
            harness.deliver()
        harness.advance(60)  # the lease of the dead process runs out
        harness.deliver()

        assert harness.sql("SELECT count(*) FROM note") == [(1,)]
