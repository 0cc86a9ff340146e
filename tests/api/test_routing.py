"""Parcels for a file that this process has open go to the receiver of its postbox."""

from __future__ import annotations

from pathlib import Path

import pytest

from onceward import Postbox
from onceward.core.maintenance import OwnerSession
from onceward.events import Received


def heard(box: Postbox) -> list[str]:
    """Return the ids of the messages that *box* is told of, filled as they come."""
    found: list[str] = []
    box.on(Received, lambda event: found.append(event.message_id))
    return found


def test_a_postbox_hears_what_comes_after_another_of_its_file_was_closed(tmp_path: Path) -> None:
    """The newest postbox of a file is told of what comes; once it is closed, the one before it."""
    with (
        Postbox(tmp_path / "a.db", agent="a", start=False) as sender,
        Postbox(tmp_path / "b.db", agent="b", start=False) as first,
    ):
        older = heard(first)
        with Postbox(tmp_path / "b.db", start=False) as second:
            newer = heard(second)
            one = sender.send("b", 1)
            sender.run_until_idle()
        two = sender.send("b", 2)
        sender.run_until_idle()

    assert ([two], [one]) == (older, newer)


def test_an_agent_is_in_reach_of_memory_while_a_postbox_of_it_is_open(tmp_path: Path) -> None:
    """When the newest postbox of an agent is closed, the one before it takes its parcels."""
    with (
        Postbox(tmp_path / "a.db", agent="a", start=False) as sender,
        Postbox(tmp_path / "b.db", agent="b", start=False) as box,
    ):
        sender.peers.add("b", "memory:b")
        Postbox(tmp_path / "b.db", start=False).close()
        sent = sender.send("b", 1)
        sender.run_until_idle()
        message = box.receive()

    assert message is not None
    assert sent == message.id


def test_a_postbox_that_failed_to_open_receives_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A parcel goes to the postbox that is open, never to one whose opening raised."""
    with (
        Postbox(tmp_path / "a.db", agent="a", start=False) as sender,
        Postbox(tmp_path / "b.db", agent="b", start=False) as box,
    ):
        found = heard(box)
        with monkeypatch.context() as patched:
            patched.setattr(OwnerSession, "begin", _failing)
            with pytest.raises(OSError, match="no room"):
                Postbox(tmp_path / "b.db", start=False)
        sent = sender.send("b", 1)
        sender.run_until_idle()

    assert [sent] == found


def _failing(_: OwnerSession, **_options: object) -> None:
    msg = "no room"
    raise OSError(msg)
