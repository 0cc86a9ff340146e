"""Bodies of dead letters that are corrected, and what the message keeps of it."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from onceward import Agent, AsyncPostbox, Msg, Postbox
from onceward.core.deliver.transport import Accept
from onceward.errors import InvalidArgument, InvalidMessage
from onceward.testing.builders import build_frame, parcel


class Invoice(Msg, type="invoice"):
    """A body with a rule."""

    cents: int


def billing() -> tuple[Agent, list[int]]:
    """Return an agent that handles invoices, and what it has handled."""
    agent, seen = Agent("billing"), list[int]()

    @agent.on(Invoice)
    def pay(invoice: Invoice) -> None:
        seen.append(invoice.cents)

    return agent, seen


@pytest.fixture
def misfit(tmp_path: Path) -> tuple[Path, str]:
    """Return a file and the id of its dead letter, whose body does not fit."""
    path = tmp_path / "billing.db"
    with Postbox(path, agent=billing()[0], start=False) as box:
        sent = box.send("billing", {"cents": "ten"}, type="invoice", headers={"origin": "till"})
        box.run_until_idle()
    return path, sent


def test_a_corrected_message_is_handled_and_keeps_its_past(misfit: tuple[Path, str]) -> None:
    """Its other attributes stay; the audit is in the message, wherever it is then."""
    path, sent = misfit
    agent, seen = billing()
    with Postbox(path, agent=agent, start=False) as box:
        edited = box.dead_letters.edit(sent, Invoice(cents=10))
        box.dead_letters.replay(sent)
        box.run_until_idle()
        [(frame,)] = box.query("SELECT frame FROM onceward_inbox")

    [edit] = json.loads(str(edited.headers["bodyedits"]))
    assert ([10], {"cents": 10}, "till") == (seen, edited.body, edited.headers["origin"])
    assert {"cents": "ten"} == edit["data"]
    assert edited.headers["bodyedits"] == json.loads(frame)["bodyedits"]
    assert edited.dead_at <= edit["at"]


def test_an_edited_message_of_another_agent_keeps_the_invariants(tmp_path: Path) -> None:
    """Its body is not that of its sender's file, as was intended: the pair of files is sound."""
    agent, seen = billing()
    with (
        Postbox(tmp_path / "shop.db", agent="shop", start=False) as shop,
        Postbox(tmp_path / "billing.db", agent=agent, start=False) as box,
    ):
        sent = shop.send("billing", {"cents": "ten"}, type="invoice")
        shop.run_until_idle()
        box.run_until_idle()
        box.dead_letters.edit(sent, {"cents": 10})
        box.dead_letters.replay(sent)
        box.run_until_idle()

        assert ([10], []) == (seen, shop.file.check(box.file))


def test_a_body_that_does_not_fit_changes_nothing(misfit: tuple[Path, str]) -> None:
    """The handler's model is the judge; without one any JSON value or bytes may be stored."""
    path, sent = misfit
    with Postbox(path, agent=billing()[0], start=False) as box:
        with pytest.raises(InvalidMessage, match="cents: Input should be a valid integer"):
            box.dead_letters.edit(sent, {"cents": "twenty"})
        dead = box.dead_letters.get(sent)
        assert dead is not None
        assert ({"cents": "ten"}, {"origin": "till"}) == (dead.body, dead.headers)
        assert box.dead_letters.checks("invoice")
    with Postbox(path, start=False) as box:
        assert b"\x00\xff" == box.dead_letters.edit(sent, b"\x00\xff").body
        assert [1] == box.dead_letters.edit(sent, [1]).body
        assert not box.dead_letters.checks("invoice")
        with pytest.raises(InvalidArgument, match="no dead letter"):
            box.dead_letters.edit("0000", 1)


def test_the_async_face_edits(misfit: tuple[Path, str]) -> None:
    """With the same words."""
    path, sent = misfit

    async def correct() -> object:
        async with AsyncPostbox(path, start=False) as box:
            return (await box.dead_letters.edit(sent, {"cents": 3})).body

    assert {"cents": 3} == asyncio.run(correct())


def test_no_sender_forges_the_audit(tmp_path: Path) -> None:
    """The header is not taken from the options of a send."""
    with (
        Postbox(tmp_path / "shop.db", agent="shop", start=False) as box,
        pytest.raises(InvalidMessage),
    ):
        box.send("shop", 1, headers={"bodyedits": "[]"})


class Door:
    """A listener whose parcels a test passes in."""

    def listen(self, _name: str, accept: Accept) -> None:
        """Keep the function that takes parcels."""
        self.accept = accept

    def close(self) -> None:
        """Hold nothing."""


def test_no_peer_forges_the_audit(tmp_path: Path) -> None:
    """A frame that arrives with earlier bodies is refused; one with other headers is stored."""
    edits, door = json.dumps([{"at": 1, "data": "never sent"}]), Door()
    frames = [
        build_frame(1, sender="alice", recipient="bob").model_copy(update=headers)
        for headers in ({"bodyedits": edits}, {"origin": "till"})
    ]
    with Postbox(tmp_path / "bob.db", agent="bob", start=False, listeners=[door]) as box:
        answer = door.accept(parcel(1, frames, sender="alice", recipient="bob"))
        stored = box.query("SELECT id FROM onceward_inbox")

    assert [(frames[1].id,)] == stored
    assert "invalid: bodyedits: the file of its recipient keeps it" in str(answer)
