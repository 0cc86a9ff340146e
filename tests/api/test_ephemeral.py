"""
Ephemeral messages: a restart of the owner drops those that are not taken.

It says how many it dropped, and drops nothing else.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.children import PYTHON, Child

from onceward import Postbox
from onceward.errors import Busy
from onceward.events import EphemeralDropped
from onceward.file.owner_lock import OwnerLock

HOLDER = """
import sys
from onceward import Postbox
box = Postbox(sys.argv[1], agent="owner", start=sys.argv[2] == "run")
print("open", flush=True)
sys.stdin.read()
"""


def opened(folder: Path, agent: str = "owner", **options: Any) -> Postbox:
    """Open an agent's file, by default with engines: a run of its owner."""
    return Postbox(folder / f"{agent}.db", agent=agent, **options)


@contextmanager
def held(folder: Path, how: str) -> Iterator[None]:
    """Run a process that has the owner's postbox open, and kill it as the system would."""
    with Child([*PYTHON, "-c", HOLDER, folder / "owner.db", how], "stdin", "stdout") as process:
        assert "open" == process.hear()
        yield


@pytest.fixture
def news(tmp_path: Path) -> Path:
    """
    Return a home with a mailbox and an inbox that hold ephemeral messages.

    The owner's mailbox has two ephemeral messages and a lasting one, the inbox one of each.
    """
    with opened(tmp_path, start=False) as box, opened(tmp_path, "peer", start=False) as peer:
        news = box.mailboxes.ensure("news", public=True, ttl=None)
        for n, ephemeral in enumerate((True, False, True)):
            news.send(n, ephemeral=ephemeral)
        peer.send("owner", "fleeting", ephemeral=True)
        peer.send("owner", "lasting")
        peer.run_until_idle(), box.run_until_idle()
    return tmp_path


def left(box: Postbox) -> tuple[list[Any], int, int]:
    """Return the mailbox's messages, the number that waits in the inbox, and the restart drops."""
    waiting = box._db.read(
        "SELECT count(*) FROM _onceward_inbox WHERE state = 'pending' AND mailbox IS NULL"
    )
    return (
        [letter.body for letter in box.mailboxes.get("news").scan()],
        waiting[0][0],
        box.file.stats()["ephemeral_dropped"],
    )


ALL = ([0, 1, 2], 2, 0)
REST = ([1], 1, 3)


def test_a_restart_drops_what_nobody_has_taken(news: Path) -> None:
    """
    Ephemeral messages end as dropped, with a reason.

    The counter and an event say how many; their senders have nothing more to do.
    """
    told: list[int] = []
    with opened(news) as box:
        box.on(EphemeralDropped, lambda event: told.append(event.count))
        assert REST == left(box)
        rows = box._db.read("SELECT DISTINCT state, reason FROM onceward_ephemeral_messages")
        assert [("dropped", "ephemeral: not taken before a restart")] == rows
        assert [] == box.file.check()
    with opened(news, start=False) as again, opened(news, "peer", start=False) as peer:
        again.run_until_idle(), peer.run_until_idle(), again.run_until_idle()
        assert ([3], REST, [0, 1, 1]) == (
            told,
            left(again),
            [peer.file.stats()[name] for name in ("acked", "outbox_dropped", "sent")],
        )


def test_looking_is_no_restart(news: Path) -> None:
    """An opening without engines drops nothing, alone or not: a command may look at the file."""
    for _ in range(2):
        with opened(news, start=False) as box:
            assert ALL == left(box)


@pytest.mark.parametrize("how", ["run", "look"])
def test_while_another_process_has_it_open_nothing_is_dropped(news: Path, how: str) -> None:
    """
    The run goes on while any process has the file open, with engines or without.

    Once the last one was killed, the next opening is a restart.
    """
    with opened(news, start=False) as looking:
        with held(news, how), opened(news) as box:
            assert ALL == left(box)
        assert ALL == left(looking)
    with opened(news) as box:
        assert REST == left(box)


def test_two_postboxes_of_one_process_are_one_run(news: Path) -> None:
    """The lock is that of an opening, not that of a process."""
    with opened(news, start=False), opened(news) as box:
        assert ALL == left(box)


def test_what_a_reader_holds_is_not_dropped(news: Path) -> None:
    """A group's lease and a lane's lease keep messages; a cursor and a replay hold nothing."""
    with opened(news, "peer", start=False) as peer:
        with opened(news, start=False) as box:
            [leased] = peer.mailboxes.get("news").lease("crew", limit=1)
            message = box.receive()
            assert message is not None
            assert [0, 1, 2] == [letter.body for letter in box.mailboxes.get("news").read("c")]
            assert (0, "fleeting") == (leased.body, message.body)
        with opened(news) as box:
            assert ([0, 1], 2, 1) == left(box)
            leased.ack()
    with opened(news) as box:
        assert ([1], 2, 2) == left(box)


def test_a_frozen_file_drops_nothing(news: Path) -> None:
    """A paused file lets nothing end; the restart after the resume does."""
    with opened(news, start=False) as box:
        box.file.pause()
    with opened(news) as box:
        box.file.resume()
        assert ALL == left(box)
    with opened(news) as box:
        assert REST == left(box)


def test_a_profile_may_map_priorities(tmp_path: Path) -> None:
    """
    Messages are ephemeral only in mailboxes, where the send does not say otherwise.

    It takes a postbox that is set so; by default no message is volatile.
    """
    with opened(tmp_path, start=False) as plain:
        plain.mailboxes.ensure("m", public=True).send("lasting")
    with opened(tmp_path, start=False, ephemeral_priorities=("normal", "low", "background")) as box:
        mailbox = box.mailboxes.get("m")
        mailbox.send("normal")
        mailbox.send("urgent", priority="high")
        mailbox.send("kept", ephemeral=False)
        box.run_until_idle()
    with opened(tmp_path) as box:
        assert ["urgent", "lasting", "kept"] == [
            letter.body for letter in box.mailboxes.get("m").scan()
        ]


def test_an_opening_waits_for_another_one_and_no_longer_than_it_may(tmp_path: Path) -> None:
    """
    While a process alone decides what to drop, no other opens the file.

    An opening that waits in vain is told to try again.
    """
    first = OwnerLock(tmp_path / "a.db", patience=0.0)
    with pytest.raises(Busy):
        OwnerLock(tmp_path / "a.db", patience=0.0)
    first.share()
    second = OwnerLock(tmp_path / "a.db", patience=0.0)
    seen = (first.exclusive, second.exclusive)
    first.close()
    second.close()
    third = OwnerLock(tmp_path / "a.db", patience=0.0)
    third.close()

    assert ((True, False), True) == (seen, third.exclusive)


def test_without_locks_nobody_is_ever_alone(tmp_path: Path) -> None:
    """Where the lock cannot be had, an opening goes on without it and sees no restart."""
    (tmp_path / "a.db-run").mkdir()
    there = OwnerLock(tmp_path / "a.db", patience=0.0)
    there.share()
    there.close()

    assert not there.exclusive
