"""``why``: one sentence for a message, and the list of an agent's troubles."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from onceward import Postbox

Cli = Callable[..., Any]


@pytest.fixture
def sent(shop: Postbox, billing: Postbox) -> str:
    """Return the id of a message that shop sent and billing holds."""
    message_id = shop.send("billing", {"n": 1}, type="hello")
    shop.run_until_idle()
    assert billing.file.stats()["inbox_pending"] == 1
    return message_id


def test_the_sender_learns_what_the_recipient_waits_for(cli: Cli, sent: str) -> None:
    """The file named is the sender's; the reason is in the recipient's, beside it."""
    ran = cli("why", sent[:18], "--json")

    assert 0 == ran.code
    assert {
        "id": sent,
        "reason": "ready",
        "text": "Next in its lane: it waits for a free worker of billing",
        "level": "wait",
        "cure": "call receive, or start a worker: onceward work MODULE:AGENT",
    } == ran.json


def test_a_message_is_found_in_the_home(
    cli: Cli, sent: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a named agent every file of ONCEWARD_HOME is looked into."""
    monkeypatch.delenv("ONCEWARD_AGENT")

    ran = cli("why", sent)

    assert 0 == ran.code
    assert ["text", "Next in its lane: it waits for a free worker of billing"] in ran.lines


@pytest.mark.usefixtures("sent")
def test_the_recipients_file_may_be_elsewhere(cli: Cli, home: Path, sent: str) -> None:
    """Then the sender's file alone answers, as far as it knows."""
    (home / "billing.db").rename(home / "moved")

    ran = cli("why", sent, "--json")

    assert "stored there" == ran.json["reason"]
    assert ran.json["text"].startswith("billing stored it ")


@pytest.mark.usefixtures("sent")
def test_several_ids_that_begin_alike_are_refused(cli: Cli, shop: Postbox) -> None:
    """An empty beginning fits all; the error names two of them."""
    shop.send("billing", {"n": 2}, type="hello")

    ran = cli("why", "0")

    assert 2 == ran.code
    assert "several ids start with '0', among them 0" in ran.err


def test_an_unknown_id_is_not_there(
    cli: Cli, home: Path, shop: Postbox, billing: Postbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error says where it was looked for; a file that cannot be read is named."""
    monkeypatch.delenv("ONCEWARD_AGENT")
    (home / "broken.db").write_text("not a database, and long enough to be read as one" * 20)

    ran = cli("why", "ffff")

    assert 3 == ran.code
    assert "no id starts with 'ffff' in the 3 files of the home" in ran.err
    assert "broken.db is skipped" in ran.err
    assert {shop.agent, billing.agent} == {"shop", "billing"}


def test_without_an_id_an_agent_says_what_holds_it_back(cli: Cli, shop: Postbox) -> None:
    """A pause comes with the command that ends it."""
    shop.file.pause()

    ran = cli("why")

    assert 0 == ran.code
    [[level, reason, text, cure]] = ran.lines
    assert ("act", "paused", "onceward resume --agent shop") == (level, reason, cure)
    assert re.match(r"shop was paused \d+ s ago", text)
