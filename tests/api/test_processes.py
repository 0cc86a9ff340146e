"""
Mailboxes between processes: groups, leases, wake-ups and creation.

Groups share, leases of the dead move on, sleepers wake, and one creation wins.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from threading import Thread

import pytest
from tests.children import PYTHON, Child

from onceward import Postbox
from onceward.errors import UnknownMailbox

CREW = Path(__file__).with_name("crew.py")
Start = Callable[..., Child]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Return the call that starts a process of the crew; all of them are gone after the test."""
    with ExitStack() as stack:

        def run(
            task: str, agent: str = "owner", mailbox: str = "jobs", seconds: float = 30.0
        ) -> Child:
            path = tmp_path / f"{agent}.db"
            command = [*PYTHON, CREW, task, path, agent, mailbox, seconds]
            return stack.enter_context(Child(command, "stdin", "stdout"))

        yield run


@pytest.fixture
def owner(tmp_path: Path) -> Iterator[Postbox]:
    """Return the agent that keeps the mailbox."""
    with Postbox(tmp_path / "owner.db", agent="owner", start=False) as box:
        box.mailboxes.ensure("jobs", public=True, ttl=None)
        with box.begin() as tx:
            tx.execute("CREATE TABLE done (id, pid)")
        yield box


def fill(box: Postbox, count: int) -> list[str]:
    """Put messages into the mailbox."""
    jobs = box.mailboxes.get("jobs")
    ids = [jobs.send(n) for n in range(count)]
    box.run_until_idle()
    return ids


def test_five_processes_share_a_hundred_messages(owner: Postbox, start: Start) -> None:
    """Each message is handled by one member, once; together they handle all of them."""
    ids = fill(owner, 100)

    crew = [start("share") for _ in range(5)]
    for process in crew:
        assert "end" == process.hear()

    done = Counter(str(i) for (i,) in owner._db.read("SELECT id FROM done"))
    assert Counter(ids) == done
    assert [] == owner.file.check()


def test_leases_of_the_killed_move_on(owner: Postbox, start: Start) -> None:
    """A killed member's messages are handed out again when its lease has ended, and done once."""
    ids = fill(owner, 20)
    dying = start("die", seconds=1.0)
    assert "holding 5 owner" == dying.hear()
    dying.kill()

    crew = [start("share") for _ in range(2)]
    for process in crew:
        assert "end" == process.hear()

    assert Counter(ids) == Counter(str(i) for (i,) in owner._db.read("SELECT id FROM done"))


def test_a_sleeper_wakes_when_another_process_commits(owner: Postbox, start: Start) -> None:
    """
    A long poll returns by the bell, before its timeout.

    How long it took is for the benchmark to say.
    """
    waiter = start("wait")
    assert "ready owner 30.0" == waiter.hear()
    jobs = owner.mailboxes.get("jobs")
    took = []
    for n in range(9):
        jobs.send(n)
        owner.run_until_idle()
        sent = time.monotonic_ns()
        body, at = waiter.hear().split()
        assert str(n) == body
        took.append((int(at) - sent) / 1e9)

    assert median(took) < 60.0  # the timeout: no reader was woken by it


def test_one_creation_wins(tmp_path: Path, start: Start) -> None:
    """Processes that ensure the same name at once agree on its owner and end; one made it."""
    crew = [start("ensure", f"a{n}", "shared.name", 60.0 + n) for n in range(5)]
    for process in crew:
        assert "ready" == process.hear()
    for process in crew:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    answers = [process.hear().split() for process in crew]

    assert 1 == len({(owner, expires_at) for _, owner, expires_at in answers})
    assert 1 == sum(created == "True" for created, _, _ in answers)
    assert (tmp_path / "directory.db").exists()


def test_a_blocked_reader_learns_of_the_end(owner: Postbox) -> None:
    """A reader of a mailbox that expires gets UnknownMailbox, and does not wait for its timeout."""
    short = owner.mailboxes.ensure("short", public=True, ttl=0.5)
    ended: list[str] = []

    def wait() -> None:
        try:
            short.receive("g", timeout=60)
        except UnknownMailbox:
            ended.append("gone")

    thread = Thread(target=wait)
    thread.start()
    thread.join(60)

    assert ["gone"] == ended


def test_reading_from_another_agents_process(owner: Postbox, tmp_path: Path) -> None:
    """A process that has the name reads in the owner's file, from a postbox of its own."""
    fill(owner, 3)
    with Postbox(tmp_path / "other.db", agent="other", start=False) as other:
        jobs = other.mailboxes.get("jobs")
        [message] = jobs.lease("g")
        message.ack()

        assert [1, 2] == [each.body for each in jobs.lease("g", limit=9)]
        assert [0, 1, 2] == [letter.body for letter in owner.mailboxes.get("jobs").scan()]
