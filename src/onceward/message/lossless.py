"""Find values of a body that JSON would alter, and write sets in one order."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import is_dataclass
from enum import Enum
from functools import lru_cache
from typing import Any, Final

from pydantic import BaseModel, ConfigDict, PydanticUserError, TypeAdapter
from pydantic_core import to_json

from onceward.message.quoting import quoted

BYTES_AS_BASE64: Final = ConfigDict(ser_json_bytes="base64", val_json_bytes="base64")
LOOSE: Final = frozenset({"any", "bytes", "frozenset", "set"})
"""Parts of a class that do not say, each alone, that its JSON is read back as it was written."""
SEQUENCES: Final = (list, tuple, deque)


@lru_cache(maxsize=1024)
def adapter(wanted: Any) -> TypeAdapter[Any]:
    """
    Return the validator of a type, built once.

    Bytes are base64 wherever the type has no configuration of its own that says otherwise.
    """
    try:
        return TypeAdapter(wanted, config=BYTES_AS_BASE64)
    except PydanticUserError as error:
        if error.code != "type-adapter-config-unused":
            raise
    if issubclass(wanted, BaseModel):
        return TypeAdapter(wanted)
    return TypeAdapter(wanted | None, config=BYTES_AS_BASE64)  # handed down to a dataclass


@lru_cache(maxsize=1024)
def is_loose(kind: type, *, trusted: frozenset[str] = frozenset()) -> bool:
    """Return whether a class has parts whose values JSON may alter, but for *trusted* ones."""
    found = set(_parts(adapter(kind).core_schema))
    return not LOOSE.isdisjoint(found - trusted)


def _parts(schema: object) -> Iterator[str]:
    """Yield the kinds of all parts of a class; fields beyond the declared ones are of any kind."""
    if isinstance(schema, dict):
        if isinstance(kind := schema.get("type"), str):
            yield kind
        if "allow" in (schema.get("extra_behavior"), schema.get("extra_fields_behavior")):
            yield "any"
        for part in schema.values():
            yield from _parts(part)
    elif isinstance(schema, list | tuple):
        for part in schema:
            yield from _parts(part)


def ordered(sent: object, written: Any) -> Any:
    """Return the JSON value *written* for *sent*, with the members of sets sorted by their text."""
    match sent:
        case set() | frozenset() if isinstance(written, list):
            return sorted(written, key=to_json)
        case dict() if isinstance(written, dict) and len(sent) == len(written):
            pairs = zip(sent.values(), written.items(), strict=True)
            return {key: ordered(value, each) for value, (key, each) in pairs}
        case list() | tuple() | deque() if isinstance(written, list) and len(sent) == len(written):
            return [ordered(*pair) for pair in zip(sent, written, strict=True)]
    return written


def altered(sent: object, back: object, path: str = "") -> Iterator[str]:
    """
    Yield what of *sent* does not come back: bytes, keys that are no text, and iterators.

    *back* is what the recipient reads. Tuples and sets that come back as lists,
    and dates and numbers that come back as text, are as documented.
    """
    if isinstance(sent, Enum):
        sent = sent.value
    match sent:
        case bytes() | bytearray() | memoryview():
            if sent != back:
                yield f"{path or 'it'}: bytes, which JSON has no word for: send base64 text"
        case Mapping():
            yield from _altered_items(sent, back, path)
        case list() | tuple() | deque() | set() | frozenset():
            others = back if isinstance(back, SEQUENCES) else ()
            for at, value in enumerate(sent):
                other = others[at] if at < len(others) else None
                yield from altered(value, other, f"{path}[{at}]")
        case Iterator():
            yield f"{path or 'it'}: an iterator, which can be read once only: send a list"


def _altered_items(sent: Mapping[Any, Any], back: object, path: str) -> Iterator[str]:
    others = back if isinstance(back, Mapping) else {}
    for key, value in sent.items():
        if not isinstance(key, str) and key not in others:
            yield f"{path or 'it'}: key {quoted(key)} is no text: JSON has text keys only"
        yield from altered(value, others.get(key), f"{path}.{key}" if path else str(key))


def nested_models(sent: object) -> Iterable[object]:
    """Yield the models and dataclasses inside an untyped body."""
    if isinstance(sent, BaseModel) or (is_dataclass(sent) and not isinstance(sent, type)):
        yield sent
        return
    parts = sent.values() if isinstance(sent, dict) else sent
    if isinstance(parts, type({}.values()) | list | tuple | deque | set | frozenset):
        for part in parts:
            yield from nested_models(part)
