"""
Declare public names that a later release removes: each still works, and warns.

A module's name stands in ``NAMES``, by its dotted path; ``onceward`` looks there for names that it
lacks, and another module does with ``__getattr__ = partial(attribute, __name__)``. A function or a
method is declared by ``@deprecated(…)``. The release that a declaration names removes both. A test
uses each declared name, and fails from that release on as long as the declaration is there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from importlib import import_module
from typing import Any, Final, ParamSpec, TypeVar
from warnings import warn

P = ParamSpec("P")
R = TypeVar("R")


class DeprecatedName(DeprecationWarning):
    """
    The name works as before, and the release ``removed_in`` removes it: use ``instead``.

    ``python -W error::DeprecationWarning`` finds each use.
    """

    def __init__(self, message: str, *, instead: str = "", removed_in: str = "") -> None:
        super().__init__(message)
        self.instead, self.removed_in = instead, removed_in


@dataclass(frozen=True, slots=True, kw_only=True)
class Deprecation:
    """The releases between which a name warns, and the name that replaces it."""

    instead: str
    """For a module's name: the dotted path of the other one."""
    since: str
    removed_in: str

    def warn(self, name: str, *, level: int) -> None:
        """Warn at the line that uses the name: *level* calls above this one."""
        text = (
            f"{name} is deprecated since onceward {self.since} and goes with {self.removed_in}: "
            f"use {self.instead}"
        )
        found = DeprecatedName(text, instead=self.instead, removed_in=self.removed_in)
        warn(found, stacklevel=level + 1)


NAMES: Final[dict[str, Deprecation]] = {}
"""Names of modules, by dotted path."""
CALLS: Final[dict[str, Deprecation]] = {}
"""Functions and methods, by dotted path; filled as their modules are imported."""


def attribute(module: str, name: str) -> Any:
    """
    Return the replacement of a module's deprecated name, and warn.

    Raises:
        AttributeError: the module has no such name, deprecated or not.

    """
    found = NAMES.get(f"{module}.{name}")
    if found is None:
        raise AttributeError(f"module {module!r} has no attribute {name!r}")
    found.warn(f"{module}.{name}", level=3)  # the line that asks a module's __getattr__
    place, _, last = found.instead.rpartition(".")
    return getattr(import_module(place), last)


def deprecated(
    *, instead: str, since: str, removed_in: str
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Declare a function or a method deprecated: each call warns, and does what it did."""
    found = Deprecation(instead=instead, since=since, removed_in=removed_in)

    def declare(function: Callable[P, R]) -> Callable[P, R]:
        name = f"{function.__module__}.{function.__qualname__}"
        CALLS[name] = found

        @wraps(function)
        def warned(*args: P.args, **kwargs: P.kwargs) -> R:
            found.warn(name, level=2)
            return function(*args, **kwargs)

        return warned

    return declare
