"""Leases of mailboxes whose messages end badly."""

from __future__ import annotations

from pathlib import Path
from threading import Thread

import pytest
from tests.children import PYTHON, Child
from tests.waiting import until

from onceward import Msg, Postbox, Tuning

HOUR = 3600
MEMBER = f"""
import sys
from onceward import Postbox
with Postbox(sys.argv[1], agent="a", start=False) as box:
    [message] = box.mailboxes.get("jobs").lease("g", lease={HOUR})
    print(message.body, message.attempt, flush=True)
    input()
"""


class Count(Msg, type="count"):
    """A body with a number."""

    n: int


def test_handler_retry_holds_for_leased_messages(tmp_path: Path) -> None:
    """A policy without retries makes a dead letter of the first message that is put back."""
    with Postbox(tmp_path / "a.db", agent="a", start=False, handler_retry="1x") as box:
        jobs = box.mailboxes.ensure("jobs", public=True)
        jobs.send("x")
        box.run_until_idle()
        [message] = jobs.lease("g")
        message.retry(reason="not today")

        assert ["attempts_spent"] == [dead.reason for dead in box.dead_letters.list()]


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


@pytest.mark.parametrize("waits", [False, True], ids=["reads", "waits"])
def test_leases_of_a_killed_process_are_free_at_once(tmp_path: Path, waits: bool) -> None:
    """Another member gets its message in the second attempt, also one that waits for it."""
    with Postbox(tmp_path / "a.db", agent="a", start=False, tuning=Tuning(poll_interval=0)) as box:
        jobs, found = box.mailboxes.ensure("jobs", public=True), list[tuple[object, int]]()
        jobs.send("x")
        box.run_until_idle()

        def read(timeout: float) -> None:
            if (message := jobs.receive("g", timeout=timeout)) is not None:
                found.append((message.body, message.attempt))

        with Child([*PYTHON, "-c", MEMBER, box.file.path], "stdin", "stdout") as member:
            assert member.stdout is not None
            assert "x 1\n" == member.stdout.readline()
            read(0)
            assert [] == found
            if waits:
                Thread(target=read, args=(HOUR,), daemon=True).start()
                until(lambda: box._db.notifier.is_heard("in"))
        if waits:
            until(lambda: found)
        else:
            read(0)

        assert [("x", 2)] == found
