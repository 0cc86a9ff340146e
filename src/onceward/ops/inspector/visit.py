"""Say which reader asks for a page, and under which prefix the pages are."""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote

from starlette.types import Scope

from onceward.errors import InvalidArgument


@dataclass(frozen=True, slots=True)
class Reader:
    """
    A reader of the pages, as ``allow`` of ``inspector`` returns it.

    *name* is written to the audit file with each action. With *write* pages offer actions.
    """

    name: str
    write: bool = False

    def __post_init__(self) -> None:
        """Refuse values of another type."""
        if not isinstance(self.name, str):
            raise InvalidArgument(f"name={self.name!r} must be text")
        if not isinstance(self.write, bool):
            raise InvalidArgument(f"write={self.write!r} must be True or False")


@dataclass(frozen=True, slots=True)
class Visit:
    """One request: its reader, and the prefix of all addresses."""

    prefix: str = ""
    reader: Reader = Reader("", write=True)


VISIT: Final = ContextVar("VISIT", default=Visit())  # noqa: B039 - frozen
"""The request that this context answers; threads that build its page have a copy."""


def local(path: str) -> str:
    """Return the address of a path of the inspector, under the prefix of this request."""
    return VISIT.get().prefix + path


def prefix_of(scope: Scope) -> str:
    """Return the prefix of addresses: where the application is mounted, behind which proxy."""
    return quote(scope.get("root_path", "").rstrip("/"))


def rooted(scope: Scope) -> Scope:
    """
    Return a scope whose path begins with its root path.

    ``FastAPI(root_path=...)`` behind a proxy that strips the prefix gives a path without it, in
    which a mounted application would not find its routes.
    """
    path, root = scope["path"], scope.get("root_path", "")
    proxy: Any = scope.get("app_root_path", "")
    if not proxy or path.startswith(root) or not path.startswith(root.removeprefix(proxy)):
        return scope
    return {**scope, "path": proxy + path}
