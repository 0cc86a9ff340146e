"""A long body that its sender's file had lost: every reader is told, none takes it for null."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from onceward.errors import InvalidMessage

pytestmark = pytest.mark.broken("the damage is planted")
LONG = "long " * 1000
PROBLEM = "the body is missing: its sender's file had lost it"
READERS: dict[str, Callable[[Any, Any], Any]] = {
    "poll": lambda bob, _: bob.sessions.poll("s"),
    "tail": lambda bob, _: bob.sessions.tail("s"),
    "cursor": lambda _, mailbox: mailbox.read("reader"),
    "replay": lambda _, mailbox: list(mailbox.scan()),
    "query": lambda _, mailbox: mailbox.query(),
    "newest": lambda _, mailbox: mailbox.query(limit=5)[::-1],
}


@pytest.fixture
def bob(home: Any) -> Any:
    """Return an agent whose inbox and mailbox have a message that lost its body, and a null."""
    ann, bob = home.open("ann"), home.open("bob")
    mailbox = bob.mailboxes.ensure("box", public=True)
    for body in (LONG, None):
        ann.session("s").send("bob", body, headers={"extra": 1})
        ann.mailboxes.get("box").send(body, headers={"extra": 1})
    home.file(ann).write(lambda tx: tx.run("DELETE FROM _onceward_bodies"))
    ann.run_until_idle()
    assert 2 == mailbox.count()
    return bob


@pytest.mark.parametrize("how", READERS)
def test_a_record_says_that_its_body_is_lost(bob: Any, how: str) -> None:
    """``problem`` tells it from a body that is null; the frame's mark is not a header."""
    found = READERS[how](bob, bob.mailboxes.get("box"))

    assert {(None, PROBLEM), (None, None)} == {(each.body, each.body_error) for each in found}
    assert [{"extra": 1}] * 2 == [each.headers for each in found]


def test_a_record_of_a_type_says_so_too(bob: Any) -> None:
    """Asked for a type, the reader hears of the loss, not of a value that does not fit."""
    assert [PROBLEM] == [each.body_error for each in bob.mailboxes.get("box").query(str)]


def test_history_says_so(home: Any, bob: Any) -> None:
    """On both sides: what was received, and what is still in the outbox."""
    ann = home.open("ann")
    pages = [box.history(session="s").messages for box in (ann, bob)]

    assert [{(None, PROBLEM), (None, None)}] * 2 == [
        {(each.body, each.body_error) for each in page} for page in pages
    ]


def test_a_reply_that_lost_its_body_is_an_error(home: Any) -> None:
    """The caller of a request does not get null for an answer that is gone."""
    ann, bob = home.open("ann"), home.open("bob")
    ticket = ann.request("bob", "question")
    ann.run_until_idle()
    with bob.receive() as message:
        message.reply(LONG)
    home.file(bob).write(lambda tx: tx.run("DELETE FROM _onceward_bodies"))
    bob.run_until_idle()

    with pytest.raises(InvalidMessage, match="the body is missing"):
        ann.result(ticket, reply=object)


def test_check_names_messages_and_audits_them(home: Any) -> None:
    """Both users of a damaged body are named, and each is a line of the audit."""
    audit = home.folder / "audit.jsonl"
    ann = home.open("ann", audit=str(audit), hold_unknown=True)
    ids = [ann.send(to, LONG) for to in ("bob", "cid")]
    before = len(audit.read_text(encoding="utf-8").splitlines())
    home.file(ann).write(lambda tx: tx.run("UPDATE _onceward_bodies SET text = text || ' '"))

    found = ann.file.check()

    assert {("S9", each) for each in ids} == {(each.invariant, each.offender) for each in found}
    lines = [json.loads(line) for line in audit.read_text(encoding="utf-8").splitlines()[before:]]
    assert {("check", "ann", "S9", each) for each in ids} == {
        tuple(line[name] for name in ("op", "agent_id", "invariant", "msg_id")) for line in lines
    }


def test_a_sound_file_leaves_no_line(home: Any) -> None:
    """An audit has lines of check only where a stored message is damaged."""
    audit = home.folder / "audit.jsonl"
    ann = home.open("ann", audit=str(audit), hold_unknown=True)
    ann.send("bob", LONG)

    assert [] == ann.file.check()
    assert 1 == len(audit.read_text(encoding="utf-8").splitlines())
