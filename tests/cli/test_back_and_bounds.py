"""``history``, ``thread``, ``search`` and ``limits``: looking back, and what bounds a file."""

from collections.abc import Callable
from typing import Any

import pytest

from onceward import Postbox

Cli = Callable[..., Any]


@pytest.fixture(autouse=True)
def others(shop: Postbox) -> None:
    """There are agents to send to."""
    for name in ("a", "b"):
        Postbox(shop.file.path.parent / f"{name}.db", agent=name, start=False).close()


def test_past_messages_are_listed_by_what_is_known_of_them(cli: Cli, shop: Postbox) -> None:
    """Newest first, by every filter, with the body; a pattern that is none is a usage error."""
    asked = shop.send("a", {"n": 1}, topic="build.api", priority="urgent", type="job")
    told = shop.send("b", "text", correlation_id=asked)

    assert [told, asked] == [row["id"] for row in cli("history", "--json").json["messages"]]
    assert [asked] == [
        row["id"]
        for row in cli(
            "history", "--topic", "build.#", "--priority", "urgent", "--type", "job", "--json"
        ).json["messages"]
    ]
    assert [{"n": 1}] == [
        row["body"] for row in cli("history", "--content", '"n":[0-9]', "--json").json["messages"]
    ]
    assert [told] == [
        row["id"]
        for row in cli(
            "history", "--recipient", "b", "--since", "1h", "--limit", "5", "--json"
        ).json["messages"]
    ]
    assert [told] == [line[0] for line in cli("history", "--limit", "1").lines]
    assert 2 == cli("history", "--content", "(").code


def test_a_conversation_is_listed(cli: Cli, shop: Postbox) -> None:
    """Oldest first, by the whole id of any of its messages."""
    asked = shop.send("a", 1)
    told = shop.send("a", 2, correlation_id=asked)

    assert [asked, told] == [row["id"] for row in cli("thread", told, "--json").json]
    assert 3 == cli("thread", "unknown").code


def test_words_are_searched_where_the_agent_opted_in(cli: Cli, shop: Postbox) -> None:
    """Without an index it is a usage error that says how to get one."""
    missing = cli("search", "invoice")
    assert (2, True) == (missing.code, "ONCEWARD_SEARCH=1" in missing.err)
    with Postbox(shop.file.path, start=False, search=True) as box:
        message = box.send("a", "please pay invoice 12")

    assert [message] == [row["id"] for row in cli("search", "PAY", "inv*", "--json").json]


def test_limits_are_set_seen_and_lifted(cli: Cli, shop: Postbox) -> None:
    """A limit holds for the next sender; drops are listed; a full queue ends with 7."""
    assert (
        0
        == cli("limits", "set", "session", "run", "--messages", "2", "--overflow", "drop_old").code
    )
    ids = [cli("send", "a", "1", "--session", "run").out.strip() for _ in range(3)]

    [line] = cli("limits", "ls").lines
    assert ["session", "run", "2", "", "", "", "drop_old"] == line[:7]
    assert not any(line[7:])  # what is set for handlers
    assert [("session run", 2)] == [
        (row["scope"], row["messages"]) for row in cli("limits", "fullness", "--json").json
    ]
    assert [ids[0]] == [row["id"] for row in cli("limits", "drops", "--json").json]
    cli("limits", "set", "session", "run", "--messages", "2")
    assert 7 == cli("send", "a", "1", "--session", "run").code
    assert [0, 3] == [cli("limits", "remove", "session", "run").code for _ in range(2)]
    assert 2 == cli("limits", "set", "session", "run").code
    assert shop.file.stats()["pending"] == 2


@pytest.mark.usefixtures("shop")
def test_a_rate_and_a_size_are_set_and_lifted(cli: Cli) -> None:
    """Both refuse with 7, until they are removed."""
    codes = []
    for scope, option, number in (("send", "--rate", "0.001"), ("file", "--size", "1")):
        cli("limits", "set", scope, option, number)
        codes += [cli("send", "a", "1").code for _ in range(2)]
        cli("limits", "remove", scope)

    assert [0, 7, 7, 7] == codes
    assert 0 == cli("send", "a", "1").code
