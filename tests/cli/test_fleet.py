"""``onceward fleet``: what it says when something is missing, and how it ends."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from onceward import Postbox
from onceward.ops.cli import main

WITHOUT: Final = (
    "import sys; sys.modules['pyspark'] = None; from onceward.ops.cli import main;"
    " sys.exit(main({tokens!r}))"
)
"""A process in which the extra is not installed."""


@pytest.mark.parametrize(
    "tokens",
    [
        ["fleet", "reconcile", ".", "--out", "report", "--engine", "spark"],
        ["fleet", "metrics", ".", "--out", "m"],
    ],
)
def test_without_the_extra_it_says_what_to_install(tokens: list[str], tmp_path: Path) -> None:
    """The command exists in every installation; without Spark it names the extra and stops."""
    Postbox(tmp_path / "a.db", agent="a", start=False).close()
    before = sorted(path.name for path in tmp_path.iterdir())
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT.format(tokens=tokens)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )

    assert (2, "") == (done.returncode, done.stdout)
    assert "pip install 'onceward[spark]'" in done.stderr
    assert before == sorted(path.name for path in tmp_path.iterdir())


def test_without_paths_it_asks_for_them(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """No command reads the whole disk by mistake."""
    assert 2 == main(["fleet", "threads", "--out", str(tmp_path / "out")])
    assert "which files?" in capsys.readouterr().err


def test_paths_that_name_nothing_are_no_clean_fleet(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """A misspelt folder does not end in a report that all is well."""
    assert 3 == main(
        ["fleet", "reconcile", str(tmp_path / "nowhere"), "--out", str(tmp_path / "out"), "--json"]
    )
    assert "NamesNoFile" in json.loads(capsys.readouterr().err)["type"]
    assert not (tmp_path / "out").exists()


def test_a_graph_needs_a_reconciliation(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """What was not reconciled cannot be drawn, and the message says how to."""
    assert 3 == main(["fleet", "graph", str(tmp_path)])
    assert "fleet reconcile" in capsys.readouterr().err


def test_the_demo_takes_no_folder_that_is_in_use(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """A folder that holds other files is refused."""
    (tmp_path / "mine.txt").write_text("mine", encoding="utf-8")

    assert 2 == main(["fleet", "demo", "--home", str(tmp_path)])
    assert 2 == main(["fleet", "demo", "--size", "0"])
    assert "not empty" in capsys.readouterr().err
