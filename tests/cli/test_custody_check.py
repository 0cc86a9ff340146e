"""``onceward check`` over both ends of a conversation."""

from pathlib import Path
from typing import Any

import pytest

from onceward import Postbox


@pytest.fixture
def both(tmp_path: Path) -> tuple[Path, Path]:
    """Leave two files behind whose mail was delivered and handled."""
    with (
        Postbox(tmp_path / "bob.db", agent="bob", start=False) as bob,
        Postbox(tmp_path / "ann.db", agent="ann", start=False) as ann,
    ):
        ann.send("bob", 1)
        ann.run_until_idle()
        message = bob.receive()
        assert message is not None
        message.ack()
        bob.run_until_idle()
    return tmp_path / "ann.db", tmp_path / "bob.db"


def test_both_ends_agree(both: tuple[Path, Path], cli: Any) -> None:
    """Sound files that keep each unacknowledged message have no offender."""
    ran = cli("check", *map(str, both), "--json")

    assert (0, []) == (ran.code, ran.json["offenders"])


@pytest.mark.broken("the recipient forgets by hand")
def test_a_recipient_that_forgot_is_found(both: tuple[Path, Path], cli: Any) -> None:
    """Each file alone is sound; only both together tell that an acked message is gone."""
    with Postbox(both[1], start=False) as bob, bob.begin() as tx:
        tx.execute("DELETE FROM _onceward_inbox")
        tx.execute("DELETE FROM _onceward_processed_messages")
        tx.execute("UPDATE _onceward_lanes SET head_seq = NULL")

    assert 0 == cli("check", str(both[1])).code
    ran = cli("check", *map(str, both), "--json")

    assert (1, ["X1"]) == (ran.code, [found["invariant"] for found in ran.json["offenders"]])
