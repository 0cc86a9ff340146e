"""The page for contributors is true: its six steps add a feature to a copy of the package."""

import importlib
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from onceward import Postbox

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "contributing.md"
STEPS = re.compile(
    r"^### (?P<number>\d)\. .+?\n(?P<text>.*?)(?=^### |\Z)", re.MULTILINE | re.DOTALL
)
CHANGE = re.compile(
    r"^```(?P<kind>py|sql|diff) (?P<path>\S+)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL
)
FEATURE = Path("src/onceward/features/presence")
BEGIN = """
from onceward import Postbox

with Postbox("a.db", agent="a", start=False) as a, Postbox("b.db", agent="b", start=False) as b:
    a.presence.tell("b")
    a.run_until_idle()
    assert b.presence.seen("a") is not None
    a.send("b", "stored")
    a.run_until_idle()
    a.presence.tell("b")
    a.send("b", "on its way")
"""
"""Leaves one message in the inbox of b, and two in the outbox of a."""


@dataclass(frozen=True)
class Change:
    """One block of a step: a new file, or lines for a file that is there."""

    step: int
    kind: str
    path: str
    text: str

    def apply(self, root: Path) -> None:
        """Write the file, or put the lines with + beside those that are there once."""
        path = root / self.path
        if self.kind != "diff":
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(self.text, encoding="utf-8")
            return
        self._replace(path, self._lines(" "), self._lines(" +"))

    def undo(self, root: Path) -> None:
        """Take out what ``apply`` put in."""
        if self.kind != "diff":
            (root / self.path).unlink()
        else:
            self._replace(root / self.path, self._lines(" +"), self._lines(" "))

    def _lines(self, marks: str) -> str:
        return "".join(
            line[1:] or "\n"
            for line in self.text.splitlines(keepends=True)
            if line[0] in marks or (line == "\n" and " " in marks)
        )

    def _replace(self, path: Path, old: str, new: str) -> None:
        text = path.read_text(encoding="utf-8")
        assert 1 == text.count(old), f"step {self.step}: {self.path} has not once:\n{old}"
        path.write_text(text.replace(old, new), encoding="utf-8")


def _parts() -> tuple[str, str]:
    """Return what the page tells of a command, and of a feature."""
    text = PAGE.read_text(encoding="utf-8").partition("## Add a command")[2]
    command, _, feature = text.partition("## Add a feature in six steps")
    return command, feature


def _changes() -> list[Change]:
    return [
        Change(int(step["number"]), found["kind"], found["path"], found["text"])
        for step in STEPS.finditer(_parts()[1])
        for found in CHANGE.finditer(step["text"])
    ]


def _add_feature(root: Path) -> None:
    for change in _changes():
        change.apply(root)
    _generate(root)


def _generate(root: Path) -> None:
    """Put the schema together, as ``docs/site/generate.py`` does."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "docs" / "site"))
        text: str = importlib.import_module("tables").initial(root / "src" / "onceward")
    (root / "schema" / "0001_initial.sql").write_text(text, encoding="utf-8")


def _files(root: Path) -> dict[str, bytes]:
    return {
        path.relative_to(root).as_posix(): path.read_bytes()
        for folder in ("src", "schema")
        for path in (root / folder).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """Return a folder with a copy of the package."""
    for name in ("src", "schema"):
        shutil.copytree(
            ROOT / name, tmp_path / "copy" / name, ignore=shutil.ignore_patterns("__pycache__")
        )
    shutil.copy(ROOT / "pyproject.toml", tmp_path / "copy")
    return tmp_path / "copy"


def _run(root: Path, *words: str, folder: Path | None = None) -> tuple[int, str]:
    """Run Python with the package of *root*; return its exit code, and what a failure printed."""
    ran = subprocess.run(
        [sys.executable, *words],
        cwd=folder or root,
        env=os.environ | {"PYTHONPATH": str(root / "src")},
        capture_output=True,
        text=True,
        check=False,
    )
    return ran.returncode, ran.stdout + ran.stderr if ran.returncode else ""


def test_there_are_six_steps_and_each_shows_what_to_do() -> None:
    """The steps are numbered from 1 to 6, and each has a block that changes the package."""
    assert [1, 2, 3, 4, 5, 6] == sorted({change.step for change in _changes()})


def test_the_six_steps_add_a_feature(copy: Path) -> None:
    """Its own test finds table, work while accepting, maintenance and attribute; the gates hold."""
    _add_feature(copy)
    [test] = [change.path for change in _changes() if change.step == 6]

    assert (0, "") == _run(copy, "-m", "pytest", "-q", "-W", "error", "--noconftest", test)
    changed = {change.path for change in _changes() if change.path.endswith(".py")}
    assert (0, "") == _run(copy, "-m", "ruff", "check", "--no-cache", *sorted(changed))
    assert (0, "") == _run(copy, "-m", "ruff", "format", "--check", "--no-cache", str(FEATURE))
    lint = (
        "from importlinter.cli import lint_imports; raise SystemExit(lint_imports(no_cache=True))"
    )
    assert (0, "") == _run(copy, "-c", lint)


def test_a_command_is_added_in_two_places(copy: Path, tmp_path: Path) -> None:
    """It is in the help, runs, has an example, and passes the linter."""
    changes = [
        Change(0, found["kind"], found["path"], found["text"])
        for found in CHANGE.finditer(_parts()[0])
    ]
    for change in changes:
        change.apply(copy)
    with Postbox(tmp_path / "a.db", agent="a", start=False, hold_unknown=True) as a:
        a.send("b", 1)
        a.run_until_idle()

    def onceward(*words: str) -> str:
        run = "from onceward.ops.cli import main; main()"
        environment = os.environ | {"PYTHONPATH": str(copy / "src")}
        words = (sys.executable, "-c", run, *words)
        return subprocess.run(
            words, env=environment, capture_output=True, text=True, check=True
        ).stdout

    assert 2 == len(changes)
    assert ["b"] == onceward("peers", "silent", "--db", str(tmp_path / "a.db")).split()
    assert "onceward peers silent --db shop.db" in onceward("peers", "silent", "--help")
    paths = [change.path for change in changes]
    assert (0, "") == _run(copy, "-m", "ruff", "check", "--no-cache", *paths)


def test_a_feature_that_is_taken_out_leaves_the_rest_whole(copy: Path, tmp_path: Path) -> None:
    """Undone, the steps leave no trace in the package, and its files lose no message."""
    before = _files(copy)
    _add_feature(copy)
    assert (0, "") == _run(copy, "-c", BEGIN, folder=tmp_path)
    for change in reversed(_changes()):
        change.undo(copy)
    _generate(copy)

    assert before == _files(copy)
    with (
        Postbox(tmp_path / "a.db", agent="a", start=False) as a,
        Postbox(tmp_path / "b.db", agent="b", start=False) as b,
    ):
        a.run_until_idle()
        found = []
        while message := b.receive():
            with message:
                found.append((message.type, message.body))
    assert ["stored", None, "on its way"] == [body for _, body in found]
    assert "presence" == found[1][0]
