"""``bench`` and ``prove``: they run in a clone of the repository, and say so elsewhere."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from onceward.ops.cli import clone

Cli = Callable[..., Any]
COMMANDS = [("bench", "tests.bench"), ("prove", "tests.proof")]


@pytest.mark.parametrize(("command", "module"), COMMANDS)
def test_outside_of_a_clone_it_says_what_to_do(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str, module: str
) -> None:
    """A wheel has no harness: exit code 2, nothing on stdout, and the cure on stderr."""
    monkeypatch.setattr(clone, "folder", lambda: tmp_path)

    ran = cli(command, "anything")

    assert (2, "") == (ran.code, ran.out)
    assert f"{module} is part of the repository, not of the package: clone it" in ran.err


@pytest.mark.parametrize(("command", "module"), COMMANDS)
def test_in_a_clone_it_runs_the_module(
    cli: Cli, home: Path, monkeypatch: pytest.MonkeyPatch, command: str, module: str
) -> None:
    """Arguments are passed on, options too, and the harness's exit code is the command's."""
    package = home / "clone" / Path(*module.split("."))
    package.mkdir(parents=True)
    (package / "__main__.py").write_text(
        "import sys\nfrom pathlib import Path\n"
        "Path('said.txt').write_text(' '.join(sys.argv[1:]))\nsys.exit(6)\n",
        encoding="utf-8",
    )
    monkeypatch.setattr(clone, "folder", lambda: home / "clone")

    ran = cli(command, "send", "--seconds", "1")

    assert (6, "send --seconds 1") == (ran.code, (home / "said.txt").read_text(encoding="utf-8"))


def test_this_repository_is_a_clone() -> None:
    """Both harnesses are where the commands look for them."""
    folders = [clone.folder() / Path(*module.split(".")) for _, module in COMMANDS]

    assert [True, True] == [(folder / "__main__.py").is_file() for folder in folders]
