"""Leases and positions that no process would mend: found, told, and mended in one commit."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from onceward.file.file_checks import process_id
from onceward.message.clock import iso

YEARS = 10 * 366 * 86_400_000
DEAD = """
from onceward.file.file_checks import process_id
print(process_id())
"""
LEASES = {
    "lane": (
        "UPDATE _onceward_lanes SET owner = :owner, due_at = :until, leased_seqs = '[1]'",
        "SELECT due_at FROM _onceward_lanes",
    ),
    "peer": (
        "UPDATE _onceward_peers SET owner = :owner, lease_at = :until WHERE name = 'bob'",
        "SELECT lease_at FROM _onceward_peers WHERE name = 'bob'",
    ),
    "mailbox": (
        """
        INSERT INTO _onceward_mailbox_leases (reader_id, seq, rank, owner, due_at)
        SELECT reader_id, 1, 2, :owner, :until FROM _onceward_mailbox_readers
        """,
        "SELECT due_at FROM _onceward_mailbox_leases",
    ),
}


@pytest.fixture
def box(home: Any) -> Any:
    """Return a postbox with a message that waits, a mailbox read by a cursor, and a peer."""
    box = home.open("ann")
    other = home.open("bob")
    mailbox = box.mailboxes.ensure("news", public=True)
    mailbox.send("first")
    box.run_until_idle()
    assert 1 == len(mailbox.read("reader"))
    other.send("ann", "hello")
    box.send("bob", "hello")
    other.run_until_idle()
    box.run_until_idle()
    return box


@pytest.fixture(scope="module")
def dead() -> str:
    """Return the owner name of a process that has ended."""
    command = [sys.executable, "-c", DEAD]
    ran = subprocess.run(command, capture_output=True, text=True, check=True)
    return f"{ran.stdout.strip()}/token"


@pytest.mark.broken("leases are planted")
@pytest.mark.parametrize("what", LEASES)
def test_a_lease_of_a_dead_process_ends_now(home: Any, box: Any, dead: str, what: str) -> None:
    """A dry run says so and changes nothing; the repair says the same, and ends it."""
    plant, look = LEASES[what]
    until = home.clock.now() + 60_000
    file = home.file(box)
    file.write(lambda tx: tx.run(plant, {"owner": dead, "until": until}))

    told = box.file.repair(dry_run=True)
    between = file.read(look)[0][0]
    mended = box.file.repair()

    assert [("lease", True)] == [(each.kind, "has ended" in each.found) for each in told]
    assert (told, until, home.clock.now()) == (mended, between, file.read(look)[0][0])
    assert [] == box.file.repair()


@pytest.mark.broken("leases are planted")
@pytest.mark.parametrize("what", LEASES)
def test_a_lease_that_ends_years_ahead_is_cut(home: Any, box: Any, what: str) -> None:
    """It ends after one lease from now: a live owner prolongs it, a message waits no longer."""
    plant, look = LEASES[what]
    until = home.clock.now() + YEARS
    file = home.file(box)
    owner = f"{process_id()}/token"
    file.write(lambda tx: tx.run(plant, {"owner": owner, "until": until}))

    [mended] = box.file.repair()

    assert (True, True) == (iso(until) in mended.found, "30 s" in mended.change)
    assert home.clock.now() + 30_000 == file.read(look)[0][0]
    assert [] == box.file.repair()


def test_a_lease_in_use_is_left(home: Any, box: Any) -> None:
    """A lease of a live process, of an ordinary length, is not a fault."""
    with box.receive() as message:
        assert [] == box.file.repair(dry_run=True)
        assert "hello" == message.body
    assert home.clock.now() > 0


@pytest.mark.parametrize("name", ["default", "reader"])
def test_a_cursor_past_the_end_is_set_back(home: Any, box: Any, name: str) -> None:
    """What is stored after that is read again; what a poll had not taken, too."""
    file, far = home.file(box), 1 << 40
    if name == "reader":
        plant = "UPDATE _onceward_mailbox_readers SET normal = :far, low = :far"
    else:
        assert [] == box.sessions.poll(topics="none", consume_skipped=False)
        plant = (
            "INSERT INTO _onceward_poll_cursors (session, seq, read_at)"
            " VALUES ('default', :far, 1) ON CONFLICT DO UPDATE SET seq = excluded.seq"
        )
    file.write(lambda tx: tx.run(plant, {"far": far}))

    told = box.file.repair(dry_run=True)
    assert [] == read(box, name)
    assert told == box.file.repair()
    box.mailboxes.get("news").send("second")
    box.run_until_idle()

    assert [("position", True)] == [(each.kind, name in each.subject) for each in told]
    assert [["second"], ["hello"]][name == "default"] == read(box, name)
    assert [] == box.file.repair()


def read(box: Any, name: str) -> list[Any]:
    """Return the bodies that a poll, or a mailbox's cursor, reads now."""
    records = box.sessions.poll() if name == "default" else box.mailboxes.get("news").read(name)
    return [record.body for record in records]
