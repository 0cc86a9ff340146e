"""Mailboxes and polling on the command line: ids and JSON lines on stdout, and exit codes."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from onceward import Postbox

Cli = Callable[..., Any]


def letters(ran: Any) -> list[Any]:
    """Return the messages that a command printed, one for each line."""
    return [json.loads(line) for line in ran.out.splitlines()]


def bodies(ran: Any) -> list[Any]:
    """Return what the printed messages say."""
    return [letter["body"] for letter in letters(ran)]


def test_a_task_queue(cli: Cli, shop: Postbox, billing: Postbox) -> None:
    """Ensure, list, send, lease, query and discard: a queue without configuration."""
    assert [shop.agent, billing.agent] == ["shop", "billing"]
    assert (
        "task.queue\n"
        == cli("mailbox", "ensure", "task.queue", "--ttl", "1h", "--description", "work").out
    )
    assert (False, 3600.0) == (
        (found := cli("mailbox", "ensure", "task.queue", "--ttl", "5m", "--json").json)["created"],
        found["ttl"],
    )
    assert 5 == cli("mailbox", "ensure", "task.queue", "--exclusive").code
    assert [["task.queue", "shop"]] == [line[:2] for line in cli("mailbox", "ls").lines]

    for n in range(3):
        message_id = cli("mailbox", "send", "task.queue", n, "--agent", "billing").out.strip()

    assert [0, 1] == bodies(
        cli("mailbox", "read", "task.queue", "lease", "--name", "crew", "--limit", 2)
    )
    assert [2] == bodies(cli("mailbox", "read", "task.queue", "lease", "--name", "crew"))
    assert 3 == cli("mailbox", "read", "task.queue", "lease", "--name", "crew").code
    assert [0, 1, 2] == bodies(cli("mailbox", "read", "task.queue", "scan"))
    assert [2, 1] == bodies(cli("mailbox", "query", "task.queue", "--limit", 2))
    assert (0, 3) == (
        cli("mailbox", "discard", "task.queue", message_id).code,
        cli("mailbox", "discard", "task.queue", message_id).code,
    )


def test_a_cursor_and_its_filter(cli: Cli, shop: Postbox) -> None:
    """A named position moves by what it prints; what a topic excludes may be kept."""
    assert "shop" == shop.agent
    cli("mailbox", "ensure", "news")
    first = cli("mailbox", "send", "news", "a", "--topic", "old").out.strip()
    second = cli("mailbox", "send", "news", "b", "--topic", "new").out.strip()

    assert ["b"] == bodies(
        cli("mailbox", "read", "news", "cursor", "--topic", "new", "--keep-skipped")
    )
    assert [first] == [letter["id"] for letter in letters(cli("mailbox", "read", "news", "cursor"))]
    assert ["b"] == bodies(
        cli("mailbox", "read", "news", "cursor", "--name", "late", "--start", second)
    )
    assert 4 == cli("mailbox", "read", "news", "cursor", "--wait", "10ms").code


def test_a_reader_is_reset(cli: Cli, shop: Postbox) -> None:
    """A cursor and a group begin again where they are told; only these two have a position."""
    assert "shop" == shop.agent
    cli("mailbox", "ensure", "news")
    ids = [cli("mailbox", "send", "news", body).out.strip() for body in ("a", "b")]
    read = ("mailbox", "read", "news")
    assert ["a", "b"] == bodies(cli(*read, "cursor")) == bodies(cli(*read, "lease", "--name", "g"))
    assert (0, 0) == (
        cli("mailbox", "reset", "news", "cursor", "--start", ids[1]).code,
        cli("mailbox", "reset", "news", "lease", "--name", "g", "--since", "1h").code,
    )

    assert ["b"] == bodies(cli(*read, "cursor"))
    assert ["a", "b"] == bodies(cli(*read, "lease", "--name", "g"))
    assert 2 == cli("mailbox", "reset", "news", "replay").code


def test_the_newest_of_each_key(cli: Cli, shop: Postbox) -> None:
    """A mailbox may keep the newest message of each key; show says so."""
    assert "shop" == shop.agent
    cli("mailbox", "ensure", "state", "--newest-per-key")
    for body, key in (("a1", "a"), ("b1", "b"), ("a2", "a")):
        cli("mailbox", "send", "state", body, "--ordering-key", key)

    assert ["b1", "a2"] == bodies(cli("mailbox", "read", "state", "scan"))
    assert cli("mailbox", "show", "state", "--json").json["newest_per_key"]


def test_tags(cli: Cli, shop: Postbox) -> None:
    """Messages are sent with tags and read by them; one of those asked for suffices."""
    assert "shop" == shop.agent
    cli("mailbox", "ensure", "news")
    cli("mailbox", "send", "news", "a", "--tag", "eu", "--tag", "billing")
    cli("mailbox", "send", "news", "b")
    cli("mailbox", "send", "news", "c", "--tag", "us")

    assert ["c", "a"] == bodies(cli("mailbox", "query", "news", "--tag", "billing", "--tag", "us"))
    assert ["a"] == bodies(cli("mailbox", "read", "news", "cursor", "--tag", "eu"))


def test_a_query_changes_nothing(cli: Cli, shop: Postbox, billing: Postbox) -> None:
    """Newest first, by type, topic and sender; show counts; a position may begin at a moment."""
    assert [shop.agent, billing.agent] == ["shop", "billing"]
    cli("mailbox", "ensure", "news")
    cli("mailbox", "send", "news", "a", "--topic", "x.y", "--type", "t")
    cli("mailbox", "send", "news", "b", "--agent", "billing")

    assert ["b", "a"] == bodies(cli("mailbox", "query", "news"))
    assert ["a"] == bodies(
        cli("mailbox", "query", "news", "--topic", "x.#", "--type", "t", "--sender", "shop")
    )
    assert (["b"], []) == (
        bodies(cli("mailbox", "query", "news", "--limit", 1)),
        bodies(cli("mailbox", "query", "news", "--session", "s")),
    )
    assert (2, "shop") == (
        (shown := cli("mailbox", "show", "news", "--json").json)["messages"],
        shown["owner"],
    )
    assert ["a", "b"] == bodies(
        cli("mailbox", "read", "news", "cursor", "--name", "n", "--since", "1h")
    )
    assert (
        3
        == cli(
            "mailbox", "read", "news", "cursor", "--name", "m", "--since", "2099-01-01T00:00:00Z"
        ).code
    )


def test_a_private_mailbox(cli: Cli, shop: Postbox, billing: Postbox) -> None:
    """What ensure prints is the only way to it; a wrong id is exit code 3, and is not repeated."""
    assert [shop.agent, billing.agent] == ["shop", "billing"]
    secret = cli("mailbox", "ensure").out.strip()
    cli("mailbox", "send", secret, "psst", "--agent", "billing")

    assert ("", ["psst"]) == (
        cli("mailbox", "ls").out,
        bodies(cli("mailbox", "read", secret, "scan")),
    )
    wrong = cli("mailbox", "read", secret[:-1] + "x", "scan")
    assert (3, False) == (wrong.code, secret[:8] in wrong.err)


def test_polling(cli: Cli, shop: Postbox, billing: Postbox) -> None:
    """Poll takes what came, once; tail and status only look; expire says how many."""
    assert "shop" == shop.agent
    message_id = billing.send("shop", "hi", topic="ask", ttl=3600)
    billing.session("s2").send("shop", {"n": 1})
    billing.run_until_idle()

    [printed] = letters(cli("poll", "--topic", "ask", "--topic", "answer"))

    assert (message_id, "billing", "shop", "ask", "hi", None) == tuple(
        printed[name] for name in ("id", "sender", "recipient", "topic", "body", "in_reply_to")
    )
    assert printed["created_at"][:10] <= printed["at"][:10] <= printed["expires_at"][:10]
    assert (0, "") == ((again := cli("poll")).code, again.out)
    assert [{"n": 1}] == bodies(cli("poll", "--session", "s2"))
    assert ["hi"] == bodies(cli("tail", "-n", 5))
    assert (1, 1) == (
        (status := cli("sessions", "stats").json)["default"]["messages"],
        status["s2"]["messages"],
    )
    assert "0\n" == cli("maintain").out


@pytest.mark.usefixtures("shop")
def test_a_message_has_one_set_of_field_names(cli: Cli, billing: Postbox) -> None:
    """A message that tail, poll or a mailbox prints has the fields of history, and their values."""
    billing.send("shop", {"n": 1}, topic="ask", ttl=3600, priority="urgent", correlation_id="c")
    billing.run_until_idle()

    [past] = cli("history", "--json").json["messages"]
    [tailed], [polled] = letters(cli("tail")), letters(cli("poll"))

    names = "id sender recipient session type topic priority at body correlation_id"
    both = {name: past[name] for name in names.split()}
    assert tailed == polled
    assert both == {name: tailed.get(name) for name in both}
    assert {"created_at", "expires_at", "in_reply_to"} == set(tailed) - set(past)


def test_the_session_of_the_environment(
    cli: Cli, shop: Postbox, billing: Postbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ONCEWARD_SESSION names the session of send, poll and tail, unless the flag does."""
    assert "billing" == billing.agent
    monkeypatch.setenv("ONCEWARD_SESSION", "s9")
    message_id = cli("send", "billing", "x").out.strip()
    shop.run_until_idle()

    assert "s9" == shop.history().messages[0].session
    assert [message_id] == [letter["id"] for letter in letters(cli("poll", "--agent", "billing"))]
    assert "" == cli("tail", "--agent", "billing", "--session", "other").out


def test_frozen(cli: Cli, shop: Postbox, billing: Postbox) -> None:
    """Sending is refused with exit code 7; a poll finds nothing and moves nothing."""
    billing.send("shop", "x")
    billing.run_until_idle()
    shop.file.pause()

    assert (7, 0, "") == (cli("send", "billing", "y").code, (poll := cli("poll")).code, poll.out)
    shop.file.resume()
    assert ["x"] == bodies(cli("poll"))
