"""``peers``, ``dead``, ``pause`` and ``resume``: what an operator mends things with."""

from collections.abc import Callable
from typing import Any

import pytest

from onceward import Postbox

Cli = Callable[..., Any]
PEER = [
    "name", "url", "breaker", "failures", "in_flight", "number", "stream_number", "due_at",
    "seen_at", "last_error", "owner",
]  # fmt: skip


@pytest.mark.usefixtures("shop")
def test_a_peer_is_added_listed_and_forgotten(cli: Cli) -> None:
    """Its url is what changes; the peer itself stays known."""
    assert "memory:far" == cli("peers", "add", "far", "memory:far", "--json").json["url"]

    [row] = cli("peers", "ls", "--json").json
    assert PEER == list(row)
    assert [["far", "memory:far", "closed", "0", "0", "", "", ""]] == cli("peers", "ls").lines

    assert cli("peers", "remove", "far", "--json").json["url"] is None


def test_a_breaker_is_closed(cli: Cli, shop: Postbox) -> None:
    """The peer is tried again at once."""
    shop.peers.add("far", "memory:far")
    for _ in range(5):
        shop.send("far", 1)
        shop.run_until_idle()
        shop.peers.reset("far")
    shop.run_until_idle()

    closed = cli("peers", "reset", "far", "--json").json

    assert PEER == list(closed)
    assert ("closed", 0, None) == (closed["breaker"], closed["failures"], closed["due_at"])


def test_dead_letters_are_listed_and_shown(cli: Cli, buried: list[str]) -> None:
    """With reason and time; one of them whole, with its frame."""
    rows = cli("dead", "ls", "--json").json
    keys = [
        "box", "seq", "id", "origin", "sender", "recipient", "session", "lane", "type", "topic",
        "priority", "state", "attempts", "key", "created_at", "received_at", "due_at",
        "expires_at", "sent_at", "ended_at", "dead_at", "reason", "last_error", "late_outcome",
        "late_at", "held_by", "channel", "kind", "correlation_id", "mailbox", "queue", "replays",
    ]  # fmt: skip

    assert [keys] * 2 == [list(row) for row in rows]
    assert sorted(buried) == sorted(row["id"] for row in rows)
    assert [] == cli("dead", "ls", "--reason", "expired").lines

    shown = cli("show", buried[1], "--json").json
    assert (buried[1], {"n": 1}) == (shown["id"], shown["rows"][0]["frame"]["data"])


def test_a_dead_letter_is_replayed_by_id(cli: Cli, shop: Postbox, buried: list[str]) -> None:
    """It is back in the inbox under its own id."""
    ran = cli("dead", "replay", buried[0])

    assert (0, f"{buried[0]}\n") == (ran.code, ran.out)
    assert (1, 1) == (shop.file.stats()["inbox_pending"], shop.file.stats()["dead_letters"])


def test_ids_come_from_stdin(cli: Cli, shop: Postbox, buried: list[str]) -> None:
    """So that one command's output is the next one's input."""
    listed = cli("dead", "ls").out

    ran = cli(
        "dead", "discard", "-", stdin="\n".join(line.split("\t")[0] for line in listed.splitlines())
    )

    assert (0, sorted(buried)) == (ran.code, sorted(ran.out.split()))
    assert 0 == shop.file.stats()["dead_letters"]


def test_bulk_work_is_tried_dry_then_confirmed(cli: Cli, shop: Postbox, buried: list[str]) -> None:
    """A dry run changes nothing, and bulk work needs a confirmation."""
    dry = cli("dead", "discard", "--reason", "rejected", "--dry-run", "--json")
    unasked = cli("dead", "discard", "--reason", "rejected")

    assert ["done", "failed", "dry_run"] == list(dry.json)
    assert (sorted(buried), True) == (sorted(dry.json["done"]), dry.json["dry_run"])
    assert 2 == unasked.code
    assert 2 == shop.file.stats()["dead_letters"]

    assert 0 == cli("dead", "discard", "--reason", "rejected", "--yes").code
    assert 0 == shop.file.stats()["dead_letters"]


@pytest.mark.parametrize(("answer", "code", "left"), [("y\n", 0, 0), ("\n", 3, 2), ("", 3, 2)])
@pytest.mark.usefixtures("buried")
def test_a_person_is_asked(cli: Cli, shop: Postbox, answer: str, code: int, left: int) -> None:
    """On a terminal the count is named and the default is no."""
    ran = cli("dead", "discard", "--all", person=answer)

    assert (code, left) == (ran.code, shop.file.stats()["dead_letters"])
    assert "discard 2 dead letters? [y/N]" in ran.err


def test_discard_takes_what_is_old_enough(cli: Cli, shop: Postbox, buried: list[str]) -> None:
    """Younger ones stay."""
    assert 3 == cli("dead", "discard", "--older-than", "7d", "--yes").code
    assert 2 == cli("dead", "discard", "--yes").code
    assert sorted(buried) == sorted(
        cli("dead", "discard", "--older-than", "0", "--peer", "billing", "--yes").out.split()
    )
    assert 0 == shop.file.stats()["dead_letters"]


def test_an_outgoing_one_is_sent_as_new(cli: Cli, shop: Postbox, billing: Postbox) -> None:
    """The new id is printed; the old letter is gone."""
    assert billing.agent
    old = shop.send("billing", {"n": 1}, ttl=0.0)
    shop.run_until_idle()

    ran = cli("dead", "replay", "--all", "--as-new", "--yes", "--json")

    [new] = ran.json["done"]
    assert new != old
    assert ("absent", "pending") == (shop.resolve(old), shop.resolve(new))


def test_freeze_and_thaw(cli: Cli, shop: Postbox) -> None:
    """The switch is in the file, so that every process sees it."""
    assert {"agent": "shop", "paused": True} == cli("pause", "--json").json
    assert shop.file.health().paused
    assert {"agent": "shop", "paused": False} == cli("resume", "--json").json
    assert not shop.file.health().paused


def test_letters_of_one_type_are_chosen(cli: Cli, shop: Postbox, billing: Postbox) -> None:
    """A handler had a bug for one type: its letters are listed and replayed, the others stay."""
    wanted, other = (billing.send("shop", 1, type=kind) for kind in ("order", "offer"))
    billing.run_until_idle()
    for _ in range(2):
        message = shop.receive()
        assert message is not None
        message.reject("a bug")

    assert [wanted] == [line[0] for line in cli("dead", "ls", "--type", "order").lines]
    assert [[wanted]] == cli("dead", "replay", "--type", "order", "--dry-run").lines
    assert (0, [[wanted]]) == (
        (ran := cli("dead", "replay", "--type", "order", "--yes")).code,
        ran.lines,
    )
    assert [other] == [letter.id for letter in shop.dead_letters.list()]


def test_what_a_peer_may_send_is_said(cli: Cli, shop: Postbox) -> None:
    """Patterns of types, channels and mailboxes; without any the rule of networks."""
    found = cli("peers", "allow", "far", "--type", "a.#", "--type", "b", "--channel", "c", "--json")
    assert [
        {"name": "far", "types": ["a.#", "b"], "channels": ["c"], "mailboxes": []}
    ] == found.json

    assert [["far", "", "[]", "[]"]] == cli("peers", "allow", "far").lines

    peer = shop.peers.get("far")
    assert peer is not None
    assert peer.inbound_rule is not None
    assert peer.inbound_rule.types is None
