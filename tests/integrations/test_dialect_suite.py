"""SQLAlchemy's own suite for dialects passes; ``requirements.py`` says what does not apply."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

SUITE = Path(__file__).with_name("dialect_suite")
LEAST = 900
"""Tests that must have passed: a suite that leaves out more is not proof."""


@pytest.mark.proof
@pytest.mark.parametrize("engine", ["default", "loop"])
def test_the_suite_passes(tmp_path: Path, engine: str) -> None:
    """A pytest of its own runs it on one open postbox, by the sync or the asyncio engine."""
    ran = subprocess.run(
        [
            sys.executable, "-m", "pytest", "-q", "-p", "tests.integrations.dialect_suite.plugin",
            "-p", "no:cacheprovider", "-c", str(SUITE / "setup.cfg"), "--confcutdir", str(SUITE),
            str(SUITE / "cases.py"), "--db", engine,
        ],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        capture_output=True,
        text=True,
        check=False,
    )  # fmt: skip
    passed = re.search(r"(\d+) passed", ran.stdout)

    assert 0 == ran.returncode, ran.stdout[-5000:]
    assert passed is not None
    assert int(passed[1]) >= LEAST
