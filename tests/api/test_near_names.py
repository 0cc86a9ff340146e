"""A misspelt name is told with the name that was meant, where both are known."""

from pathlib import Path

import pytest

from onceward import Agent, Postbox
from onceward.errors import RequestFailed, UnknownRecipient


def test_an_unknown_recipient_is_told_with_the_agent_that_is_like_it(tmp_path: Path) -> None:
    """The directory of the home knows the names; one that is like none is told alone."""
    with (
        Postbox(tmp_path / "tasks.db", agent="tasks", start=False),
        Postbox(tmp_path / "web.db", agent="web", start=False) as box,
    ):
        with pytest.raises(UnknownRecipient, match=r"no agent 'tsks'.*; did you mean tasks\?$"):
            box.send("tsks", 1)
        with pytest.raises(UnknownRecipient, match=r"no agent 'mail'.*hold_unknown=True$"):
            box.send("mail", 1)


def test_an_unhandled_type_is_told_with_the_one_that_is_handled(tmp_path: Path) -> None:
    """By the dead letter, and to a sender that asks for a reply."""
    jobs = Agent("jobs")
    jobs.on("job")(lambda _: None)
    with Postbox(tmp_path / "jobs.db", agent=jobs) as box:
        with pytest.raises(RequestFailed):
            box.ask("jobs", {}, type="jobb", reply=str, timeout=30)

        [letter] = box.dead_letters.list()
        assert "agent jobs has no handler for jobb; did you mean job?" == letter.last_error
