"""Read and write the fields of an object of the user: a model, a dataclass, a dict, another."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from functools import cached_property
from typing import Any, Final, get_type_hints

from pydantic import BaseModel, TypeAdapter

WHOLE: Final = ""
"""Name of the one field of a list or a set."""
CONTAINERS: Final = (list, set, dict)
PLAIN: Final = (str, bytes, int, float, complex, tuple, frozenset, type(None))
"""Objects that nothing can change."""


def fields_of(of: object) -> dict[str, Any]:
    """Return the fields of an object by name; none of one that nothing can change."""
    if isinstance(of, PLAIN):
        return {}
    if isinstance(of, dict):
        return dict(of)
    if isinstance(of, CONTAINERS):
        return {WHOLE: of}
    if isinstance(of, BaseModel):
        return {**vars(of), **(of.__pydantic_extra__ or {}), **(of.__pydantic_private__ or {})}
    names = [*getattr(of, "__dict__", ()), *_slots(type(of))]
    return {
        name: getattr(of, name)
        for name in names
        if hasattr(of, name) and not isinstance(getattr(type(of), name, None), cached_property)
    }


def set_field(of: Any, name: str, value: object) -> None:
    """Set a field, also of a frozen object, without its validation."""
    if name == WHOLE:
        refill(of, value)
    elif isinstance(of, dict):
        of[name] = value
    elif isinstance(of, BaseModel):
        place = _place(of, name)
        place[name] = value
        if place is not of.__pydantic_private__:
            of.__pydantic_fields_set__.add(name)
    else:
        object.__setattr__(of, name, value)


def delete_field(of: Any, name: str) -> None:
    """Delete a field, if it is there."""
    if isinstance(of, dict):
        of.pop(name, None)
    elif isinstance(of, BaseModel):
        _place(of, name).pop(name, None)
    elif name in fields_of(of):
        object.__delattr__(of, name)


def refill(now: Any, then: Any) -> bool:
    """Give an object what another one of its kind holds; return False if they differ in kind."""
    kind = next((each for each in CONTAINERS if isinstance(now, each)), type(now))
    if not isinstance(then, kind) or isinstance(now, PLAIN):
        return False
    if kind in CONTAINERS:
        now.clear()
        put = now.extend if kind is list else now.update
        put(then)
        return True
    for name, value in fields_of(then).items():
        set_field(now, name, value)
    return True


def adapters_of(of: Any) -> dict[str, TypeAdapter[Any] | None]:
    """Return adapters that write and read the annotated fields; None if pydantic cannot."""
    kind: Any = type(of)
    if isinstance(of, CONTAINERS):
        return {WHOLE: TypeAdapter(next(each for each in CONTAINERS if isinstance(of, each)))}
    if isinstance(of, BaseModel):
        types: dict[str, Any] = {name: info.annotation for name, info in kind.model_fields.items()}
    else:
        types = {}
    with suppress(NameError, TypeError):  # a name that exists only in a function
        types = {**get_type_hints(kind, include_extras=True), **types}
    return {name: _adapter(each) for name, each in types.items()}


def same(now: Any, then: Any) -> bool:
    """Return whether two values are equal, also those of classes without an ``__eq__``."""
    try:
        if now == then:
            return True
    except Exception:  # noqa: BLE001 - a comparison of the user's class
        return False
    if type(now) is not type(then) or isinstance(now, PLAIN):
        return False
    if isinstance(now, list):
        return len(now) == len(then) and all(map(same, now, then))
    ours, theirs = fields_of(now), fields_of(then)
    return ours.keys() == theirs.keys() != {WHOLE} and all(
        same(value, theirs[name]) for name, value in ours.items()
    )


def _slots(kind: type[Any]) -> Iterable[str]:
    for each in kind.__mro__:
        named = vars(each).get("__slots__", ())
        yield from (named,) if isinstance(named, str) else named


def _place(of: BaseModel, name: str) -> dict[str, Any]:
    """Return the dict of a model that holds a field."""
    for each in (of.__pydantic_private__, of.__pydantic_extra__):
        if each is not None and name in each:
            return each
    if name.startswith("_") and of.__pydantic_private__ is not None:
        return of.__pydantic_private__
    if name not in type(of).model_fields and of.__pydantic_extra__ is not None:
        return of.__pydantic_extra__
    return vars(of)


def _adapter(kind: Any) -> TypeAdapter[Any] | None:
    try:
        return TypeAdapter(kind)
    except Exception:  # noqa: BLE001 - what a type of the user's raises
        return None
