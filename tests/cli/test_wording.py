"""Errors in the words of the shell: options, variables and commands, never calls of Python."""

import ast
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.syntax import parsed

from onceward import Postbox
from onceward.ops.cli.wording import in_shell

Cli = Callable[..., Any]
PYTHON = re.compile(r"\w\(\)|\b[a-z_]+=|\bNone\b|\bTrue\b|\bint\b|Literal|``|box\.|\bensure_")
SOURCE = Path(__file__).parents[2] / "src" / "onceward"
REACHED = ("model", "db", "transports", "store", "runtime", "api")
NO_SHELL = {
    "the postbox is not open: use `async with`, or await open()",
    "attempts={}: a handler runs at least once",
    "a batch handler must return None: answer with ctx.reply(message, body)",
}
"""Texts that only a program of Python can meet."""


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [
        ("ls --limit many", "--limit takes a whole number, not 'many'"),
        ("ls outbx", "WHAT is one of queues, lanes, outbox, inbox, not 'outbx'"),
        ("sessions runs --state nope", "--state is one of open, done, waiting, aborted, failed"),
        ("receive --wait soon", "--wait: span 'soon' is not a valid duration"),
        ("send", "TO is missing"),
        ("tail -n", "-n needs a value"),
        ("stats --nope", "there is no option --nope"),
        ("ls --lmit 3", "there is no option --lmit: did you mean --limit?"),
        ("--nope", "there is no option --nope"),
        ("limits set session a --messages 0", "a limit needs --messages or --size (bytes)"),
        ("mailbox ensure a.b --ttl 0", "at least a millisecond, or --forever"),
        ("mailbox ensure a.c --exclusive", "omit --exclusive, or choose another name"),
        ("channel create room", "--ensure uses the existing one"),
        ("channel ack room nonsense", "give the handle that onceward channel receive printed"),
        ("send nowhere 1", "or set ONCEWARD_HOLD_UNKNOWN=1"),
        ("search word", "run this once with ONCEWARD_SEARCH=1"),
        ("history --after x", "--after 'x' is not the next of a page"),
    ],
)
def test_an_error_speaks_the_command_s_language(
    cli: Cli, shop: Postbox, tokens: str, expected: str
) -> None:
    """What the user typed, what is taken there, and what to type next."""
    shop.channels.create("room")
    shop.mailboxes.create("a.c", public=True, ttl=None)

    ran, told = cli(*tokens.split()), cli(*tokens.split(), "--json")

    assert expected in ran.err
    assert [] == PYTHON.findall(ran.err)
    assert expected in told.problem["detail"] or "--json" in told.problem["detail"]


@pytest.mark.parametrize("tokens", ["send billing 1", "send billing 1 --json"])
@pytest.mark.usefixtures("billing")
def test_a_paused_agent_is_resumed_by_a_command(cli: Cli, shop: Postbox, tokens: str) -> None:
    """The cure is the command, in the text and in the problem object."""
    shop.file.pause()

    assert "onceward resume" in (err := cli(*tokens.split()).err)
    assert [] == PYTHON.findall(err)


@pytest.mark.parametrize("layer", REACHED)
def test_no_error_of_the_library_reaches_the_shell_in_python(layer: str) -> None:
    """Each text that a layer raises has its words for the shell, or cannot arise there."""
    texts = [text for path in (SOURCE / layer).rglob("*.py") for text in _raised(path)]

    found = [
        (text, words)
        for text in texts
        if (words := PYTHON.findall(in_shell(text))) and text not in NO_SHELL
    ]
    assert [] == found


def _raised(path: Path) -> Iterator[str]:
    """Yield the texts that are assigned to msg, with {} for what is put in."""
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Assign) and "msg" in [getattr(t, "id", "") for t in node.targets]:
            yield "".join(_parts(node.value))


def _parts(node: ast.expr) -> Iterator[str]:
    for part in node.values if isinstance(node, ast.JoinedStr) else [node]:
        yield str(part.value) if isinstance(part, ast.Constant) else "{}"


def test_a_url_is_not_reworded() -> None:
    """The query of a url that an error repeats is not an option of the command."""
    text = "'https://bob.example/?y=1&type=x&hold_unknown=True' cannot be: delay=3 is"

    assert text.replace("delay=3", "--delay 3") == in_shell(text)


def test_a_folder_of_a_log_is_not_reworded() -> None:
    """Partitions of a shipped log have names that look like options."""
    text = "data/outbox/day=2026-01-01/agents=03/it.parquet was not written"

    assert text == in_shell(text)
