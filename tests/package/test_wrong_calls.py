"""Misspelt options, filters, modes and events are errors of the type checker."""

import os
from pathlib import Path

from mypy import api

CONFIG = """
[mypy]
strict = True
warn_unused_ignores = True
"""


def test_wrong_calls_are_refused_by_mypy(tmp_path: Path, root: Path) -> None:
    """Each marked line of ``wrong_calls.py`` gives its marked error, and no other line any."""
    cache = Path(os.environ.get("MYPY_CACHE_DIR", root / ".mypy_cache"), "calls")
    config = tmp_path / "mypy.ini"
    config.write_text(CONFIG, encoding="utf-8")
    calls = Path(__file__).with_name("wrong_calls.py")

    said, problems, _ = api.run(
        [
            "--config-file",
            str(config),
            "--cache-dir",
            str(cache),
            "--no-error-summary",
            str(calls),
        ]
    )

    assert ("", "") == (said, problems)
