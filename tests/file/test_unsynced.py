"""Commits that need no sync of their own: which they are, and that no other is one of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from threading import Thread

import pytest
from tests.waiting import until

from onceward import Postbox
from onceward.file.transaction import StoreTransaction

LIMIT = 60.0
NORMAL, FULL = 1, 2


@pytest.fixture
def levels(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return the list that gets the synchronous level of each commit."""
    found: list[int] = []
    commit = StoreTransaction.commit

    def noted(self: StoreTransaction) -> None:
        found.append(self.rows("PRAGMA synchronous")[0][0])
        commit(self)

    monkeypatch.setattr(StoreTransaction, "commit", noted)
    return found


@pytest.fixture
def box(tmp_path: Path) -> Iterator[Postbox]:
    """Return a postbox without engines that has a message for itself."""
    with Postbox(tmp_path / "shop.db", agent="shop", start=False) as opened:
        opened.send("shop", 1)
        opened.run_until_idle()
        yield opened


def test_a_readers_claim_is_not_synced_and_its_ack_is(box: Postbox, levels: list[int]) -> None:
    """Two syncs are enough for a message to oneself that is received by hand."""
    message = box.receive()
    assert message is not None
    message.ack()

    assert [NORMAL, FULL] == levels


def test_who_shares_the_commit_of_a_claim_is_synced(box: Postbox, levels: list[int]) -> None:
    """A send that waits for the turn is committed together with the claim, durably."""
    queue = box._db.writer.queue
    threads = [
        Thread(target=lambda: box._db.write(lambda tx: tx.now, synced=False)),
        Thread(target=lambda: box.send("shop", 2)),
    ]
    with box._db.writer.exclusive():
        for waiting, thread in enumerate(threads, start=1):
            thread.start()
            until(lambda waiting=waiting: queue.waiting == waiting)  # type: ignore[misc]
    for thread in threads:
        thread.join(LIMIT)

    assert [FULL] == levels


def test_a_file_that_is_opened_anew_after_a_claim_is_synced(
    box: Postbox, levels: list[int]
) -> None:
    """The level is that of the connection: a new one begins with synced commits."""
    box.receive()
    box._db.reopen()
    box.send("shop", 2)

    assert [NORMAL, FULL] == levels[:1] + levels[-1:]


def test_a_fast_file_stays_as_it_is(tmp_path: Path, levels: list[int]) -> None:
    """Its commits are never synced, before a claim or after it."""
    with Postbox(tmp_path / "fast.db", agent="fast", start=False, durability="fast") as box:
        box.send("fast", 1)
        box.run_until_idle()
        del levels[:]
        message = box.receive()
        assert message is not None
        message.ack()
        found = levels[:]

    assert [NORMAL, NORMAL] == found
