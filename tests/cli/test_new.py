"""``new``, ``work`` without a file, ``--reload`` and ``completion``."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.children import ONCEWARD, Child
from tests.waiting import until

from onceward import Postbox

Cli = Callable[..., Any]
COMMAND = [sys.executable, "-m", "onceward"]
TIMES = "SELECT times FROM greeted"


@pytest.fixture
def folder(cli: Cli, home: Path) -> Path:
    """Return a folder that the command has made."""
    ran = cli("new", "mine", "--json")
    assert ["README.md", "ask.py", "greeter.py", "test_greeter.py"] == ran.json["files"]
    return home / "mine"


@contextmanager
def working(folder: Path, *words: str) -> Iterator[Child]:
    """Run ``onceward work`` there until the block ends."""
    command = [*ONCEWARD, "work", "greeter:greeter", *words]
    with Child(command, "stderr", cwd=folder, env=bare()) as process:
        yield process
        process.stop()


def bare() -> dict[str, str]:
    """Return the environment without a home of its own."""
    return {name: value for name, value in os.environ.items() if name != "ONCEWARD_HOME"}


def ask(folder: Path, name: str) -> str:
    """Run the starter's second program."""
    return subprocess.run(
        [sys.executable, "ask.py", name],
        cwd=folder,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
        env=bare(),
    ).stdout


def test_the_next_commands_are_told(cli: Cli, home: Path) -> None:
    """They stand on stderr, as a shell takes them; programs get the folder and the files."""
    told, asked = cli("new", "my agent"), cli("new", "other", "--json")

    assert "next: cd 'my agent' && onceward work greeter:greeter; see README.md\n" == told.err
    assert ("", "other") == (asked.err, asked.json["folder"])
    assert (home / "my agent" / "README.md").exists()


def test_a_new_folder_tests_and_runs(folder: Path) -> None:
    """Its tests pass, its worker answers another process, and the file is there afterwards."""
    tests = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist"]
    tested = subprocess.run(tests, cwd=folder, capture_output=True, text=True, check=False)
    assert 0 == tested.returncode, tested.stdout

    with working(folder, "--workers", "2") as worker:
        until(lambda: (folder / "greeter.db").exists() or worker.poll() is not None)
        assert "Hello, Ada!\n" == ask(folder, "Ada")
    assert 143 == worker.returncode
    with Postbox(folder / "greeter.db", start=False) as box:
        assert [(1,)] == box.query(TIMES)


@pytest.mark.parametrize("library", ["pydantic_ai", "langgraph"])
def test_a_folder_for_a_framework_tests(cli: Cli, home: Path, library: str) -> None:
    """Its agent is of the framework, and its tests pass where the framework is installed."""
    extra = library.replace("_", "-")
    ran = cli("new", "mine", f"--{extra}")
    assert "onceward work assistant:assistant;" in ran.err
    assert (home / "mine" / "assistant.py").exists()

    pytest.importorskip(library, reason=f"pip install 'onceward[{extra}]' brings it")
    tests = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist"]
    tested = subprocess.run(tests, cwd=home / "mine", capture_output=True, text=True, check=False)
    assert 0 == tested.returncode, tested.stdout


def test_a_change_begins_anew(folder: Path) -> None:
    """With ``--reload`` the handlers are those that the file has now."""
    pytest.importorskip("watchfiles", reason="an extra of the reader's")
    source = folder / "greeter.py"
    with working(folder, "--reload"):
        until((folder / "greeter.db").exists)
        first = ask(folder, "Ada")
        source.write_text(source.read_text().replace('f"Hello', 'f"Welcome'))
        until(lambda: ask(folder, "Bo").startswith("Welcome"))

    assert "Hello, Ada!\n" == first


def test_nothing_is_overwritten(cli: Cli, folder: Path) -> None:
    """A folder with anything in it is left as it is."""
    before = (folder / "greeter.py").read_text()
    (folder / "test_greeter.py").unlink()
    ran = cli("new", "mine")

    assert (2, before, False) == (
        ran.code,
        (folder / "greeter.py").read_text(),
        (folder / "test_greeter.py").exists(),
    )
    assert "give a new folder" in ran.err


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_completes_every_command(cli: Cli, shell: str) -> None:
    """The script names verbs and options, and bash can read it."""
    ran = cli("completion", shell)

    assert 0 == ran.code
    assert {True} == {word in ran.out for word in ("schedules", "replay", "timezone", "completion")}
    if shell == "bash":
        subprocess.run(["/bin/bash", "-n"], input=ran.out, text=True, check=True)


def test_a_folder_is_for_one_framework(cli: Cli, home: Path) -> None:
    """Two flags are refused, and no folder is made."""
    ran = cli("new", "mine", "--pydantic-ai", "--langgraph")

    assert 2 == ran.code
    assert "one framework" in ran.err
    assert not (home / "mine").exists()
