"""
Bring bodies of older versions of a message class up to its newest one.

The version of a body is a parameter of its media type, ``application/json;version=3``, so it goes
wherever the body goes: frames, results of steps, replies, schedules. Without it, it is 1.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from functools import lru_cache
from typing import Any, Final, Protocol

from onceward.errors import InvalidArgument, InvalidVersion
from onceward.message.error_text import error_text
from onceward.message.names import quoted

PARAMETER: Final = ";version="
NEWEST_MAX: Final = 9999
Upcast = Callable[[Any], Any]
"""Returns the body of one version as that of the next."""


class Versioned(Protocol):
    """A message class with a version."""

    __message_type__: str
    __message_version__: int
    __upcasts__: dict[int, Upcast]


def check_version(given: object, name: str) -> None:
    """Raise InvalidArgument unless the version of a class is a number from 1."""
    if isinstance(given, int) and not isinstance(given, bool) and 1 <= given <= NEWEST_MAX:
        return
    raise InvalidArgument(f"version={quoted(given)} of {name} must be a number from 1")


@lru_cache(maxsize=1024)
def version_of(media: str) -> int:
    """Return the version of a body; 1 if its media type names none."""
    _, _, text = media.partition(PARAMETER)
    number = text.partition(";")[0]
    return int(number) if number.isdecimal() and number.isascii() and len(number) < 10 else 1  # noqa: PLR2004


def sent_again(data: Any, media: str) -> Any:
    """Return a stored JSON body as one that is sent with the version that it has."""
    version = version_of(media)
    return data if version == 1 else _kept(type(data), version)(data)  # type: ignore[arg-type]  # classes are hashable


@lru_cache(maxsize=1024)
def _kept(kind: type, version: int) -> Callable[[Any], Any]:
    """Return a class of dicts or lists that are sent with a version."""
    if kind not in (dict, list):
        return lambda data: data
    return type("Body", (kind,), {"__message_version__": version})


def brought_up(value: Any, model: Versioned, media: str) -> Any:
    """
    Return a JSON body as the newest version of its class has it.

    Raises:
        InvalidVersion: it is newer than the class, or a function that brings it up failed.

    """
    version, newest = version_of(media), model.__message_version__
    if version > newest:
        raise InvalidVersion(
            f"the body has version {version} of {model.__message_type__}, and this program knows "
            f"{newest}: a newer program can read it",
            newer=True,
        )
    value = deepcopy(value) if version < newest else value
    for each in range(version, newest):
        upcast = model.__upcasts__.get(each)
        if upcast is not None:
            value = _next(upcast, value, model, each)
    return value


def _next(upcast: Upcast, value: Any, model: Versioned, version: int) -> Any:
    try:
        return upcast(value)
    except Exception as error:
        raise InvalidVersion(
            f"{quoted(getattr(upcast, '__name__', upcast))} could not bring version {version} of "
            f"{model.__message_type__} up: {error_text(error)}"
        ) from error
