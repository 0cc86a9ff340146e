"""Listings that are cut at ``--limit``, and what they say of the rest."""

from collections.abc import Callable
from typing import Any

import pytest

from onceward import Postbox
from onceward.ops.cli import cutting

Cli = Callable[..., Any]


@pytest.fixture
def five(shop: Postbox, billing: Postbox) -> list[str]:
    """Return ids of five messages that shop sent to billing, whose mailbox has five, too."""
    desk = shop.mailboxes.ensure("desk", public=True)
    for n in range(5):
        desk.send(n)
        Postbox(shop.file.path.with_name(f"a{n}.db"), agent=f"a{n}", start=False).close()
    ids = shop.send_many([("billing", {"word": "gold", "n": n}) for n in range(5)])
    shop.run_until_idle()
    return ids


def test_the_newest_dead_letters_are_listed_first(cli: Cli, buried: list[str]) -> None:
    """The ones that have just failed are seen although older ones fill the list."""
    ran = cli("dead", "ls", "--limit", 1)

    assert ([buried[1]], "1 more: --limit\n") == ([line[0] for line in ran.lines], ran.err)
    assert buried[::-1] == [line[0] for line in cli("dead", "ls").lines]
    assert buried == cli("dead", "replay", "--all", "--dry-run").out.split()


@pytest.mark.parametrize(
    ("words", "more"),
    [
        ("ls outbox --limit 2", "8 more: --limit\n"),
        ("ls outbox --limit 2 --json", "8 more: --limit\n"),
        ("ls queues --peer billing --limit 0", "1 more: --limit\n"),
        ("ls inbox --agent billing --limit 4", "1 more: --limit\n"),
        ("ls lanes --agent billing --limit 0", "1 more: --limit\n"),
        ("agents ls --limit 4", "2 more: --limit\n"),
        ("mailbox query desk --limit 3", "more: --limit\n"),
    ],
)
@pytest.mark.usefixtures("five")
def test_a_cut_listing_says_how_much_is_left_out(cli: Cli, words: str, more: str) -> None:
    """The note is on stderr, and never among the rows."""
    ran = cli(*words.split())

    assert (0, more) == (ran.code, ran.err)
    assert "more" not in ran.out


@pytest.mark.usefixtures("five")
def test_a_cut_page_says_where_the_next_one_begins(cli: Cli) -> None:
    """History pages continue after a given place."""
    first = cli("history", "--recipient", "billing", "--limit", "3")
    _, _, after = first.err.strip().rpartition(" ")
    rest = cli("history", "--recipient", "billing", "--after", after)

    assert first.err.startswith("more: --limit, or --after ")
    assert (3, 2, "") == (len(first.lines), len(rest.lines), rest.err)


@pytest.mark.usefixtures("five")
@pytest.mark.parametrize("limit", [10, 11, -1])
def test_a_whole_listing_says_nothing(cli: Cli, limit: int) -> None:
    """A negative limit means all."""
    assert (10, "") == (len((ran := cli("ls", "outbox", "--limit", limit)).lines), ran.err)


@pytest.mark.usefixtures("five")
def test_only_so_many_rows_are_counted(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """A list of a million messages is not read to count them."""
    monkeypatch.setattr(cutting, "COUNTED", 3)

    assert "3+ more: --limit\n" == cli("ls", "outbox", "--limit", "2").err
