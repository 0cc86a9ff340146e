"""
Put the schema of an agent's file together: one text, so that a new file is made at once.

The core's tables stand in ``core/core.sql``, those of a feature in ``features/X/X.sql``. The view
of messages stands in ``api/inbox.sql``, because several features say there what a message waits
for: a line that ends in a feature's name is left out with that feature.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

NOTE: Final = (
    "-- Put together from core.sql, inbox.sql and X/X.sql of each feature: change those.\n"
)
OF_FEATURE: Final = re.compile(r"  -- \[(\w+)\]$")


def initial(package: Path) -> str:
    """Return the text of ``0001_initial.sql`` for the features that a folder of onceward has."""
    features = sorted(each.parent.name for each in package.glob("features/*/__init__.py"))
    core = (package / "core" / "core.sql").read_text(encoding="utf-8")
    owned = [package / "features" / each / f"{each}.sql" for each in features]
    parts = [each.read_text(encoding="utf-8") for each in owned if each.exists()]
    return "\n".join([NOTE + core, *parts, _composed(package / "api" / "inbox.sql", features)])


def _composed(view: Path, features: list[str]) -> str:
    """Return a view with the lines of the features that are there."""
    lines = view.read_text(encoding="utf-8").splitlines()
    named = [(OF_FEATURE.search(line), line) for line in lines]
    kept = [line for found, line in named if found is None or found[1] in features]
    return "".join(f"{OF_FEATURE.sub('', line)}\n" for line in kept)
