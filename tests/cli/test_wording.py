"""Errors in the words of the shell: options, variables and commands, never calls of Python."""

import ast
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.syntax import parsed

from onceward import Postbox, errors
from onceward.message.error_text import Hint
from onceward.ops.cli.exit_codes import problem
from onceward.ops.cli.wording import OPTIONS, SHELL, in_shell

Cli = Callable[..., Any]
PYTHON = re.compile(r"\w\(\)|\b[a-z_]+=|\bNone\b|\bTrue\b|\bint\b|Literal|``|box\.|\bensure_")
SOURCE = Path(__file__).parents[2] / "src" / "onceward"
KINDS = [
    kind
    for kind in vars(errors).values()
    if isinstance(kind, type) and issubclass(kind, errors.OncewardError)
]


@pytest.fixture
def speaking() -> Iterator[Callable[..., None]]:
    """Return a call that says which options the command that runs has."""
    before = OPTIONS.set(frozenset)

    def has(*names: str) -> None:
        OPTIONS.set(lambda: names)

    yield has
    OPTIONS.reset(before)


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [
        ("ls --limit many", "--limit takes a whole number, not 'many'"),
        ("ls outbx", "WHAT is one of queues, lanes, outbox, inbox, not 'outbx'"),
        ("runs ls --state nope", "--state is one of open, done, waiting, aborted, failed"),
        ("receive --wait soon", "--wait: span 'soon' is not a valid duration"),
        ("send", "TO is missing"),
        ("tail -n", "-n needs a value"),
        ("stats --nope", "there is no option --nope"),
        ("ls --lmit 3", "there is no option --lmit: did you mean --limit?"),
        ("--nope", "there is no option --nope"),
        ("send shop --nope", "there is no option --nope: give the body itself"),
        ("schedules add tick --every 1h --body 1", "--body: BODY is given without a name"),
        ("schedules add tick {a:1} --every 1h", "not valid: Expecting property name"),
        ("schedules add tick [1, --every 1h", 'write {"name": "value"}, or plain text as a JSON'),
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


def test_each_hint_is_used_and_has_words_for_the_shell() -> None:
    """An error is written with the member; its words for the shell name no call of Python."""
    used = {
        node.attr
        for path in SOURCE.rglob("*.py")
        if path.parent.name != "cli"
        for node in ast.walk(parsed(path))
        if isinstance(node, ast.Attribute) and getattr(node.value, "id", "") == "Hint"
    }

    assert (set(Hint), {hint.name for hint in Hint}) == (set(SHELL), used)
    assert [] == [told for told in SHELL.values() if PYTHON.findall(told)]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_the_title_of_an_error_names_no_call(kind: type[errors.OncewardError]) -> None:
    """It is the first line of the docstring, which a program in any language may show."""
    assert [] == PYTHON.findall(problem(kind.__new__(kind))["title"])


def test_only_options_of_the_command_are_spelled(speaking: Callable[..., None]) -> None:
    """A parameter that the command does not have is one of Python code, such as a handler's."""
    speaking("as_new", "delay")

    assert "use --as-new, or --delay 3 (tx=True, --delay)" == in_shell(
        "use as_new=True, or delay=3 (tx=True, delay=)"
    )


def test_a_url_is_not_reworded(speaking: Callable[..., None]) -> None:
    """The query of a url that an error repeats is not an option of the command."""
    speaking("type", "delay", "y")
    text = "'https://bob.example/?y=1&type=x&hold_unknown=True' cannot be: delay=3 is"

    assert text.replace("delay=3", "--delay 3") == in_shell(text)


def test_a_folder_of_a_log_is_not_reworded(speaking: Callable[..., None]) -> None:
    """Partitions of a shipped log have names that look like options."""
    speaking("day", "agents")
    text = "data/outbox/day=2026-01-01/agents=03/it.parquet was not written"

    assert text == in_shell(text)
