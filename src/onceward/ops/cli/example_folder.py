"""Find the examples that commands copy or run."""

from __future__ import annotations

from pathlib import Path

import onceward


def example_folder(name: str) -> Path:
    """Return the folder of an example, in the installed package or in a checkout."""
    package = Path(onceward.__file__).resolve().parent
    packaged = package / "examples" / name
    return packaged if packaged.is_dir() else package.parents[1] / "examples" / name
