"""A feature is taken out by deleting its folder and its lines: everything else works without it."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import onceward

PACKAGE = Path(str(onceward.__file__)).parent
FEATURES = sorted(each.parent.name for each in PACKAGE.glob("features/*/__init__.py"))
LISTS = {"features.py", "parts.py"}
"""Modules of ``onceward.api`` with a line for each feature."""
PROGRAM = Path(__file__).with_name("small_program.py")


def _without(feature: str, source: Path) -> str:
    """Return a list of features without the lines that name one."""
    named = re.compile(rf'"{feature}",|onceward\.features\.{feature}\.')
    lines = source.read_text(encoding="utf-8").splitlines(keepends=True)
    return "".join(line for line in lines if not named.search(line))


def _link(folder: Path, names: set[str]) -> None:
    for each in names:
        (folder / each).symlink_to(PACKAGE / folder.name / each)


def _tree_without(feature: str, folder: Path) -> Path:
    """Make a tree of links to the package's files, without a feature; return where to import it."""
    top = folder / "tree" / "onceward"
    top.mkdir(parents=True)
    for each in PACKAGE.iterdir():
        if each.name in {"api", "features"}:
            (top / each.name).mkdir()
        elif each.name != "__pycache__":
            (top / each.name).symlink_to(each)
    _link(top / "features", {each.name for each in PACKAGE.glob("features/[!_]*")} - {feature})
    _link(top / "features", {"__init__.py"})
    _link(top / "api", {each.name for each in PACKAGE.glob("api/*.py")} - LISTS)
    for name in LISTS:
        entries = _without(feature, PACKAGE / "api" / name)
        (top / "api" / name).write_text(entries, encoding="utf-8")
    return top.parent


@pytest.mark.parametrize("feature", FEATURES)
def test_all_else_works_without_a_feature(feature: str, tmp_path: Path) -> None:
    """
    Messages are sent, handled and answered, files maintained and the command's help drawn.

    The postboxes are plain and asynchronous ones; the interpreter is a fresh one.
    """
    env = {**os.environ, "PYTHONPATH": str(_tree_without(feature, tmp_path))}

    ran = subprocess.run(
        [sys.executable, str(PROGRAM), str(tmp_path), feature],
        capture_output=True,
        check=False,
        cwd=tmp_path,
        env=env,
        text=True,
        timeout=120,
    )

    assert 0 == ran.returncode, ran.stderr
    assert "Usage" in ran.stdout
