"""
Check the arguments of public calls against the annotations of their parameters.

mypy tells callers that use it; others would get SQLite's error for a wrong type, or a wrong row.
Annotations are read at the first call, so importing costs nothing. The verbs of the hot path check
their values where they use them instead.
"""

from __future__ import annotations

import os
import types
import typing
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import cache, wraps
from inspect import unwrap
from itertools import chain, cycle
from typing import Any, Final, ParamSpec, TypeVar, cast

from typing_extensions import TypeForm

from onceward.errors import InvalidArgument
from onceward.message.names import is_text, quoted
from onceward.message.times import Span, seconds
from onceward.message.validators import check_type

P = ParamSpec("P")
R = TypeVar("R")
C = TypeVar("C", bound=type)
SPAN: Final = typing.get_args(Span)
LISTS: Final = {Iterable, Sequence, Collection}
"""Types of lists; a text or a mapping in their place is a mistake, though it can be iterated."""
WORDS: Final = "text"
"""The parameter that is searched for words: any text may hold some."""
MAYBE_EMPTY: Final = {
    "path",
    "name",
    "agent",
    "session",
    "topic",
    "topics",
    "pattern",
    "patterns",
    WORDS,
}
"""Parameters whose empty text finds nothing, or has an error of its own."""
LARGEST: Final = 2**62
"""The largest number of an argument; the file stores its double, less one."""
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
    empty: bool = False
    """Whether its text may be empty."""

    def check(self, name: str, value: object) -> None:
        """Raise InvalidArgument for a value of another type, or one that means nothing."""
        self._check_value(name, value)
        if value == "" and not (self.empty or name in MAYBE_EMPTY):
            raise InvalidArgument(f"{name}='' must not be empty")
        if self.spans and value is not None:
            seconds(name, cast("Span", value))
        elif isinstance(value, int | float) and not 0 <= value <= LARGEST:
            raise InvalidArgument(f"{name}={quoted(value)} must be 0 to {LARGEST}")

    def _check_value(self, name: str, value: object) -> None:
        """Check the type of a value and of its items, and the characters of texts."""
        if not self._fits(value):
            if self.forms:
                check_type(name, value)
                return
            told = " or ".join(dict.fromkeys(SPELLED.get(one, one.__name__) for one in self.types))
            raise InvalidArgument(f"{name}={quoted(value)} must be {told}")
        if isinstance(value, str):
            self._check_text(name, value)
        elif self.items is not None and isinstance(value, Collection):
            for each in _items(value):
                self.items._check_value(f"an item of {name}", each)

    def _fits(self, value: object) -> bool:
        """Return whether a value is of an accepted type; True does not count as a number."""
        if isinstance(value, bool):
            return bool in self.types
        if isinstance(value, str | bytes | Mapping) and self.items is not None:
            return isinstance(value, tuple(set(self.types) - LISTS))
        return isinstance(value, self.types)

    def _check_text(self, name: str, text: str) -> None:
        if self.choices is not None and text not in self.choices:
            msg = f"{name}={quoted(text)} is not one of {', '.join(sorted(self.choices))}"
            raise InvalidArgument(msg)
        if name == WORDS:
            return
        if "\0" in text or not (os.PathLike in self.types or is_text(text)):
            msg = f"{name}={quoted(text)} must hold neither NUL nor half a surrogate pair"
            raise InvalidArgument(msg)


def checked(call: Callable[P, R]) -> Callable[P, R]:
    """Return *call*, which raises InvalidArgument first for an argument of another type."""
    code = unwrap(call).__code__
    names = code.co_varnames[: code.co_argcount]
    rest = code.co_varnames[code.co_argcount + code.co_kwonlyargcount :][:1]  # of *others

    @wraps(call)
    def checking(*args: P.args, **named: P.kwargs) -> R:
        positional = zip(chain(names, cycle(rest)), args, strict=False)
        _check_all(call, chain(positional, named.items()))
        try:
            return call(*args, **named)
        except Exception as error:
            explain = getattr(getattr(args and args[0], "_db", None), "explain", None)
            meant = error if explain is None else explain(error)
            if meant is error:
                raise
            raise meant from error

    return checking


def check_given(call: Callable[..., object], given: Mapping[str, object]) -> None:
    """
    Check the arguments that a function was called with.

    For one that leases: around its call, an exception of a signal would lose what it returns.
    """
    _check_all(call, given.items())


def _check_all(call: Callable[..., object], given: Iterable[tuple[str, object]]) -> None:
    rules = _accepted_by(unwrap(call))
    for name, value in given:
        rule = rules.get(name)
        if rule is not None:
            rule.check(name, value)


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
    found = {name: _accepted(hint) for name, hint in hints.items()}
    for name in _maybe_empty(call):
        rule = found.get(name)
        if rule is not None:
            found[name] = replace(rule, empty=True)
    return found


_accepted_by: Final = cache(accepted)


def _maybe_empty(call: Callable[..., Any]) -> Iterator[str]:
    """Yield the parameters whose default is an empty text."""
    code, defaults = call.__code__, call.__defaults__ or ()
    positional = code.co_varnames[code.co_argcount - len(defaults) : code.co_argcount]
    given = chain(zip(positional, defaults, strict=True), (call.__kwdefaults__ or {}).items())
    return (name for name, default in given if default == "")


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
