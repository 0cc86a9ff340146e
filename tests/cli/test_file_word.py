"""FILE: the word after a command may be the agent's file, wherever a command works on one."""

import sys
from collections.abc import Callable
from inspect import signature
from pathlib import Path
from typing import Any, get_type_hints

import pytest

from onceward import Postbox
from onceward.ops.cli.app import COMMANDS
from onceward.ops.cli.file_word import GROUPS, OWN, WITHOUT, with_file
from onceward.ops.cli.target import Where

Cli = Callable[..., Any]


@pytest.mark.parametrize(
    "command",
    [
        "stats", "ls", "ls outbox", "history", "tail", "poll", "sessions stats", "maintain",
        "pause", "resume", "peers ls", "dead ls", "runs ls", "limits ls", "runs queues",
        "agents register", "mailbox ls", "channel ls", "doctor", "check", "migrate", "relay --once",
    ],
)  # fmt: skip
@pytest.mark.usefixtures("billing")
def test_a_command_takes_its_file_as_a_word(cli: Cli, home: Path, command: str) -> None:
    """Right after the command; what --db names is the same."""
    name, *rest = command.split() if command.startswith(("ls", "relay")) else [command]
    file = home / "billing.db"

    word, flag = (
        cli(*name.split(), *given, *rest, "--json")
        for given in ([file], [] if name in OWN else [f"--db={file}"])
    )

    assert (0, True) == (word.code, name in OWN or flag.out == word.out)


@pytest.mark.usefixtures("shop")
def test_a_file_stands_before_the_other_words(cli: Cli, billing: Postbox) -> None:
    """A command with words of its own takes them after the file."""
    sent = cli("send", billing.file.path, "shop", "hello").out.strip()

    assert [("billing", "hello")] == [(row.sender, row.body) for row in billing.history().messages]
    assert 0 == cli("show", billing.file.path, sent).code
    assert "1\n" == cli("sql", billing.file.path, "SELECT count(*) FROM outbox").out


@pytest.mark.parametrize(
    "tokens",
    [
        ["send", "x.db", "hi", "--agent", "shop"],
        ["send", "x.db", "hi", "--db=shop.db"],
        ["send", "x.db", "hi", "--home=."],
        ["send", "--", "x.db", "hi"],
        ["search", "a/b"],
        ["send", "billing", "x.db"],
        ["init", "x.db"],
    ],
)
@pytest.mark.usefixtures("home")
def test_other_words_stay_words(tokens: list[str]) -> None:
    """With --db, --agent, --home or a double dash a name that ends in .db is a name."""
    assert tokens == with_file(tokens[0], tokens)


def test_a_path_to_a_file_is_a_file(home: Path) -> None:
    """Also without a suffix, as soon as it names a folder; a plain word never is one."""
    (home / "files").mkdir()
    (home / "files" / "shop").touch()
    (home / "shop").touch()

    assert ["stats", "--db=files/shop"] == with_file("stats", ["stats", "files/shop"])
    assert ["stats", "shop"] == with_file("stats", ["stats", "shop"])


def test_a_home_is_named_by_an_option(
    cli: Cli, home: Path, shop: Postbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It goes before ONCEWARD_HOME and ONCEWARD_DB; the agent is an option or ONCEWARD_AGENT."""
    sent = shop.send("shop", "hello")
    (home / "far").mkdir()
    (home / "far" / "other.py").write_text("from onceward import Agent\nagent = Agent('other')\n")
    made = cli("init", "other", "--home", home / "far")
    monkeypatch.setenv("ONCEWARD_HOME", "nowhere")
    monkeypatch.setenv("ONCEWARD_DB", "none.db")
    monkeypatch.setattr(sys, "path", [str(home / "far"), *sys.path])

    assert (0, 0) == (made.code, cli("stats", "--agent", "other", "--home", home / "far").code)
    assert "hello" in cli("show", sent, "--home", home).out
    assert 3 == cli("stats", "--home", home / "far").code
    assert sent in cli("why", sent, "--home", home, "--json").out
    assert 0 == cli("work", "other:agent", "--once", "--home", home / "far").code
    assert ["directory.db", "other.db"] == sorted(each.name for each in (home / "far").glob("*.db"))


@pytest.mark.usefixtures("shop", "billing")
@pytest.mark.parametrize("command", ["check", "doctor"])
def test_a_home_alone_is_all_its_files(cli: Cli, home: Path, command: str) -> None:
    """Of the commands that examine several files; a home without one is not called sound."""
    (home / "empty").mkdir()
    ran, none = (cli(command, "--home", where, "--json") for where in (home, home / "empty"))

    assert [True, True] == [name in ran.out for name in ("shop.db", "billing.db")]
    assert (3, "") == (none.code, none.out)


@pytest.mark.usefixtures("home")
def test_a_file_that_is_not_there_is_named(cli: Cli) -> None:
    """The error is about the file, not about a word too many."""
    assert (3, True) == ((ran := cli("stats", "none.db")).code, "no file none.db" in ran.err)
    assert "a file comes after the command" in cli("none.db", "stats").err
    assert "write --db none.db" in cli("ls", "outbox", "none.db").err


@pytest.mark.parametrize("name", COMMANDS)
def test_commands_without_a_file_are_listed(name: str) -> None:
    """A command works on one file if it takes --db; some have arguments FILE of their own."""
    module, _, function = COMMANDS[name].partition(":")
    called = getattr(__import__(module, fromlist=[function]), function)
    hints = get_type_hints(called)
    kinds = [hints[each] for each in signature(called).parameters if each in hints]
    takes_db = any(isinstance(kind, type) and issubclass(kind, Where) for kind in kinds)

    assert takes_db == (name not in WITHOUT | {"work"} and name.split(maxsplit=1)[0] not in GROUPS)
