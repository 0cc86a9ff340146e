"""Bodies that a codec encrypts: plain for senders and handlers, encrypted everywhere else."""

from __future__ import annotations

import hashlib
import hmac
import json
from pathlib import Path
from typing import Any

import pytest

from onceward import Agent, Postbox, Reject
from onceward.errors import Conflict, InvalidArgument, InvalidMessage
from onceward.fleet import reconcile
from onceward.ops.cli import main
from onceward.types import EncryptedMsg

CARD = "4111 1111 1111 1111"


class Vault:
    """A codec for tests: a stream of a keyed hash, and a mark that authenticates it."""

    def __init__(self) -> None:
        self.keys, self.current = {"old": b"1", "new": b"2"}, "new"

    def encrypt(self, plain: bytes, context: bytes) -> tuple[str, bytes]:
        """Encrypt with the current key."""
        mark = self._mark(self.current, plain, context)
        return self.current, mark + self._mixed(self.current, mark, plain)

    def decrypt(self, key_id: str, data: bytes, context: bytes) -> bytes:
        """Decrypt, and compare the mark."""
        mark, plain = data[:32], self._mixed(key_id, data[:32], data[32:])
        if not hmac.compare_digest(mark, self._mark(key_id, plain, context)):
            raise ValueError
        return plain

    def _mark(self, key_id: str, plain: bytes, context: bytes) -> bytes:
        return hmac.digest(self.keys[key_id], context + b"\0" + plain, "sha256")

    def _mixed(self, key_id: str, mark: bytes, data: bytes) -> bytes:
        stream = hashlib.shake_256(self.keys[key_id] + mark).digest(len(data))
        return bytes(a ^ b for a, b in zip(data, stream, strict=True))


VAULT = Vault()


class Payment(EncryptedMsg, type="payment", codec=VAULT):
    """A body with a secret."""

    card: str
    cents: int


class Paid(Payment, type="paid"):
    """The reply, with the codec of its parent."""


billing = Agent("billing")


@billing.on(Payment)
def pay(payment: Payment) -> Paid:
    """Refuse an amount below nothing."""
    if payment.cents < 0:
        msg = "a negative amount"
        raise Reject(msg)
    return Paid(card=payment.card, cents=payment.cents)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """Return a home whose two agents have exchanged a message, a reply and a dead letter."""
    with postbox(tmp_path, "shop") as shop, postbox(tmp_path, billing) as box:
        ticket = shop.request("billing", Payment(card=CARD, cents=5))
        shop.send("billing", Payment(card=CARD, cents=-5), key="bad")
        settle(shop, box)
        assert Paid(card=CARD, cents=5) == shop.result(ticket, reply=Paid)
    return tmp_path


def postbox(home: Path, agent: Agent | str) -> Postbox:
    """Open a file without engines."""
    name = agent if isinstance(agent, str) else agent.name
    return Postbox(home / f"{name}.db", agent=agent, start=False, search=True)


def settle(*boxes: Postbox) -> None:
    """Run until nothing moves."""
    while sum(box.run_until_idle() for box in boxes):
        pass


def dead(home: Path) -> str:
    """Return the id of the dead letter."""
    with postbox(home, "billing") as box:
        [letter] = box.dead_letters.list()
        return letter.id


def test_no_file_has_the_plain_text(home: Path) -> None:
    """Neither the sender's nor the recipient's, nor their WAL; both say which key is needed."""
    stored = b"".join(path.read_bytes() for path in home.iterdir() if path.is_file())

    assert (False, True) == (CARD.encode() in stored, b'"key_id":"new"' in stored)


def test_views_and_search_read_it_as_encrypted(home: Path) -> None:
    """Readers without the codec see a key id and data, and find nothing of the text."""
    with postbox(home, "billing") as box:
        [(body,)] = box.query("SELECT body FROM onceward_dead_letters")
        found = box.search("4111").messages

    assert ({"key_id", "encrypted"}, []) == (json.loads(body).keys(), found)


def test_the_fleet_s_readers_need_no_codec(home: Path, tmp_path: Path) -> None:
    """Every message has its verdict, and no report has the plain text."""
    report = reconcile(home, out=tmp_path / "report")
    written = b"".join(p.read_bytes() for p in (tmp_path / "report").rglob("*") if p.is_file())

    assert (3, False) == (report.messages, CARD.encode() in written)
    assert {"delivered_once": 2, "dead_lettered": 1} == {
        k: n for k, n in report.verdicts.items() if n
    }


def test_a_key_is_replaced_while_messages_wait(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A body of an old key needs that key: without it the message is a dead letter, to replay."""
    with postbox(home, "shop") as shop, postbox(home, billing) as box:
        monkeypatch.setattr(VAULT, "current", "old")
        known = shop.send("billing", Payment(card=CARD, cents=1))
        monkeypatch.setattr(VAULT, "current", "new")
        settle(shop, box)
        assert "acked" == shop.state(known)

        monkeypatch.setattr(VAULT, "current", "old")
        lost = shop.send("billing", Payment(card=CARD, cents=1))
        monkeypatch.setattr(VAULT, "keys", {"new": VAULT.keys["new"]})
        settle(shop, box)
        letter = box.dead_letters.get(lost)
        assert letter is not None
        assert "cannot decrypt a body of the key 'old': KeyError" in str(letter.last_error)

        monkeypatch.undo()
        box.dead_letters.replay(lost)
        settle(shop, box)
        assert "acked" == shop.state(lost)


def test_one_key_of_a_message_means_one_body(home: Path) -> None:
    """A codec that encrypts the same way each time keeps the promise of ``key``."""
    with postbox(home, "shop") as shop:
        again = shop.send("billing", Payment(card=CARD, cents=-5), key="bad")
        assert dead(home) == again
        with pytest.raises(Conflict):
            shop.send("billing", Payment(card=CARD, cents=-6), key="bad")


def test_a_body_of_one_type_is_not_taken_for_another(home: Path) -> None:
    """The type is authenticated with the data."""
    body = json.loads(Payment(card=CARD, cents=1).model_dump_json())

    with pytest.raises(ValueError, match="cannot decrypt a body of the key 'new': ValueError"):
        Paid.model_validate(body)


def test_an_edited_dead_letter_stays_encrypted(home: Path) -> None:
    """A body that a person writes is encrypted by the model of its handler."""
    fixed: dict[str, Any] = {"card": CARD, "cents": 7}
    with postbox(home, billing) as box, postbox(home, "shop") as shop:
        edited = box.dead_letters.edit(dead(home), fixed)
        assert {"key_id", "encrypted"} == edited.body.keys()
        box.dead_letters.replay(edited.id)
        settle(box, shop)
        assert [] == box.dead_letters.list()
    assert CARD.encode() not in (home / "billing.db").read_bytes()


def test_an_edit_without_the_codec_is_refused(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The plain text would be stored: no agent is given that has the model."""
    fixed = {"card": CARD, "cents": 7}
    with postbox(home, "billing") as box, pytest.raises(InvalidMessage, match="is encrypted: open"):
        box.dead_letters.edit(dead(home), fixed)
    words = ["dead", "edit", str(home / "billing.db"), dead(home), "--body", json.dumps(fixed)]

    assert 2 == main(words)
    assert "--handlers module:agent" in capsys.readouterr().err


def test_a_class_without_a_codec_is_refused() -> None:
    """When it is declared."""
    with pytest.raises(InvalidArgument, match="Open has no codec"):
        type("Open", (EncryptedMsg,), {})


def test_a_plain_body_is_handled_too(home: Path) -> None:
    """Senders and handlers need not change at the same moment."""
    with postbox(home, "shop") as shop, postbox(home, billing) as box:
        sent = shop.send("billing", {"card": CARD, "cents": 1}, type="payment")
        settle(shop, box)
        assert "acked" == shop.state(sent)


def test_the_inspector_shows_it_as_encrypted(home: Path) -> None:
    """The page of the message says which key is needed."""
    pytest.importorskip("starlette", reason="the extra inspector brings it")
    from starlette.testclient import TestClient  # noqa: PLC0415 - an extra

    from onceward.ops.inspector import app  # noqa: PLC0415 - an extra

    made = app([home])
    made.state.site.refresher.refresh()
    with TestClient(made, base_url="http://localhost") as web:
        page = web.get(f"/agents/billing/messages/{dead(home)}").text
        made.state.site.refresher.stop()

    assert ("encrypted" in page, "key_id" in page, CARD in page) == (True, True, False)
