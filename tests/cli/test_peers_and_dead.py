"""``peers``, ``dead``, ``pause`` and ``resume``: what an operator mends things with."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.cli.terminals import terminal

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


@pytest.mark.usefixtures("shop")
def test_a_question_shows_no_text_raw(cli: Cli) -> None:
    """A type that was copied from a message is spelled out in the question."""
    ran = cli("cancel", "--type", "job\x1b[2K\rall", person="n\n")

    assert (3, True) == (ran.code, "type job\\x1b[2K\\rall? [y/N]" in ran.err)


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
    assert ("absent", "pending") == (shop.state(old), shop.state(new))


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


APP = """
from onceward import Agent, Msg

class Invoice(Msg, type="invoice"):
    cents: int

agent = Agent("shop")
seen = []

@agent.on(Invoice)
def pay(invoice: Invoice) -> None:
    seen.append(invoice.cents)
"""


@pytest.fixture
def misfit(cli: Cli, home: Path, shop: Postbox, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the id of a dead letter whose body does not fit its handler's model."""
    (home / "shop_app.py").write_text(APP, encoding="utf-8")
    monkeypatch.delitem(sys.modules, "shop_app", raising=False)
    sent = shop.send("shop", {"cents": "ten"}, type="invoice")
    assert cli("work", "shop.db", "shop_app:agent", "--once").code == 0
    return sent


def test_a_body_that_did_not_fit_is_corrected(cli: Cli, shop: Postbox, misfit: str) -> None:
    """It is checked against the handler's model; the message keeps what it was, and when."""
    words = ("dead", "edit", misfit, "--handlers", "shop_app:agent", "--body")
    refused, ran = cli(*words, '{"cents": "20x"}'), cli(*words, '{"cents": 20}')
    dead = shop.dead_letters.get(misfit)
    assert dead is not None
    [edit] = json.loads(str(dead.headers["bodyedits"]))

    assert (2, 0, "") == (refused.code, ran.code, ran.err)
    assert "cents: Input should be a valid integer" in refused.err
    assert ({"cents": 20}, {"cents": "ten"}) == (dead.body, edit["data"])
    assert dead.dead_at <= edit["at"]
    assert 0 == cli("dead", "replay", misfit).code
    assert 0 == cli("work", "shop.db", "shop_app:agent", "--once").code
    assert [20] == sys.modules["shop_app"].seen


def test_an_unchecked_edit_says_so(cli: Cli, shop: Postbox, misfit: str) -> None:
    """Each edit keeps the body before it."""
    first, second = (cli("dead", "edit", misfit, "--body", each) for each in ("[1]", "two"))
    dead = shop.dead_letters.get(misfit)
    assert dead is not None
    edits = json.loads(str(dead.headers["bodyedits"]))

    assert (0, 0, "two") == (first.code, second.code, dead.body)
    assert "the body is not checked: no model of invoice is known; give --handlers\n" == second.err
    assert [{"cents": "ten"}, [1]] == [each["data"] for each in edits]


def test_a_sent_dead_letter_is_not_edited(cli: Cli, shop: Postbox, billing: Postbox) -> None:
    """It may have arrived with the body that it had."""
    assert billing.agent
    sent = shop.send("billing", {"n": 1}, ttl=0.0)
    shop.run_until_idle()
    ran = cli("dead", "edit", sent, "--body", "2")

    assert (2, True) == (ran.code, "was sent, not received: send a corrected" in ran.err)


def test_what_is_gone_is_not_edited(cli: Cli, misfit: str) -> None:
    """The exit code tells it from a call without a body and without a terminal."""
    assert 3 == cli("dead", "edit", "0000", "--body", "1").code
    assert 2 == cli("dead", "edit", misfit).code


def test_an_unknown_step_is_nothing_there(cli: Cli, misfit: str) -> None:
    """The code tells it from a wrong option."""
    ran = cli("dead", "replay", misfit, "--from-step", "zz")

    assert (3, True) == (ran.code, "has no step zz: there are none" in ran.err)


EDITOR = """
import json, pathlib, sys
path = pathlib.Path(sys.argv[-1])
pathlib.Path("opened").write_text(f"{path.parent.stat().st_mode & 0o777:o} {path.read_text()}")
if sys.argv[1] == "correct":
    path.write_text(json.dumps({"cents": 10}))
sys.exit(sys.argv[1] == "fail")
"""


@pytest.mark.parametrize(
    "found",
    [
        ("correct", 0, "", {"cents": 10}),
        ("keep", 3, "nothing was changed", {"cents": "ten"}),
        ("fail", 1, "the editor", {"cents": "ten"}),
    ],
)
def test_a_body_is_corrected_in_the_editor(
    home: Path, shop: Postbox, misfit: str, monkeypatch: pytest.MonkeyPatch, found: tuple[Any, ...]
) -> None:
    """It opens the body in a folder of its user; unchanged text and its failure change nothing."""
    does, code, said, body = found
    (home / "editor.py").write_text(EDITOR, encoding="utf-8")
    editor = f"{sys.executable} editor.py {does}"
    monkeypatch.setenv("VISUAL" if does == "keep" else "EDITOR", editor)
    if does == "keep":  # the other one is not asked
        monkeypatch.setenv("EDITOR", "false")
    else:
        monkeypatch.delenv("VISUAL", raising=False)
    with terminal(home, "dead", "edit", misfit, "--db", "shop.db") as screen:
        ended = screen.end()

    dead = shop.dead_letters.get(misfit)
    mode, _, shown = (home / "opened").read_text(encoding="utf-8").partition(" ")
    assert dead is not None
    assert (code, body) == (ended, dead.body)
    assert said in screen.seen
    assert ("700", {"cents": "ten"}) == (mode, json.loads(shown))
    assert not (home / "body.json").exists()
