"""What ``from onceward import …`` offers: every name listed, and every name explained."""

import inspect
from collections.abc import Iterator
from types import ModuleType

import onceward


def test_a_newcomer_has_few_names_to_learn() -> None:
    """The package itself offers at most thirty names; rare ones are in modules of their own."""
    assert len(onceward.__all__) <= 30


def test_all_is_sorted() -> None:
    """A reader finds a name at its place in the alphabet."""
    assert sorted(onceward.__all__) == list(onceward.__all__)


def test_all_lists_what_is_exported() -> None:
    """What is importable without an underscore is listed, and what is listed is importable."""
    listed = {name for name in onceward.__all__ if hasattr(onceward, name)}
    public = {
        name
        for name, value in vars(onceward).items()
        if not name.startswith("_")
        and (not isinstance(value, ModuleType) or name in onceward.__all__)
    }

    assert set(onceward.__all__) == listed
    assert set() == public - listed


def test_every_public_name_is_explained() -> None:
    """``help()`` on any exported class, function or method says what it promises."""
    silent = [
        name
        for exported in onceward.__all__
        for name in _silent(exported, getattr(onceward, exported))
    ]

    assert [] == silent


def _silent(name: str, value: object) -> Iterator[str]:
    if inspect.isclass(value):
        if not value.__dict__.get("__doc__") or str(value.__doc__).startswith(f"{value.__name__}("):
            yield name  # dataclasses write "Name(field: type)" where no docstring was written
        yield from (
            f"{name}.{member}"
            for member in _members(value)
            if not inspect.getdoc(getattr(value, member))
        )
    elif (callable(value) or isinstance(value, ModuleType)) and not inspect.getdoc(value):
        yield name


def _members(cls: type) -> list[str]:
    ours = [base for base in cls.__mro__ if base.__module__.partition(".")[0] == "onceward"]
    return sorted(
        {
            name
            for base in ours
            for name, value in vars(base).items()
            if not name.startswith("_")
            and isinstance(value, property | classmethod | staticmethod | type(_silent))
        }
    )
