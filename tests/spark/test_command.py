"""
The command as a user calls it, in a process of its own.

The demo finds what it made, and a broken fleet ends with 1.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="pip install 'onceward[spark]' brings it")


def _run(*tokens: str) -> tuple[int, dict[str, object]]:
    done = subprocess.run(
        [sys.executable, "-m", "onceward", *tokens, "--json"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout, done.stderr
    said: dict[str, object] = json.loads(done.stdout)
    return done.returncode, said


@pytest.mark.broken("everything that can go wrong went wrong in these files")
def test_the_demo_finds_all_it_made_and_reconciling_says_that_it_is_broken(tmp_path: Path) -> None:
    """
    One command shows all; the other ends with 1 on the same files.

    It prints its findings as one document.
    """
    code, said = _run("fleet", "demo", "--engine", "spark", "--home", str(tmp_path / "home"))
    assert (0, True) == (code, said["ok"])

    code, said = _run(
        "fleet",
        "reconcile",
        "--engine",
        "spark",
        str(tmp_path / "home" / "agents"),
        "--out",
        str(tmp_path / "out"),
        "--grace",
        "0s",
    )
    assert 1 == code
    assert {"lost": 46, "duplicated": 6, "double_processed": 7}.items() <= dict(
        said["verdicts"]
    ).items()  # type: ignore[call-overload]
    assert Path(str(said["report"])).is_file()
