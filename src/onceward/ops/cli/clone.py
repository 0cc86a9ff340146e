"""``onceward bench`` and ``onceward prove``: run the harnesses of a clone of the repository."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Annotated, Final

import onceward
from onceward.ops.cli.exit_codes import Usage
from onceward.ops.cli.options import said

BENCH: Final = "Arguments of python -m tests.bench; --help lists them."
PROVE: Final = "Arguments of python -m tests.proof; --help lists them."
Bench = Annotated[str, said(BENCH, allow_leading_hyphen=True)]
Prove = Annotated[str, said(PROVE, allow_leading_hyphen=True)]


def bench(*arguments: Bench) -> int:
    """Measure what the library costs on this machine; needs a clone of the repository."""
    return _run("tests.bench", arguments)


def prove(*arguments: Prove) -> int:
    """Try to break the promises; needs a clone of the repository."""
    return _run("tests.proof", arguments)


def folder() -> Path:
    """Return the folder that is a clone if the package is imported from one."""
    return Path(onceward.__file__).resolve().parents[2]


def _run(module: str, arguments: tuple[str, ...]) -> int:
    clone = folder()
    if not (clone / Path(*module.split("."))).is_dir():
        cure = "clone it and install it with pip install -e '.[test]'"
        msg = f"{module} is part of the repository, not of the package: {cure}"
        raise Usage(msg)
    path = os.pathsep.join(filter(None, (str(clone), os.environ.get("PYTHONPATH"))))
    command = [sys.executable, "-m", module, *arguments]
    environment = os.environ | {"PYTHONPATH": path}
    return subprocess.run(command, env=environment, check=False).returncode  # noqa: S603 - ours
