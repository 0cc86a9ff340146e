"""On a terminal: tables with words and colours, and nothing that mail could do to the screen."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.children import ONCEWARD

from onceward import Postbox
from onceward.ops.cli import main
from onceward.ops.cli.output import cell, safe

Cli = Callable[..., Any]


@pytest.fixture
def screen(
    home: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., str]:
    """Return a call that runs a command on a wide terminal and returns what stands there."""
    assert home.is_dir()
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)

    def show(*tokens: str) -> str:
        monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
        capsys.readouterr()
        assert 0 == main(tokens)
        return capsys.readouterr().out

    return show


@pytest.mark.usefixtures("billing")
def test_a_table_has_a_header_and_relative_times(screen: Callable[..., str], shop: Postbox) -> None:
    """People read how long ago, not when."""
    shop.send("billing", 1)

    table = screen("ls")

    assert ["box", "peer", "session", "state", "messages", "oldest"] == plain(table).splitlines()[
        0
    ].split()
    assert re.search(r" \d+ s ago", table)


@pytest.mark.usefixtures("billing")
def test_states_are_coloured_words(
    screen: Callable[..., str], shop: Postbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The word stands there too, and NO_COLOR is heard."""
    shop.send("billing", 1)

    assert "\x1b[33mpending" in screen("ls")
    monkeypatch.setenv("NO_COLOR", "1")
    assert "pending" in screen("ls")
    assert "\x1b[3" not in screen("ls")


def test_colours_say_what_a_person_has_to_do(
    screen: Callable[..., str], shop: Postbox, billing: Postbox
) -> None:
    """Red is for what needs one, amber for what waits; what is well has no colour."""
    for name in ("billing", "far"):
        shop.peers.add(name, "memory:nowhere")
    with shop.begin() as tx:
        tx.execute("UPDATE _onceward_peers SET breaker = 'open' WHERE name = 'far'")
    shop.session("a").send("shop", 1)
    shop.run_until_idle()
    for message in shop.receive_each(timeout=0):
        message.ack()

    peers, boxes = screen("peers", "ls"), screen("ls", "outbox")

    assert "\x1b[31mopen" in peers
    assert "closed" in plain(peers)
    assert "mclosed" not in peers.replace("\x1b[0m", "")
    assert "acked" in boxes
    assert "macked" not in boxes.replace("\x1b[0m", "")
    assert billing.agent


def test_a_message_is_shown_field_by_field(
    screen: Callable[..., str], shop: Postbox, billing: Postbox
) -> None:
    """Also the ones whose text looks like markup: it is text."""
    billing.send("shop", "[red]not markup[/red]", type="hello")
    billing.run_until_idle()
    assert shop.agent

    assert "[red]not markup[/red]" in screen("receive", "--keep")


def test_mail_cannot_move_the_cursor(
    screen: Callable[..., str], shop: Postbox, billing: Postbox
) -> None:
    """Control characters are spelled out, on the terminal as in a pipe."""
    billing.send("shop", "\x1b]0;owned\x07\x9b2J\n")
    billing.run_until_idle()
    assert shop.agent

    shown = screen("receive", "--keep")

    assert "\\x1b]0;owned\\x07" in shown
    assert "\x1b]0" not in shown


@pytest.mark.usefixtures("shop")
def test_a_column_cannot_move_the_cursor(screen: Callable[..., str]) -> None:
    """Names of columns, such as those of an application's table, are text without markup."""
    shown = plain(screen("sql", 'SELECT 1 AS "[red]\x9b2J\u202ename"'))

    assert "[red]\\x9b2J\\u202ename" in shown


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("plain", "plain"),
        ("a\tb\nc", "a\\tb\\nc"),
        ("\x1b[2J", "\\x1b[2J"),
        ("\u202eevil", "\\u202eevil"),
        ("Grüße", "Grüße"),
    ],
)
def test_text_is_made_safe(text: str, expected: str) -> None:
    """Letters of any language stay; what steers a screen or breaks a line does not."""
    assert expected == safe(text)


@pytest.mark.parametrize(
    ("value", "name", "expected"),
    [
        (None, "", ""),
        (True, "", "true"),
        (7, "n", "7"),
        (0, "sent_at", "1970-01-01T00:00:00.000Z"),
        (b"\x01", "", "01"),
        ([1, "a"], "", '[1,"a"]'),
    ],
)
def test_a_value_is_a_cell(value: object, name: str, expected: str) -> None:
    """Nothing is empty, times are RFC 3339, structures are JSON."""
    assert expected == cell(value, name)


def plain(text: str) -> str:
    """Return text without colours."""
    return "".join(
        part.partition("m")[2] if at else part for at, part in enumerate(text.split("\x1b["))
    )


ASCII = [
    {"LC_ALL": "POSIX", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
    {"PYTHONIOENCODING": "ascii"},
]


@pytest.mark.parametrize("locale", ASCII, ids=["POSIX", "ascii"])
@pytest.mark.parametrize("words", [["ls", "inbox"], ["show", "ID"]])
def test_an_output_that_knows_only_ascii_gets_escapes(
    home: Path, shop: Postbox, locale: dict[str, str], words: list[str]
) -> None:
    """A cron job prints its table; what its encoding lacks is written as in Python."""
    sent = shop.session("Zürich").send("shop", {"name": "Zürich"}, type="note")
    shop.run_until_idle()

    ran = subprocess.run(
        [*ONCEWARD, *(sent if word == "ID" else word for word in words)],
        env=os.environ | locale, cwd=home, capture_output=True, check=False,
    )  # fmt: skip

    assert (0, b"", True) == (ran.returncode, ran.stderr, rb"Z\xfcrich" in ran.stdout)


@pytest.mark.parametrize(
    "words",
    [["stats"], ["check"], ["ls"], ["why"], ["history"], ["send", "shop", "1"]],
    ids=" ".join,
)
@pytest.mark.parametrize("closed", [(1,), (0, 1, 2)], ids=str)
def test_a_closed_output_is_as_good_as_the_null_device(
    home: Path, shop: Postbox, words: list[str], closed: tuple[int, ...]
) -> None:
    """The command does its work, and no file that it opens gets the number of the closed one."""
    shop.send("shop", 1)

    without = f'exec "$@" {" ".join(f"{number}>&-" for number in closed)}'
    ran = subprocess.run(
        ["/bin/sh", "-c", without, "sh", *ONCEWARD, *words],
        cwd=home, capture_output=True, check=False,
    )  # fmt: skip

    assert (0, False) == (ran.returncode, b"Traceback" in ran.stderr)


HOSTILE = "\x9b2J\x7f\u202e\x1b[31m\u200b\U000e0041 grüße"


@pytest.mark.parametrize("command", ["poll", "tail", "mailbox query desk", "history --json"])
def test_a_body_cannot_move_the_cursor(cli: Cli, shop: Postbox, command: str) -> None:
    """Readable letters stay readable; all others are JSON's escapes, and the body stays whole."""
    shop.mailboxes.ensure("desk", public=True).send({"text": HOSTILE})
    shop.send("shop", {"text": HOSTILE})
    shop.run_until_idle()

    ran = cli(*command.split())

    assert [] == [c for c in ran.out if not c.isprintable() and c != "\n"]
    found = json.loads(ran.out if "--json" in command else ran.out.splitlines()[-1])
    [message, *_] = found["messages"] if "--json" in command else [found]
    assert {"text": HOSTILE} == message["body"]


def test_a_printed_body_keeps_its_letters(cli: Cli, shop: Postbox) -> None:
    """Only characters that a terminal would act on are escaped."""
    shop.send("shop", {"text": "grüße 你好"})
    shop.run_until_idle()

    assert "grüße 你好" in cli("tail").out
