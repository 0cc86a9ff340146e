"""Channels on the command line: what is printed, and what went wrong in the exit code."""

from collections.abc import Callable
from typing import Any

from onceward import Postbox

Cli = Callable[..., Any]


def test_a_conversation(cli: Cli, shop: Postbox, billing: Postbox) -> None:
    """Create, join, list, send, receive, pause, close and delete; each failure has its code."""
    assert [shop.agent, billing.agent] == ["shop", "billing"]
    assert "room\n" == cli("channel", "create", "room", "--description", "talk").out
    assert (5, 0) == (cli("channel", "create", "room").code, cli("channel", "create", "room", "--ensure").code)
    assert [["room", "true"]] == cli("channel", "join", "room", "--agent", "billing").lines
    assert [["room", "group", "active", "shop"]] == [line[:4] for line in cli("channel", "ls").lines]
    assert [["shop", "owner"], ["billing", "member"]] == [line[:2] for line in cli("channel", "ls", "room").lines]

    sent = cli("channel", "send", "room", "hello", "--kind", "query", "--json").json
    got = cli("channel", "recv", "room", "--agent", "billing").json

    assert [("billing", got["id"])] == [(copy["recipient"], copy["id"]) for copy in sent["copies"]]
    assert ("hello", "query", sent["id"]) == (got["body"], got["kind"], got["correlation_id"])
    assert (4, 3, 2) == (
        cli("channel", "recv", "room", "--agent", "billing").code,
        cli("channel", "ls", "nowhere").code,
        cli("channel", "send", "room", "x", "--kind", "shout").code,
    )
    assert [["room", "paused"]] == cli("channel", "move", "room", "reject").lines
    assert (7, 7) == (cli("channel", "send", "room", "x").code, cli("channel", "move", "room", "delete").code)
    assert [["room", "true"]] == cli("channel", "leave", "room", "--agent", "billing").lines
    assert [["room", "closed"]] == cli("channel", "move", "room", "close").lines
    assert [["room", "deleted"]] == cli("channel", "move", "room", "delete").lines


def test_topics(cli: Cli, shop: Postbox, billing: Postbox) -> None:
    """A subscriber of a channel, and one of the home, each have what matches."""
    cli("channel", "create", "news", "pubsub")
    cli("channel", "join", "news", "build.#", "--agent", "billing")
    billing.home.subscribe("plain.*")
    cli("channel", "send", "news", "green", "--topic", "build.done")
    ids = cli("publish", "plain.x", "{}").lines
    message = billing.receive()
    assert message is not None
    message.ack()

    assert ("green", 1, [], shop.agent) == (message.body, len(ids), cli("publish", "other", "1").lines, message.sender)
    assert 2 == cli("publish", "_system.x", "1").code
