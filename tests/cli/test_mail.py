"""``init``, ``send`` and ``recv``: a message goes in by one command and comes out by another."""

import json
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pydantic import Field

from onceward import Msg, Postbox

Cli = Callable[..., Any]


def test_init_creates_a_private_file_once(cli: Cli, home: Path) -> None:
    """The second init finds the file and changes nothing."""
    path = home / "shop.db"

    first, second = cli("init", "shop"), cli("init", "shop", "--json")

    assert (0, f"{path}\n") == (first.code, first.out)
    assert {"agent": "shop", "path": str(path), "created": False} == second.json
    assert 0o600 == stat.S_IMODE(path.stat().st_mode)


def test_init_takes_a_home(cli: Cli, tmp_path: Path) -> None:
    """--home says where the home lies, and it is created."""
    other = tmp_path / "other" / "home"

    assert {"agent": "a", "path": str(other / "a.db"), "created": True} == cli(
        "init", "a", "--home", other, "--json"
    ).json


@pytest.mark.usefixtures("billing")
def test_send_prints_the_id_and_nothing_else(cli: Cli, shop: Postbox) -> None:
    """The id is what a script goes on with; the message waits for a relay."""
    ran = cli("send", "billing", '{"id": 7}', "--type", "invoice.created")

    assert (0, "") == (ran.code, ran.err)
    assert "pending" == shop.state(ran.out.strip())
    assert [ran.out.strip()] == [m.id for m in shop.history(type="invoice.created").messages]


@pytest.mark.usefixtures("billing", "shop")
def test_send_as_json(cli: Cli) -> None:
    """The document names id, recipient, session and state; --deliver hands it over at once."""
    ran = cli("send", "billing", "1", "--session", "run-1", "--deliver", "--json")

    assert ["id", "recipient", "session", "state"] == list(ran.json)
    assert ("billing", "run-1", "sent") == (
        ran.json["recipient"],
        ran.json["session"],
        ran.json["state"],
    )


@pytest.mark.parametrize(
    ("text", "body", "kind"),
    [
        ('{"a": [1, null]}', {"a": [1, None]}, "json"),
        ("42", 42, "json"),
        ("hello there", "hello there", "text"),
        ('"42"', "42", "text"),
        ("-5", -5, "json"),
        ("--", "--", "text"),
    ],
)
@pytest.mark.usefixtures("billing")
def test_a_body_is_json_or_text(
    cli: Cli, shop: Postbox, text: str, body: object, kind: str
) -> None:
    """What is JSON is sent as its value, anything else as text."""
    tokens = ["--", text] if text == "--" else [text]
    sent = cli("send", "billing", *tokens).out.strip()

    [message] = shop.history(type=kind).messages
    assert (sent, body) == (message.id, message.body)


@pytest.mark.usefixtures("billing")
def test_a_body_that_names_a_key_twice_is_refused(cli: Cli, shop: Postbox) -> None:
    """The command does not choose between two values of one key."""
    ran = cli("send", "billing", '{"a": 1, "a": 2}')

    assert (2, 0) == (ran.code, shop.file.stats()["enqueued"])
    assert "key 'a' comes twice" in ran.err


@pytest.mark.parametrize("dash", [["-"], []])
@pytest.mark.parametrize(
    ("text", "body"),
    [
        ('{"large": true}\n', {"large": True}),
        ("null\n", None),
        ("two\nlines\n", "two\nlines"),
        ("windows\r\n", "windows"),
        ("\n", ""),
    ],
)
@pytest.mark.usefixtures("billing")
def test_a_body_comes_from_stdin(
    cli: Cli, shop: Postbox, dash: list[str], text: str, body: object
) -> None:
    """Without a body, or for a dash, stdin is read; its last line end is not part of a text."""
    assert 0 == cli("send", "billing", *dash, stdin=text).code

    assert [body] == [message.body for message in shop.history().messages]


@pytest.mark.parametrize("typed", [{"stdin": ""}, {"person": "not read\n"}])
@pytest.mark.parametrize(
    "command", ["send billing", "publish a.b", "channel send room", "mailbox send box"]
)
@pytest.mark.usefixtures("billing")
def test_no_body_at_all_is_refused(
    cli: Cli, shop: Postbox, command: str, typed: dict[str, str]
) -> None:
    """An empty stdin or a terminal is not a body: nothing is sent, the error says what to give."""
    shop.mailboxes.ensure("box", public=True)
    shop.channels.create("room")
    ran = cli(*command.split(), **typed)

    assert (2, "", []) == (ran.code, ran.out, shop.history().messages)
    assert "null for a message without content" in ran.err


@pytest.mark.parametrize(
    "command", ["publish a.b", "channel send room", "mailbox send box --type t"]
)
@pytest.mark.usefixtures("shop")
def test_every_command_that_sends_reads_stdin(cli: Cli, billing: Postbox, command: str) -> None:
    """Topics, channels and mailboxes take the body of a pipe as send does."""
    billing.agents.subscribe("a.b")
    billing.mailboxes.ensure("box", public=True)
    billing.channels.create("room").add("shop")

    assert 0 == cli(*command.split(), stdin="piped\n").code

    assert ["piped"] == [message.body for message in billing.history().messages]


@pytest.mark.usefixtures("billing")
def test_bytes_that_are_no_text_are_refused(cli: Cli, shop: Postbox) -> None:
    """A body that is not UTF-8 is an error of usage; nothing is sent."""
    ran = cli("send", "billing", stdin=b"\xff")

    assert (2, "", []) == (ran.code, ran.out, shop.history().messages)
    assert "stdin is not utf-8 text" in ran.err


@pytest.mark.usefixtures("billing")
def test_send_hands_every_option_on(cli: Cli, shop: Postbox) -> None:
    """What the command line says is what the frame says."""
    options = {
        "type": "t",
        "topic": "a.b",
        "key": "k",
        "delay": "5m",
        "ttl": "2h30m",
        "priority": "high",
        "ordering-key": "lane",
        "correlation-id": "c",
        "reply-to": "shop",
        "session": "s",
    }
    cli(
        "send",
        "billing",
        "1",
        *(part for name, value in options.items() for part in (f"--{name}", value)),
    )

    [row] = cli("ls", "outbox", "--json").json
    frame = json.loads(shop.history().messages[0].text)
    assert ("t", "a.b", "urgent", "s", "k") == (
        row["type"],
        row["topic"],
        row["priority"],
        row["session"],
        row["key"],
    )
    assert ("lane", "c", "shop") == (
        frame["partitionkey"],
        frame["correlationid"],
        frame["replyto"],
    )
    assert row["created_at"] < row["due_at"] < row["expires_at"]


@pytest.mark.usefixtures("billing", "shop")
def test_the_same_key_is_the_same_message(cli: Cli) -> None:
    """A script that is run again sends nothing twice."""
    assert (
        cli("send", "billing", "1", "--key", "k").out
        == cli("send", "billing", "1", "--key", "k").out
    )


def test_recv_prints_a_line_and_acknowledges(cli: Cli, shop: Postbox, billing: Postbox) -> None:
    """What was printed is processed; the sender hears of it."""
    sent = billing.send("shop", {"n": 1}, type="hello")
    billing.run_until_idle()

    ran = cli("receive", "--type", "hello")

    assert (0, [[sent, "billing", "default", "hello", '{"n":1}']]) == (ran.code, ran.lines)
    shop.run_until_idle()
    assert "acked" == billing.state(sent)


def test_recv_answers_a_request(cli: Cli, shop: Postbox, billing: Postbox) -> None:
    """The reply and the end of the request are one commit; a wrong body takes nothing."""
    ticket = billing.request("shop", {"may": "I pay?"})
    billing.run_until_idle()

    assert 2 == cli("receive", "--reply", '{"yes": ').code
    assert 2 == cli("receive", "--reply", "yes", "--keep").code
    assert 1 == shop.file.stats()["inbox_pending"]
    assert 0 == cli("receive", "--reply", '{"yes": true}').code

    assert 0 == shop.file.stats()["inbox_pending"]
    shop.run_until_idle()
    assert {"yes": True} == billing.result(ticket, reply=dict, timeout=0)


def test_a_request_is_answered_by_its_id(cli: Cli, shop: Postbox, billing: Postbox) -> None:
    """Also behind one that waits: once, with its end; an id that nothing waits under is said so."""
    first, second = (billing.request("shop", {"n": n}) for n in (1, 2))
    billing.run_until_idle()

    ran = cli("reply", second.id, '{"yes": true}')
    again = cli("reply", second.id, "no")
    shop.run_until_idle()

    assert 0 == ran.code
    assert (3, True) == (again.code, "is processed" in again.err)
    assert 3 == cli("reply", "no-such-id", "no").code
    assert {"yes": True} == billing.result(second, reply=dict, timeout=0)
    assert [(first.id,)] == shop.query("SELECT id FROM onceward_inbox WHERE state = 'pending'")


class Approval(Msg, type="approval"):
    """A person's word."""

    ok: bool = Field(description="whether it may be sent")
    note: str | None = None


def test_a_reply_without_a_body_is_told_what_is_expected(
    cli: Cli, shop: Postbox, billing: Postbox
) -> None:
    """The fields of the answer, where the request carries them; a body as JSON fits them."""
    asked, plain = (billing.request("shop", 1, reply=reply) for reply in (Approval, None))
    billing.run_until_idle()

    ran, bare = (cli("reply", each.id, person="") for each in (asked, plain))
    cli("reply", asked.id, '{"ok": true}')
    shop.run_until_idle()

    told = "ok (one of true, false): whether it may be sent; note (text, may be left out)"
    assert (2, True) == (ran.code, told in " ".join(ran.err.split()))
    assert (2, False) == (bare.code, "expects" in bare.err)
    assert Approval(ok=True) == billing.result(asked, reply=Approval, timeout=0)


def test_a_request_is_found_in_the_home(
    cli: Cli, shop: Postbox, billing: Postbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where nothing names a file, the files of the home are searched."""
    asked = billing.request("shop", 1)
    billing.run_until_idle()
    monkeypatch.setenv("ONCEWARD_HOME", str(shop.file.path.parent))
    for name in ("ONCEWARD_DB", "ONCEWARD_AGENT"):
        monkeypatch.delenv(name, raising=False)

    assert 0 == cli("reply", asked.id, "yes").code
    assert 0 == shop.file.stats()["inbox_pending"]


def test_a_message_is_cancelled_by_its_id(cli: Cli, shop: Postbox, billing: Postbox) -> None:
    """One that is here at once, one that left by asking; the exit code says what was too late."""
    here = shop.send("billing", 1, delay=60)
    left = shop.send("billing", 2)
    shop.run_until_idle()
    ran = cli("cancel", here, left)
    shop.run_until_idle()
    billing.run_until_idle()
    again = cli("cancel", left)
    done = billing.send("shop", 3)
    billing.run_until_idle()
    assert 0 == cli("receive").code

    assert [[here, "cancelled", "cancelled"], [left, "asked", "sent"]] == ran.lines
    assert "1 asked: a relay or open postbox of shop delivers that; see --wait" in ran.err
    assert (0, [[left, "cancelled", "cancelled"]]) == (again.code, again.lines)
    assert 5 == cli("cancel", done).code
    assert 2 == cli("cancel").code


def test_a_message_of_any_agent_is_cancelled(
    cli: Cli, shop: Postbox, billing: Postbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where nothing names a file, the home is searched, and the recipient's file decides."""
    waits = billing.send("shop", 1, delay=60)
    left = shop.send("billing", 2)
    shop.run_until_idle()
    monkeypatch.delenv("ONCEWARD_AGENT")

    ran = cli("cancel", left, waits)

    assert [[left, "cancelled", "cancelled"], [waits, "cancelled", "cancelled"]] == ran.lines
    assert 0 == billing.file.stats()["inbox_pending"]
    assert 3 == cli("cancel", "no-such-id").code
    assert 2 == cli("cancel", "--key", "k", "--yes").code  # bulk work names its file


def test_ids_in_no_home_need_a_file(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder without agents is not searched: the command says how to name a file."""
    monkeypatch.delenv("ONCEWARD_AGENT")

    ran = cli("cancel", "0199f0c2")

    assert (2, True) == (ran.code, "which agent? Give --db FILE" in ran.err)


def test_a_cancellation_that_waits_needs_no_relay(cli: Cli, shop: Postbox, home: Path) -> None:
    """The command delivers the request itself; a recipient that is away has not answered."""
    with Postbox(home / "ledger.db", agent="ledger"):
        message_id = shop.send("ledger", 1)
        shop.run_until_idle()

        ran = cli("cancel", message_id, "--wait", "30s")
    other = shop.send("ledger", 2)
    shop.run_until_idle()
    away = cli("cancel", other, "--wait", "10ms")

    assert [[message_id, "cancelled", "cancelled"]] == ran.lines
    assert [[other, "asked", "sent"]] == away.lines
    assert "1 not answered: a process of the recipient answers" in away.err


def test_messages_are_cancelled_in_bulk(cli: Cli, shop: Postbox) -> None:
    """By what they have in common, once that is confirmed."""
    ids = [shop.session("s").send("shop", n, delay=60) for n in range(3)]

    assert 2 == cli("cancel", "--session", "s").code
    ran = cli("cancel", "--session", "s", "--yes")
    assert (0, ids) == (ran.code, [line[0] for line in ran.lines])
    assert 3 == cli("cancel", "--session", "s", "--yes").code


def test_recv_says_that_a_request_got_no_reply(cli: Cli, shop: Postbox, billing: Postbox) -> None:
    """It ends, as a message does, and the person who reads it is told; of a message nothing."""
    asked = billing.request("shop", 1)
    billing.send("shop", 2)
    billing.run_until_idle()

    said = f"{asked.id} asked for a reply and ended without one: see --reply and --keep"
    assert said in cli("receive").err
    assert "" == cli("receive").err
    assert 0 == shop.file.stats()["inbox_pending"]


def test_recv_keep_consumes_nothing(cli: Cli, shop: Postbox, billing: Postbox) -> None:
    """No lease, no attempt, however often: the next reader gets the message as before."""
    sent = billing.send("shop", {"n": 1})
    billing.run_until_idle()

    looked = [cli("receive", "--keep", "--json").json for _ in range(12)]
    taken = cli("receive", "--json").json

    keys = [
        "id",
        "sender",
        "recipient",
        "session",
        "type",
        "topic",
        "priority",
        "attempt",
        "received_at",
        "body",
        "frame",
    ]
    assert keys == list(taken)
    assert [taken] * 12 == looked
    assert (sent, 1, {"n": 1}) == (taken["id"], taken["attempt"], taken["body"])
    assert 0 == shop.file.stats()["inbox_pending"]


def test_recv_takes_only_its_session(cli: Cli, billing: Postbox, shop: Postbox) -> None:
    """Another conversation's message stays where it is, for takers and for lookers."""
    billing.send("shop", 1)
    sent = billing.session("run-1").send("shop", 2)
    billing.run_until_idle()

    assert [sent] * 2 == [
        cli("receive", "--session", "run-1", how, "--json").json["id"]
        for how in ("--keep", "--ack")
    ]
    assert 3 == cli("receive", "--session", "run-1").code
    assert 1 == shop.file.stats()["inbox_pending"]


def test_recv_looks_at_what_it_would_take(cli: Cli, billing: Postbox, shop: Postbox) -> None:
    """--keep names the most urgent message, as the next recv does."""
    assert shop.agent
    billing.send("shop", "later", priority="low")
    urgent = billing.send("shop", "now", priority="critical")
    billing.run_until_idle()

    assert [urgent, urgent] == [
        cli("receive", how, "--json").json["id"] for how in ("--keep", "--ack")
    ]


def test_recv_does_not_acknowledge_an_unprinted_message(
    cli: Cli, shop: Postbox, billing: Postbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pipe that closes while the message is printed leaves it in the inbox."""
    billing.send("shop", 1)
    billing.run_until_idle()

    def broken(*_: object) -> None:
        raise BrokenPipeError

    with monkeypatch.context() as patch:
        patch.setattr("onceward.ops.cli.recv.show", broken)
        ran = cli("receive")

    assert (1, 1) == (ran.code, shop.file.stats()["inbox_pending"])
