"""
Read settings from the environment and from the nearest pyproject.toml.

It is in ``file``, the lowest layer that does I/O; the merge itself is ``Settings.merge``.
"""

from __future__ import annotations

import os
from collections.abc import Container, Mapping
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from onceward.errors import InvalidArgument
from onceward.message.names import PREFIX

if TYPE_CHECKING:
    from onceward.message.settings import Settings

DISABLED: Final = "ONCEWARD_DISABLED"
VARIABLES: Final[Container[Any]] = getattr(os.environ, "_data", os.environ)
"""The encoded names of all variables; asked itself, ``os.environ`` handles two exceptions, 5 µs."""
SWITCH: Final = DISABLED if VARIABLES is os.environ else os.environ.encodekey(DISABLED)
"""The name in ``VARIABLES`` of the variable that may disable sending and receiving."""
TARGETS: Final = ("home", "db", "agent", "session")
"""Names in environment and project that are not settings: the file and session of a command."""
PROJECT_FILE: Final = "pyproject.toml"
SECTION: Final = "[tool.onceward"
PATHS: Final = ("home", "db")
"""Names of paths, which are relative to the folder of the file that sets them."""


def load_settings(
    given: Settings | None, overrides: Mapping[str, Any], env: Mapping[str, str] | None = None
) -> Settings:
    """
    Merge overrides, settings, environment, project and defaults, in that precedence.

    With *env* the process's environment and its project are both ignored.

    Raises:
        InvalidArgument: a value is out of its bounds or a name is unknown.

    """
    from onceward.message.settings import Settings  # noqa: PLC0415 - commands that only read

    if env is not None:
        return Settings.merge(given, overrides, env=env)
    section = {name: value for name, value in project_section().items() if name not in TARGETS}
    return Settings.merge(given, overrides, env=os.environ, project=section)


def env_or_project(word: str) -> str | None:
    """Return ``home``, ``db``, ``agent`` or ``session`` of environment or project, else None."""
    found = os.environ.get(PREFIX + word.upper()) or project_section().get(word)
    return str(found) if found else None


def disabled_by_environment(env: Mapping[str, str] | None = None) -> bool:
    """Return whether ONCEWARD_DISABLED switches sending and receiving off in this process."""
    if env is None:
        if SWITCH not in VARIABLES:
            return False
        env = os.environ
    return env.get(DISABLED, "").strip().lower() in {"1", "true", "yes", "on"}


def project_section(start: Path | None = None) -> dict[str, Any]:
    """
    Return ``[tool.onceward]`` of the nearest pyproject.toml with that section, in *start* or above.

    It is empty if no file has one; *start* is the current folder by default.

    Raises:
        InvalidArgument: that file is not TOML.

    """
    try:
        here = start or Path.cwd()
    except FileNotFoundError:  # it was deleted: it has no project
        return {}
    for folder in (here, *here.parents):
        path = folder / PROJECT_FILE
        try:
            changed = path.stat().st_mtime_ns
        except OSError:
            continue
        if found := _section(path, changed):
            return dict(found)
    return {}


@lru_cache(maxsize=64)
def _section(path: Path, changed: int) -> dict[str, Any]:
    del changed  # a changed file is another entry
    text = path.read_text(encoding="utf-8")
    if SECTION not in text:
        return {}
    import tomllib  # noqa: PLC0415 - needed only where a project has the section

    try:
        found: dict[str, Any] = tomllib.loads(text).get("tool", {}).get("onceward", {})
    except tomllib.TOMLDecodeError as error:
        raise InvalidArgument(f"{path}: {error}") from error
    return found | {name: str(path.parent / str(found[name])) for name in PATHS if name in found}
