"""Whatever file a test leaves is checked after it: the watch that all tests share can see."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
WATCHED = """
import pytest
from onceward import Postbox
from onceward.testing import Harness

SPOIL = "UPDATE _onceward_counters SET value = value + 1 WHERE name = 'ended_pending'"


def leave(folder, spoil):
    with Postbox(folder / "a.db", agent="a", start=False, hold_unknown=True) as box:
        box.send("b", 1)
        if spoil:
            box._db.write(lambda tx: tx.run(SPOIL))


def test_sound(tmp_path):
    leave(tmp_path, spoil=False)


def test_spoilt(tmp_path):
    leave(tmp_path, spoil=True)


def test_harness():
    with Harness("a") as harness:
        harness.sql(SPOIL)


@pytest.mark.broken("on purpose")
def test_told(tmp_path):
    leave(tmp_path, spoil=True)
"""


@pytest.mark.broken("the violations are planted")
def test_a_broken_file_fails_its_test(tmp_path: Path) -> None:
    """
    A spoilt file in the test's folder or in a harness fails the test that left it.

    A sound file, and one that was announced, do not.
    """
    shutil.copy(ROOT / "tests" / "conftest.py", tmp_path)
    (tmp_path / "test_watched.py").write_text(WATCHED, encoding="utf-8")
    quietly = (
        "-q",
        "-p",
        "no:cacheprovider",
        "-c",
        str(ROOT / "pyproject.toml"),
        "--rootdir",
        str(tmp_path),
    )
    ran = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            *quietly,
            f"--basetemp={tmp_path / 'tmp'}",
            str(tmp_path / "test_watched.py"),
        ],
        capture_output=True,
        text=True,
        check=False,
    )

    assert {"test_spoilt", "test_harness"} == set(
        re.findall(r"^ERROR \S*::(\w+)", ran.stdout, re.MULTILINE)
    ), ran.stdout
    assert "4 passed, 2 errors" in ran.stdout
    assert {"a.db: S2", "invariant='S2'"} <= set(
        re.findall(r"a\.db: S2|invariant='S2'", ran.stdout)
    )
