"""Name a step, and compare its arguments by digests."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from hashlib import sha256
from typing import Any, Final

from pydantic_core import to_json

from onceward.core.handle.signatures import name_of
from onceward.errors import Conflict, InvalidArgument, InvalidMessage
from onceward.features.steps.stored import StepName
from onceward.message.body import BYTES, TEXT, canonical, encode
from onceward.message.handler_options import StepRules
from onceward.message.round_trip import refuse_lost

SHORT: Final = 12
"""Digits of a digest, enough to distinguish arguments of one step."""
LAMBDA: Final = "<lambda>"
PLAIN: Final[tuple[object, ...]] = (str, int, float, bool, bytes, dict, list)
"""Annotations that are used as types."""


def base_name(function: Callable[..., Any], rules: StepRules) -> str:
    """Return the name of a step without its ordinal; raise InvalidArgument for a lambda."""
    found = rules.name or name_of(function)
    if found == LAMBDA:
        raise InvalidArgument("a lambda has no name by which its step could be found: set name='…'")
    return found


def digests(args: tuple[Any, ...], named: Mapping[str, Any], step: str) -> str:
    """
    Return the digests of a step's arguments, as JSON by position or name.

    Raises:
        InvalidArgument: an argument cannot be written as JSON.

    """
    given = {str(place): value for place, value in enumerate(args, 1)} | dict(named)
    found = {place: _digest(place, value, step) for place, value in given.items()}
    return to_json(found).decode()


def _digest(place: str, value: Any, step: str) -> str:
    try:
        media, text, _ = encode(value)
    except InvalidMessage as error:
        raise InvalidArgument(
            f"step {step}: argument {place} cannot be compared at the next call ({error}): bind "
            "it to the function with functools.partial"
        ) from error
    # Text, bytes and integers are written in one way.
    same = text if media in {BYTES, TEXT} or text.isdecimal() else canonical(text)
    return sha256(f"{media}\0{same}".encode()).hexdigest()[:SHORT]


def check_same(name: StepName, known: str, given: str, message_id: str) -> None:
    """Raise Conflict if a step had other arguments when its result was stored."""
    if known == given:
        return
    before, now = json.loads(known), json.loads(given)
    places = sorted(
        place for place in before.keys() | now.keys() if before.get(place) != now.get(place)
    )
    told = ", ".join(
        f"argument {each} was {before.get(each, 'not given')} and is {now.get(each, 'not given')}"
        for each in places
    )
    msg = (
        f"step {name} had other arguments when its result was stored (by digest, {told}):"
        " pass the same ones at each call, or set version='…' if it is another step now"
    )
    raise Conflict(msg, message_id=message_id, key=str(name), differs=tuple(places))


def check_kept(name: StepName, result: object, read: object) -> None:
    """Raise InvalidMessage if a result is read as another value than its function returned."""
    try:
        refuse_lost(result, read)
    except ValueError as error:
        msg = f"step {name}: its return annotation loses a part of its result: {error}"
        raise InvalidMessage(msg) from error


def result_type(function: Callable[..., Any]) -> Any:
    """Return the return annotation of a function; None if it has no usable one."""
    plain: Any = function
    while hasattr(plain, "func"):
        plain = plain.func
    said = getattr(plain, "__annotations__", {}).get("return")
    if said is None or said in PLAIN:
        return said
    from typing import get_type_hints  # noqa: PLC0415 - rarely needed

    try:
        found = get_type_hints(plain, include_extras=True).get("return")
    except (NameError, TypeError):
        return None
    return None if found is type(None) else found
