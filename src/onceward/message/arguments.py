"""
Check the arguments of public calls against the annotations of their parameters.

mypy tells callers that use it; others would get SQLite's error for a wrong type, or a wrong row.
Annotations are read at the first call, so importing costs nothing. The verbs of the hot path check
their values where they use them instead.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cache, wraps
from itertools import chain, cycle
from typing import Any, Final, ParamSpec, TypeVar, cast

from typing_extensions import TypeForm

from onceward.errors import InvalidArgument
from onceward.message.names import quoted
from onceward.message.times import Span, seconds
from onceward.message.validators import check_type

P = ParamSpec("P")
R = TypeVar("R")
C = TypeVar("C", bound=type)
SPAN: Final = typing.get_args(Span)
SPELLED: Final[dict[Any, str]] = {
    str: "text",
    int: "a whole number",
    float: "a number",
    bool: "True or False",
    types.NoneType: "None",
    timedelta: "a timedelta",
    Iterable: "a list",
    Sequence: "a list",
    Mapping: "a mapping",
    type: "a class",
    Callable: "a function",
}


@dataclass(frozen=True, slots=True)
class Accepted:
    """The types of the values that a parameter accepts, and of their items."""

    types: tuple[type, ...]
    items: Accepted | None = None
    """None: any."""
    forms: bool = False
    """Whether it also accepts each type as which a body can be read."""
    choices: frozenset[str] | None = None
    """The only texts; None: any."""
    spans: bool = False
    """Whether its texts are spans of time."""

    def check(self, name: str, value: object) -> None:
        """Raise InvalidArgument for a value of another type."""
        if not isinstance(value, self.types):
            if self.forms:
                check_type(name, value)
                return
            told = " or ".join(dict.fromkeys(SPELLED.get(one, one.__name__) for one in self.types))
            msg = f"{name}={quoted(value)} must be {told}"
            raise InvalidArgument(msg)
        if isinstance(value, str) and self.choices is not None and value not in self.choices:
            msg = f"{name}={quoted(value)} is not one of {', '.join(sorted(self.choices))}"
            raise InvalidArgument(msg)
        if self.spans and value is not None:
            seconds(name, cast("Span", value))
        if self.items is not None and isinstance(value, Collection) and not isinstance(value, str):
            for each in _items(value):
                self.items.check(f"an item of {name}", each)


def checked(call: Callable[P, R]) -> Callable[P, R]:
    """Return *call*, which raises InvalidArgument first for an argument of another type."""
    read = cache(lambda: accepted(call))
    code = call.__code__
    names = code.co_varnames[: code.co_argcount]
    rest = code.co_varnames[code.co_argcount + code.co_kwonlyargcount :][:1]  # of *others

    @wraps(call)
    def checking(*args: P.args, **named: P.kwargs) -> R:
        rules = read()
        positional = zip(chain(names, cycle(rest)), args, strict=False)
        for name, value in chain(positional, named.items()):
            rule = rules.get(name)
            if rule is not None:
                rule.check(name, value)
        return call(*args, **named)

    return checking


def checks_arguments(*, but: Collection[str] = ()) -> Callable[[C], C]:
    """Check the arguments of the public methods of a class, except *but* some."""

    def decorate(cls: C) -> C:
        for name, found in list(vars(cls).items()):
            if isinstance(found, types.FunctionType) and name[0] != "_" and name not in but:
                setattr(cls, name, checked(found))
        return cls

    return decorate


def accepted(call: Callable[..., Any]) -> dict[str, Accepted | None]:
    """Return what each parameter of a function accepts, keyword options included; None: any."""
    written = {name: hint for name, hint in call.__annotations__.items() if name != "return"}
    holder = types.SimpleNamespace(__annotations__=written)
    hints = typing.get_type_hints(holder, globalns=call.__globals__)
    options = [name for name in hints if typing.get_origin(hints[name]) is typing.Unpack]
    for name in options:
        hints |= typing.get_type_hints(typing.get_args(hints.pop(name))[0])
    return {name: _accepted(hint) for name, hint in hints.items()}


def _accepted(hint: Any) -> Accepted | None:
    """Return what an annotation accepts; None for one that is not checked."""
    origin, parts = typing.get_origin(hint), typing.get_args(hint)
    if tuple(part for part in parts if part is not types.NoneType) == SPAN:
        return Accepted((*parts, int), spans=True)
    if origin in {typing.Union, types.UnionType}:
        return _merged([_accepted(part) for part in parts])
    if origin is typing.Literal:
        texts = frozenset(part for part in parts if isinstance(part, str))
        return Accepted(tuple({type(part) for part in parts}), choices=texts)
    if origin is TypeForm:
        return Accepted((), forms=True)
    if hint is float:
        return Accepted((float, int))
    found = hint if origin is None else origin
    if found is datetime:  # the reader of moments says more: which unit, which time zone
        return None
    if (
        not isinstance(found, type)
        or found in {object, Any}
        or getattr(found, "_is_protocol", False)
    ):
        return None
    holds = issubclass(found, Iterable) and origin is not None
    return Accepted((found,), _merged([_accepted(part) for part in parts]) if holds else None)


def _merged(parts: Sequence[Accepted | None]) -> Accepted | None:
    """Return what any of several annotations accepts."""
    known = [part for part in parts if part is not None]
    if len(known) < len(parts):
        return None
    items = next((part.items for part in known if part.items is not None), None)
    found = tuple(chain.from_iterable(part.types for part in known))
    texts = [part.choices for part in known if str in part.types]
    known_texts = [each for each in texts if each is not None]
    all_known = known_texts and len(known_texts) == len(texts)
    choices = frozenset(chain.from_iterable(known_texts)) if all_known else None
    return Accepted(found, items, forms=any(part.forms for part in known), choices=choices)


def _items(value: Collection[object]) -> Iterator[object]:
    """Yield the items of a collection; of a mapping its keys and values."""
    yield from value
    if isinstance(value, Mapping):
        yield from value.values()
