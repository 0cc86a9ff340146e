"""Recognise a function that is an earlier one, made again: a cell or a module ran again."""

from __future__ import annotations

from functools import partial
from inspect import unwrap
from pathlib import Path
from types import FunctionType
from typing import Any, Final
from weakref import WeakKeyDictionary

_loads: Final = WeakKeyDictionary[FunctionType, object]()
"""The load of the module by which each declared function was made; a reload has a new spec."""


def declared(call: Any) -> None:
    """Record a function that an agent keeps."""
    function = _function_of(call)
    if function is not None:
        _loads[function] = function.__globals__.get("__spec__")


def same_place(known: Any, new: Any) -> bool:
    """
    Return whether *new* is *known*, made again at the same place of a source.

    Two functions of one name in a file are two, and so are those of one place that use other
    values. But the text of a notebook's cell is in no file, and the lines of a file that is loaded
    again may have changed: there the name is enough.
    """
    if known is new:
        return False
    first, second = _function_of(known), _function_of(new)
    if first is None or second is None:
        return False
    if (_name(first), _given(known)) != (_name(second), _given(new)):
        return False
    path = second.__code__.co_filename
    if not Path(path).exists():
        return True
    if path != first.__code__.co_filename:
        return False
    at = first.__code__.co_firstlineno == second.__code__.co_firstlineno
    return (at and _values(first) == _values(second)) or _is_loaded_again(first, second)


def _is_loaded_again(first: FunctionType, second: FunctionType) -> bool:
    """Return whether the module of two functions was executed between them."""
    if first.__globals__ is not second.__globals__:
        return True
    spec = second.__globals__.get("__spec__")
    return _loads.get(first, spec) is not spec


def _function_of(call: Any) -> FunctionType | None:
    """Return the function that the user wrote, without decorators; None for another callable."""
    found = unwrap(call.func if isinstance(call, partial) else call)
    return found if isinstance(found, FunctionType) else None


def _name(function: FunctionType) -> tuple[str, str]:
    return function.__module__, function.__qualname__


def _values(function: FunctionType) -> tuple[object, ...]:
    return function.__closure__, function.__defaults__, function.__kwdefaults__


def _given(call: Any) -> tuple[object, ...]:
    return (call.args, call.keywords) if isinstance(call, partial) else ()
