"""Restart ``onceward work`` whenever a Python file below the current folder changes."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from onceward.ops.cli.exit_codes import DONE, Usage
from onceward.ops.cli.output import note


def run_again_when_changed(words: Sequence[str]) -> int:
    """
    Run a command in a separate process until a signal; restart it after each change.

    The process is interrupted, so it ends as ``work`` does: started messages are committed or given
    back.

    Raises:
        Usage: watchfiles is not installed.

    """
    try:
        from watchfiles import PythonFilter, run_process  # noqa: PLC0415 - an extra
    except ModuleNotFoundError as error:
        raise Usage("--reload needs watchfiles: pip install watchfiles") from error
    kept = [word for word in words if word not in {"--reload", "--reload=true"}]
    command = shlex.join([sys.executable, "-m", "onceward", *kept])
    os.environ["PYTHONUNBUFFERED"] = "1"
    run_process(
        Path.cwd(),
        target=command,
        target_type="command",
        watch_filter=PythonFilter(),
        callback=lambda changes: note(f"{len(changes)} files changed: restarting"),
        debounce=400,
    )
    return DONE
