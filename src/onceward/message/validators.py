"""Build the validator and the JSON schema of a type, each once, and validate values with it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import lru_cache
from inspect import isroutine
from threading import get_ident
from typing import Any, Final, TypeVar

from pydantic import BaseModel, ConfigDict, PydanticUserError, TypeAdapter, ValidationError
from pydantic_core import to_json

from onceward.errors import InvalidArgument
from onceward.message.names import quoted
from onceward.message.validating import validating

BYTES_AS_BASE64: Final = ConfigDict(ser_json_bytes="base64", val_json_bytes="base64")
VALUES: Final = (str, bytes, int, float, list, tuple, dict, set, frozenset)
"""Types of values that are given by mistake in place of a type."""
SCHEMA_MAX: Final = 8000
"""Maximum characters of a body schema that other agents see."""
REPLY_SCHEMA_MAX: Final = 4096
"""Maximum characters of the reply schema that a request carries."""
FAULTS: Final = 3
"""Maximum faults that one error names; the others are counted."""
M = TypeVar("M", bound=BaseModel)


@dataclass(frozen=True, slots=True, eq=False)
class _Unhashable:
    """A type whose metadata cannot be hashed, such as ``Annotated[int, Field(gt=0)]``, as a key."""

    wanted: Any

    def __hash__(self) -> int:
        return id(self.wanted)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Unhashable) and other.wanted is self.wanted


def adapter(wanted: Any) -> TypeAdapter[Any]:
    """
    Return the validator of a type, built once.

    Bytes are base64 unless the type's own configuration says otherwise.
    """
    return _adapter(_key(wanted))


def _key(wanted: Any) -> Any:
    """Return a type as the key of a cache."""
    try:
        hash(wanted)
    except TypeError:
        return _Unhashable(wanted)
    return wanted


@lru_cache(maxsize=1024)
def _adapter(key: Any) -> TypeAdapter[Any]:
    wanted = key.wanted if isinstance(key, _Unhashable) else key
    try:
        return TypeAdapter(wanted, config=BYTES_AS_BASE64)
    except PydanticUserError as error:
        if error.code != "type-adapter-config-unused":
            raise
    if isinstance(wanted, type) and not issubclass(wanted, BaseModel):
        optional: Any = wanted | None
        return TypeAdapter(optional, config=BYTES_AS_BASE64)  # handed down to a dataclass
    return TypeAdapter(wanted)


def check_type(name: str, wanted: Any) -> None:
    """Raise InvalidArgument unless a value is a type as which a body can be read."""
    try:
        if wanted is None or isinstance(wanted, VALUES) or isroutine(wanted):
            raise TypeError("it is a value")  # noqa: TRY301 - told like all others
        adapter(wanted)
    except Exception as error:
        msg = (
            f"{name}={quoted(wanted)} must be a type as which a body can be read,"
            f" such as a model or list[int] ({error})"
        )
        raise InvalidArgument(msg) from error


def body_schema(wanted: Any) -> dict[str, Any] | None:
    """Return the JSON schema of a body type; None if it has none, or a very long one."""
    return _body_schema(_key(wanted))


@lru_cache(maxsize=1024)
def _body_schema(key: Any) -> dict[str, Any] | None:
    wanted = key.wanted if isinstance(key, _Unhashable) else key
    if wanted is None or wanted is Any or wanted is object:
        return None
    try:
        schema = adapter(wanted).json_schema()
    except PydanticUserError:  # a type that exists only in Python
        return None
    return schema if len(json.dumps(schema)) <= SCHEMA_MAX else None


def reply_schema(wanted: Any) -> str | None:
    """
    Return the JSON schema of a reply that must be an object; None for all other types.

    Raises:
        InvalidArgument: no reply can be read as that.

    """
    try:
        return _reply_schema(wanted)
    except TypeError:
        return _reply_schema(_Unhashable(wanted))


@lru_cache(maxsize=1024)
def _reply_schema(key: Any) -> str | None:
    if key is not None:
        check_type("reply", key.wanted if isinstance(key, _Unhashable) else key)
    schema = _body_schema(key)
    if schema is None or schema.get("type") != "object" or not schema.get("properties"):
        return None
    text = json.dumps(schema, separators=(",", ":"))
    return text if len(text) <= REPLY_SCHEMA_MAX else None


def validated(value: Any, wanted: Any) -> Any:
    """Return a JSON value as *wanted*; raise ValidationError if it does not fit."""
    try:
        found = _adapter(wanted)
    except TypeError:
        found = adapter(wanted)
    validating.append(get_ident())
    try:
        # JSON has no dates, tuples or sets: models may coerce, but a bare str takes no number.
        if wanted in (str, bytes):
            return found.validate_python(value, strict=True)
        return found.validator.validate_python(value)
    except ValidationError:
        if isinstance(value, bytes) or wanted in (str, bytes):
            raise
        return found.validate_json(to_json(value))  # strict models read JSON's dates only as JSON
    finally:
        validating.remove(get_ident())


def parsed(kind: type[M], text: str | bytes) -> M:
    """Return JSON as a model; raise ValidationError if it does not fit."""
    validating.append(get_ident())
    try:
        return kind.model_validate_json(text)
    finally:
        validating.remove(get_ident())


OURS: Final = "Value error, "
"""Prefix by pydantic of the text of a check of ours."""


def describe_errors(error: ValueError) -> str:
    """Return the faults of a validation in one line: field, fault and given value of each."""
    if not isinstance(error, ValidationError):
        return str(error)
    found = error.errors(include_url=False, include_context=False)
    told = [
        f"{'.'.join(map(str, each['loc'])) or 'it'}:"
        f" {each['msg'].removeprefix(OURS).strip()} (given {quoted(each['input'])})"
        for each in found[:FAULTS]
    ]
    return "; ".join([*told, f"and {len(found) - FAULTS} more"] if len(found) > FAULTS else told)
