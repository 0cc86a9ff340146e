"""Channels on the command line: what is printed, and what went wrong in the exit code."""

from collections.abc import Callable
from typing import Any

from onceward import Postbox

Cli = Callable[..., Any]


def test_a_conversation(cli: Cli, shop: Postbox, billing: Postbox) -> None:
    """Create, join, list, send, receive, pause, close and delete; each failure has its code."""
    assert [shop.agent, billing.agent] == ["shop", "billing"]
    assert "room\n" == cli("channel", "create", "room", "--description", "talk").out
    assert (5, 0) == (
        cli("channel", "create", "room").code,
        cli("channel", "create", "room", "--ensure").code,
    )
    assert [["room", "true"]] == cli("channel", "join", "room", "--agent", "billing").lines
    assert [["room", "group", "active", "shop"]] == [
        line[:4] for line in cli("channel", "ls").lines
    ]
    assert [["shop", "owner"], ["billing", "member"]] == [
        line[:2] for line in cli("channel", "ls", "room").lines
    ]

    sent = cli("channel", "send", "room", "hello", "--kind", "query", "--json").json
    got = cli("channel", "receive", "room", "--agent", "billing").json

    assert [("billing", got["id"])] == [(copy["recipient"], copy["id"]) for copy in sent["copies"]]
    assert ("hello", "query", sent["id"]) == (got["body"], got["kind"], got["correlation_id"])
    assert (4, 3, 2) == (
        cli("channel", "receive", "room", "--agent", "billing").code,
        cli("channel", "ls", "nowhere").code,
        cli("channel", "send", "room", "x", "--kind", "shout").code,
    )
    assert [["room", "paused"]] == cli("channel", "pause", "room", "--mode", "reject").lines
    assert (7, 7) == (
        cli("channel", "send", "room", "x").code,
        cli("channel", "delete", "room").code,
    )
    assert [["room", "true"]] == cli("channel", "leave", "room", "--agent", "billing").lines
    assert [["room", "active"]] == cli("channel", "resume", "room").lines
    assert [["room", "draining"]] == cli("channel", "drain", "room").lines
    assert [["room", "closed"]] == cli("channel", "close", "room").lines
    assert [["room", "true"]] == cli("channel", "delete", "room").lines


def test_topics(cli: Cli, shop: Postbox, billing: Postbox) -> None:
    """A subscriber of a channel, and one of the home, each have what matches."""
    cli("channel", "create", "news", "pubsub")
    cli("channel", "subscribe", "news", "build.#", "--agent", "billing")
    billing.agents.subscribe("plain.*")
    cli("channel", "send", "news", "green", "--topic", "build.done")
    ids = cli("publish", "plain.x", "{}").lines
    message = billing.receive()
    assert message is not None
    message.ack()

    assert ("green", 1, [], shop.agent) == (
        message.body,
        len(ids),
        cli("publish", "other", "1").lines,
        message.sender,
    )
    assert 2 == cli("publish", "_system.x", "1").code


def test_staged_acknowledgments(cli: Cli, shop: Postbox, billing: Postbox) -> None:
    """A message is leased to the holder of its handle; the sender sees each step."""
    assert [shop.agent, billing.agent] == ["shop", "billing"]
    cli("channel", "create", "work", "--ack-timeout", "1h", "--attempts", 1)
    cli("channel", "add", "work", "billing")
    sent = cli("channel", "send", "work", "build", "--kind", "command").out.strip()

    got = cli("channel", "receive", "work", "--status", "received", "--agent", "billing").json
    seen = [row["status"] for row in cli("channel", "acks", "work", sent, "--json").json]
    again = cli("channel", "receive", "work", "--agent", "billing").code
    codes = [
        cli("channel", "ack", "work", got["handle"], word, "--agent", "billing").code
        for word in ("in_progress", "completed")
    ]
    late = cli("channel", "ack", "work", got["handle"], "failed", "--agent", "billing")
    [row] = cli("channel", "acks", "work", sent, "--json").json
    assert 3 == cli("channel", "acks", "work", "nothing").code

    assert (["received"], 4, [0, 0], 5, "completed", "billing") == (
        seen,
        again,
        codes,
        late.code,
        row["status"],
        row["participant"],
    )
    assert (2, 2) == (
        cli("channel", "ack", "work", "nonsense", "--agent", "billing").code,
        cli("channel", "ack", "work", got["handle"], "perhaps").code,
    )

    cli("channel", "send", "work", "again", "--kind", "command")
    failed = cli(
        "channel",
        "receive",
        "work",
        "--status",
        "failed",
        "--detail",
        "no disk",
        "--agent",
        "billing",
    ).json
    assert [[failed["id"], "attempts_spent", "no disk"]] == [
        [row["id"], row["reason"], row["last_error"]]
        for row in cli("dead", "ls", "--origin", "inbox", "--agent", "billing", "--json").json
    ]
    assert [] == cli("dead", "ls", "--origin", "outbox", "--agent", "billing", "--json").json


def test_members_states_and_how_a_channel_behaves(
    cli: Cli, shop: Postbox, billing: Postbox
) -> None:
    """The owner adds and removes; each state has its verb; what was said at creation is shown."""
    assert [shop.agent, billing.agent] == ["shop", "billing"]
    options = (
        "--sticky",
        "--as-they-came",
        "--retain-count",
        2,
        "--ack-timeout",
        "5m",
        "--topic",
        "a.b",
        "--delivery",
        "exactly_once",
    )
    assert {"name": "hall", "created": True} == cli(
        "channel", "create", "hall", "broadcast", *options, "--json"
    ).json
    shown = cli("channel", "show", "hall", "--json").json
    wanted = {
        "type": "broadcast",
        "sticky": True,
        "priority_ordering": False,
        "retain_count": 2,
        "ack_timeout": 300.0,
        "topics": ["a.b"],
    }
    assert wanted | {"delivery": "exactly_once"} == {
        name: shown[name] for name in [*wanted, "delivery"]
    }

    assert [["hall", "1"]] == cli("channel", "add", "hall", "billing", "--role", "observer").lines
    assert [["hall", "0"]] == cli("channel", "add", "hall", "billing").lines
    assert [["shop", "owner"], ["billing", "observer"]] == [
        line[:2] for line in cli("channel", "ls", "hall").lines
    ]
    assert [["hall", "true"]] == cli("channel", "remove", "hall", "billing").lines
    assert 7 == cli("channel", "add", "hall", "other", "--agent", "billing").code
    assert [["hall", "true"]] == cli(
        "channel", "subscribe", "hall", "a.*", "--agent", "billing"
    ).lines
    assert 2 == cli("channel", "subscribe", "hall", "c.d", "--agent", "billing").code
    assert [["hall", "true"]] == cli(
        "channel", "unsubscribe", "hall", "a.*", "--agent", "billing"
    ).lines
    moves = [
        cli("channel", verb, "hall").lines[0][1]
        for verb in ("pause", "resume", "drain", "close", "delete")
    ]
    assert ["paused", "active", "draining", "closed", "true"] == moves


def test_a_channel_s_history_is_a_page(cli: Cli, shop: Postbox, billing: Postbox) -> None:
    """Newest first, in pages that continue where the last one ended; only the channel's."""
    assert [shop.agent, billing.agent] == ["shop", "billing"]
    cli("channel", "create", "room")
    cli("channel", "add", "room", "billing")
    for n in range(3):
        cli("channel", "send", "room", n, "--kind", "notification")
    cli("send", "billing", "9")
    first = cli(
        "channel", "history", "room", "--limit", 2, "--count", "--since", "1h", "--json"
    ).json
    rest = cli("channel", "history", "room", "--limit", 2, "--after", first["next"], "--json").json

    assert ([2, 1], 3, True) == (
        [row["body"] for row in first["messages"]],
        first["total_count"],
        first["has_more"],
    )
    assert ([0], None, False) == (
        [row["body"] for row in rest["messages"]],
        rest["total_count"],
        rest["has_more"],
    )
    assert (
        []
        == cli("channel", "history", "room", "--until", "2020-01-01T00:00:00Z", "--json").json[
            "messages"
        ]
    )
    assert 2 == cli("channel", "history", "room", "--since", "yesterday").code


def test_the_registry_is_searched_in_pages(cli: Cli, shop: Postbox, billing: Postbox) -> None:
    """What an agent says of itself is set and found from the shell."""
    assert ["shop", "billing"] == [shop.agent, billing.agent]
    register = ("agents", "register", "--agent", "billing")
    assert 0 == cli(*register, "--capability", "pay", "--description", "Pays bills").code
    [row] = cli("agents", "ls", "--search", "bills PAY", "--json").json

    assert ("billing", "Pays bills", ["pay"]) == (
        row["name"],
        row["description"],
        row["capabilities"],
    )
    assert ['["pay"]', "[]", "Pays bills"] == cli("agents", "ls").lines[0][2:]
    assert [] == cli("agents", "ls", "--search", "ship").lines
    assert [] == cli("agents", "ls", "--limit", "1", "--after", "billing").lines
    assert 2 == cli("agents", "ls", "--limit", "0").code


def test_the_home(cli: Cli, shop: Postbox, billing: Postbox) -> None:
    """Agents of the home get messages to all, subscribers get what is published."""
    assert [shop.agent, billing.agent] == ["shop", "billing"]
    assert [["billing"]] == cli("agents", "register", "--agent", "billing").lines
    assert ["billing"] == [row["name"] for row in cli("agents", "ls", "--json").json]
    assert 0 == cli("send", "all", "1").code
    assert [["build.#", "true"]] == cli(
        "agents", "subscribe", "build.#", "--agent", "billing"
    ).lines
    assert 1 == len(cli("publish", "build.done", "2").lines)
    assert [["build.#", "true"]] == cli(
        "agents", "unsubscribe", "build.#", "--agent", "billing"
    ).lines
    assert [] == cli("publish", "build.done", "2").lines
    assert 0 == cli("peers", "subscribe", "billing", "news").code
    assert 1 == len(cli("publish", "news", "3").lines)
    assert 0 == cli("peers", "unsubscribe", "billing", "news").code
    assert ([], 2) == (cli("publish", "news", "3").lines, cli("agents", "subscribe", "a.#.b").code)
    assert [["billing", "true"]] == cli("agents", "remove", "--agent", "billing").lines
