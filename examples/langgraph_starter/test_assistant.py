"""Test the assistant without threads, network or waiting."""

from assistant import Approval, Task, assistant

from onceward.testing import Harness


def test_a_task_is_done_when_it_is_approved() -> None:
    """The question and the result are two replies, days apart."""
    with Harness(assistant) as harness:
        harness.send(Task(goal="Pay the baker"), sender="caller", reply_to="caller", session="s")
        harness.deliver()
        harness.advance("3d")
        harness.send(Approval(), sender="caller", reply_to="caller", session="s")
        harness.deliver()

        replies = harness.sent("caller", str)

    assert replies == ["May I pay the baker?", "written down: pay the baker"]


def test_a_crash_does_nothing_twice() -> None:
    """A process that dies after the plan was stored continues after it."""
    with Harness(assistant) as harness:
        harness.send(Task(goal="Pay the baker"), sender="caller", reply_to="caller")
        with harness.crash_at("stored-step"):
            harness.deliver()
        harness.advance(60)  # the lease of the dead process expires
        harness.deliver()

        assert harness.sent("caller", str) == ["May I pay the baker?"]
        assert harness.sql("SELECT count(*) FROM onceward_steps") == [(1,)]
