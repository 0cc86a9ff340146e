"""What a project says of itself under ``[tool.onceward]`` in its pyproject.toml, for the folder that we run in."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from onceward.errors import InvalidArgument

FILE: Final = "pyproject.toml"
SECTION: Final = "[tool.onceward"
PLACES: Final = ("home", "db")
"""Paths, which are relative to the folder of the file that names them."""


def project_section(start: Path | None = None) -> dict[str, Any]:
    """
    Return the section of the nearest pyproject.toml that has one, in *start* or above; empty where none has.

    Raises:
        InvalidArgument: that file is no TOML.

    """
    here = Path(start or Path.cwd())
    for folder in (here, *here.parents):
        path = folder / FILE
        try:
            changed = path.stat().st_mtime_ns
        except OSError:
            continue
        if found := _section(path, changed):
            return dict(found)
    return {}


@lru_cache(maxsize=64)
def _section(path: Path, changed: int) -> dict[str, Any]:
    del changed  # a file that changed is another entry
    text = path.read_text(encoding="utf-8")
    if SECTION not in text:
        return {}
    import tomllib  # noqa: PLC0415 - only where a project says something

    try:
        found: dict[str, Any] = tomllib.loads(text).get("tool", {}).get("onceward", {})
    except tomllib.TOMLDecodeError as error:
        msg = f"{path}: {error}"
        raise InvalidArgument(msg) from error
    return found | {name: str(path.parent / str(found[name])) for name in PLACES if name in found}
