"""The audit: a line for each send, poll and expire, with who and how much, and never with what."""

import json
from pathlib import Path
from typing import Any

from tests.children import PYTHON, side_by_side

SENDER = """
import sys
from onceward import Postbox
with Postbox(sys.argv[1], agent=sys.argv[2], audit=sys.argv[3], start=False,
  hold_unknown=True) as box:
    for n in range(50):
        box.send("bob", "x" * 2000)
"""


def lines(path: Path) -> list[dict[str, Any]]:
    """Return what an audit says."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_what_is_noted(home: Any) -> None:
    """
    Record sends, polls and expires.

    A send has its sizes and times to live, a poll both ends of the cursor's move, an expire its
    count.
    """
    audit = home.folder / "audit.jsonl"
    ann, bob = home.open("ann", audit=str(audit)), home.open("bob", audit=str(audit))
    first = ann.send("bob", "sécret", topic="ask", ttl=60)
    ann.send("bob", "long " * 1000)
    ann.run_until_idle()
    bob.sessions.poll(topics="ask")
    bob.sessions.tail()
    bob.file.expire()

    one, two, poll, expire = lines(audit)

    assert ("send", first, "ann", "bob", "ask", 7, False, 60.0) == tuple(
        one[name]
        for name in ("op", "msg_id", "from", "to", "topic", "body_bytes", "externalized", "ttl_s")
    )
    assert (5000, True, None) == (two["body_bytes"], two["externalized"], two["ttl_s"])
    assert ("poll", "bob", ["ask"], 1, 0, 2) == tuple(
        poll[name] for name in ("op", "agent_id", "topics", "matched", "cursor_from", "cursor_to")
    )
    assert ("expire", "bob", 0) == tuple(expire[name] for name in ("op", "agent_id", "dropped"))
    assert "cret" not in audit.read_text(encoding="utf-8")


def test_a_private_id_is_not_noted(home: Any) -> None:
    """The audit names a private mailbox by the hash of its id."""
    audit = home.folder / "audit.jsonl"
    ann = home.open("ann", audit=str(audit))
    mailbox = ann.mailboxes.ensure()
    mailbox.send("psst")

    [noted] = lines(audit)

    assert "~" == noted["mailbox"][0]
    assert mailbox.id not in audit.read_text(encoding="utf-8")


def test_what_was_rolled_back_is_not_noted(home: Any) -> None:
    """Lines are written after the commit, for what was committed."""
    audit = home.folder / "audit.jsonl"
    ann = home.open("ann", audit=str(audit), hold_unknown=True)
    for named in ({"key": "k"}, {"message_id": "one"}):
        ann.send("bob", 1, **named)
        ann.send("bob", 1, **named)

    assert 2 == len(lines(audit))


def test_off_by_default_and_harmless(home: Any) -> None:
    """Nothing is written unasked. A file that cannot be written costs lines, never messages."""
    ann = home.open("ann", hold_unknown=True)
    ann.send("bob", 1)
    cat = home.open("cat", hold_unknown=True, audit=str(home.folder))

    assert ["agents", "directory.db"] == sorted(
        path.name for path in home.folder.iterdir() if path.suffix in {"", ".db"}
    )
    assert "pending" == cat.state(cat.send("bob", 1))


def test_processes_share_an_audit(tmp_path: Path) -> None:
    """Lines of several processes do not mix: each is one write at the end of the file."""
    audit = tmp_path / "audit.jsonl"
    side_by_side([*PYTHON, "-c", SENDER, tmp_path / f"a{n}.db", f"a{n}", audit] for n in range(3))

    assert {f"a{n}": 50 for n in range(3)} == {
        name: sum(line["from"] == name for line in lines(audit))
        for name in {line["from"] for line in lines(audit)}
    }
