"""Help: complete enough that the docs are made of it, and light enough for every call."""

import importlib
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from onceward.ops.cli import help_pages
from onceward.ops.cli.app import COMMANDS, NOUNS, build, page, summary
from onceward.ops.cli.file_word import with_file

Cli = Callable[..., Any]
GUESTS = {"demo"}
EXAMPLE = re.compile(r"^Example: (.+)$", re.MULTILINE)
SCRIPTS = {"completion"}
"""Commands that print a program, not a document."""
OWN = sorted(set(COMMANDS) - GUESTS)


def test_every_command_has_a_page() -> None:
    """The program, its nouns, and every verb; plain text, which becomes part of documents."""
    pages = help_pages()

    assert {True} == {text.isascii() for text in pages.values()}
    assert ["onceward", *(f"onceward {name}" for name in (*NOUNS, *COMMANDS))] == list(pages)


@pytest.mark.parametrize("name", OWN)
def test_a_page_explains_every_option(name: str) -> None:
    """No option stands there without a sentence."""
    text = page(name)
    options = [line for line in text.splitlines() if line.startswith("  ")]

    assert text.startswith(f"Usage: onceward {name}")
    assert ("--json" in text) != (name in SCRIPTS)
    assert [] == [line for line in options if line.rstrip().endswith(":") or ":" not in line]


@pytest.mark.parametrize("name", OWN)
def test_a_default_has_its_unit(name: str) -> None:
    """A duration is shown as 7d, not as 604800.0."""
    assert [] == re.findall(r"default: \d+\.\d+\]", page(name))


@pytest.mark.parametrize("name", OWN)
def test_the_summary_is_the_docstring_s_first_line(name: str) -> None:
    """The list of commands reads it from the source, without importing the command."""
    module, _, function = COMMANDS[name].partition(":")
    doc = getattr(importlib.import_module(module), function).__doc__ or ""

    assert doc.strip().partition("\n")[0] == summary(name)
    assert summary(name).endswith(".")


@pytest.mark.parametrize("name", COMMANDS)
def test_a_page_has_an_example_that_the_command_takes(name: str) -> None:
    """It stands in the help text as a shell takes it, and the command's parser accepts it."""
    examples = EXAMPLE.findall(page(name))

    assert examples
    for line in examples:
        words = shlex.split(line.rpartition(" | ")[2])
        tokens = with_file(name, words[1:])
        app = build(tokens)

        assert ["onceward", *name.split()] == words[: 1 + len(name.split())]
        app.parse_args(tokens, exit_on_error=False, print_error=False)


def test_help_imports_no_command() -> None:
    """The list of commands costs no import of a command; one command imports its own module."""
    names = {path.partition(":")[0] for path in COMMANDS.values()}
    listed, shown = _loaded("--help"), _loaded("stats", "--help")

    assert set() == names & listed
    assert {"onceward.ops.cli.ls"} == names & shown


def _loaded(*tokens: str) -> set[str]:
    code = f"import sys; from onceward.ops.cli import main; main({tokens!r}); print(*sys.modules)"
    command = [sys.executable, "-c", code]
    ran = subprocess.run(command, capture_output=True, text=True, check=True)
    return set(ran.stdout.splitlines()[-1].split())


@pytest.mark.parametrize("tokens", [[], ["--help"], ["-h"]])
def test_onceward_alone_shows_help(cli: Cli, tokens: list[str]) -> None:
    """Every command is named with its summary."""
    ran = cli(*tokens)

    assert (0, "") == (ran.code, ran.err)
    assert {True} == {f" {name.split()[0]} " in ran.out for name in COMMANDS}


def test_a_noun_alone_shows_its_verbs(cli: Cli) -> None:
    """With their summaries."""
    ran = cli("dead")

    assert 0 == ran.code
    assert {True} == {verb in ran.out for verb in ("ls", "show", "replay", "discard")}


def test_version(cli: Cli) -> None:
    """The installed one."""
    assert (
        importlib.import_module("importlib.metadata").version("onceward")
        == cli("--version").out.strip()
    )


@pytest.mark.parametrize(
    ("tokens", "guess"),
    [
        (["sned"], "did you mean send?"),
        (["dead", "replya"], "did you mean replay?"),
        (["health"], "did you mean doctor?"),
    ],
)
def test_a_slip_is_guessed(cli: Cli, tokens: list[str], guess: str) -> None:
    """The nearest command is named."""
    assert guess in cli(*tokens).err


@pytest.mark.parametrize(("library", "word"), [("cyclopts", "stats"), ("rich", "--help")])
def test_without_the_extra_the_install_line_is_printed(library: str, word: str) -> None:
    """The script exists in every installation, and says what it needs."""
    code = f"from onceward.ops.cli import main; sys.exit(main([{word!r}]))"
    bare = f"import sys; sys.modules[{library!r}] = None; {code}"

    ran = subprocess.run([sys.executable, "-c", bare], capture_output=True, text=True, check=False)

    assert (2, "") == (ran.returncode, ran.stdout)
    assert [
        f"the command line needs {library}, which is not installed: pip install 'onceward[cli]'"
    ] == ran.stderr.splitlines()
