"""``onceward bench`` and ``onceward prove``: run the harnesses of a clone of the repository."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

import onceward
from onceward.cli.exit_codes import Usage

Arguments = Annotated[str, Parameter(allow_leading_hyphen=True)]


def bench(*arguments: Arguments) -> int:
    """
    Measure what the library costs on this machine; works in a clone.

    Args:
        arguments: Those of ``python -m tests.bench``, which ``--help`` there explains.

    """
    return _run("tests.bench", arguments)


def prove(*arguments: Arguments) -> int:
    """
    Try to break the promises; works in a clone.

    Args:
        arguments: Those of ``python -m tests.proof``, which ``--help`` there explains.

    """
    return _run("tests.proof", arguments)


def _run(module: str, arguments: tuple[str, ...]) -> int:
    clone = Path(onceward.__file__).resolve().parents[2]
    if not (clone / Path(*module.split("."))).is_dir():
        msg = f"{module} is part of the repository, not of the package: clone it and install it with pip install -e '.[test]'"
        raise Usage(msg)
    path = os.pathsep.join(filter(None, (str(clone), os.environ.get("PYTHONPATH"))))
    command = [sys.executable, "-m", module, *arguments]
    return subprocess.run(command, env=os.environ | {"PYTHONPATH": path}, check=False).returncode  # noqa: S603 - our own program
