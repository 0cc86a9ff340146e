"""The small fleet has exactly the faults that it says, and the same messages for the same seed."""

from pathlib import Path

import apsw
import pytest

from onceward.fleet import Rules, reconcile
from onceward.message.names import DIRECTORY
from onceward.testing.fleet import FAULTS, Fleet, build

pytestmark = pytest.mark.broken("faults were planted in these files")
IDS = "SELECT id FROM onceward_outbox ORDER BY seq"


def ids(fleet: Fleet) -> list[str]:
    """Return the ids of all messages that senders know, file by file."""
    found: list[str] = []
    for path in sorted(fleet.folder.glob("*-near.db")):
        con = apsw.Connection(str(path), apsw.SQLITE_OPEN_READONLY)
        found += [str(message_id) for (message_id,) in con.execute(IDS)]
        con.close()
    return found


@pytest.mark.parametrize("size", [1, 2])
def test_a_reconciliation_finds_what_was_planted(size: int, tmp_path: Path) -> None:
    """Each fault has its verdict as often as was said, and no other message is bad."""
    made = build(tmp_path, size=size)
    report = reconcile(tmp_path, rules=Rules(now=made.now))

    assert made.verdicts == report.verdicts
    assert {*FAULTS, "in_flight"} == made.verdicts.keys()
    assert {"witness-far.db": "corrupt", "double-far.db": "differs"} == {
        Path(row["path"]).name: row["reason"] for row in report.quarantine
    }


def test_the_same_seed_makes_the_same_messages(tmp_path: Path) -> None:
    """A fleet can be made again to look into a finding; another seed makes other ids."""
    first, again, other = (
        build(tmp_path / name, seed=seed) for name, seed in (("a", 1), ("b", 1), ("c", 2))
    )

    assert ids(first) == ids(again)
    assert ids(first) != ids(other)
    assert (tmp_path / "a" / DIRECTORY).exists()
