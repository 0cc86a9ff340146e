"""Leases of mailboxes whose messages end badly."""

from __future__ import annotations

from pathlib import Path

from onceward import Msg, Postbox
from onceward.message.retry import exponential


class Count(Msg, type="count"):
    """A body with a number."""

    n: int


def test_handler_retry_holds_for_leased_messages(tmp_path: Path) -> None:
    """A policy without retries makes a dead letter of the first message that is put back."""
    once = exponential(1.0, 0)
    with Postbox(tmp_path / "a.db", agent="a", start=False, handler_retry=once) as box:
        jobs = box.mailboxes.ensure("jobs", public=True)
        jobs.send("x")
        box.run_until_idle()
        [message] = jobs.lease("g")
        message.retry(reason="not today")

        assert ["max_retries_exceeded"] == [dead.reason for dead in box.dead_letters.list()]


def test_a_message_that_cannot_be_read_does_not_end_a_lease(tmp_path: Path) -> None:
    """What cannot be read as the wanted type becomes a dead letter, and the next is leased."""
    with Postbox(tmp_path / "a.db", agent="a", start=False) as box:
        jobs = box.mailboxes.ensure("jobs", public=True)
        jobs.send({"n": "many"})
        jobs.send({"n": 1})
        box.run_until_idle()
        found = jobs.lease("g", Count)

        assert [1] == [message.body.n for message in found]
        assert ["rejected"] == [dead.reason for dead in box.dead_letters.list()]
