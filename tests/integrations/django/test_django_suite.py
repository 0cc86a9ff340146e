"""Django's own tests of task backends pass with ours; ``cases.py`` says which ones do not apply."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

FOLDER = os.environ.get("ONCEWARD_DJANGO_TESTS", "")
"""The folder ``tests`` of Django's source; CI downloads that of the installed version."""
LEAST = 65
"""Tests that must have run: a suite that leaves out more is not proof."""


@pytest.mark.skipif(find_spec("django.tasks") is None, reason="Django before 6.0 has no tasks")
@pytest.mark.skipif(not FOLDER, reason="ONCEWARD_DJANGO_TESTS names no folder of Django's tests")
def test_the_suite_passes(tmp_path: Path) -> None:
    """A process of its own runs the files unchanged, with our backend under Django's two names."""
    ran = subprocess.run(
        [sys.executable, "-m", "tests.integrations.django.task_suite.cases", FOLDER],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])},
        capture_output=True,
        text=True,
        check=False,
    )
    count = re.search(r"^Ran (\d+) tests", ran.stderr, re.MULTILINE)

    assert 0 == ran.returncode, ran.stderr[-5000:]
    assert count is not None
    assert int(count[1]) >= LEAST
