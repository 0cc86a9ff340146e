"""Encode the bodies of messages as JSON text without loss, and decode them as a handler wants."""

from __future__ import annotations

import base64
import json
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import lru_cache, partial
from itertools import islice
from typing import Any, ClassVar, Final, NamedTuple

from pydantic import BaseModel, ConfigDict, PydanticUserError, TypeAdapter, ValidationError
from pydantic_core import PydanticSerializationError, from_json, to_json
from typing_extensions import TypeVar

from onceward.errors import InvalidArgument, InvalidMessage
from onceward.message.names import plain_text, quoted

Body = TypeVar("Body", default=Any)
"""Type of a message's body; without a type, or with its name only, it is any."""
BYTES_AS_BASE64: Final = ConfigDict(ser_json_bytes="base64", val_json_bytes="base64")
LOOSE: Final = frozenset({"any", "bytes", "frozenset", "set"})
"""Field types whose JSON, by itself, is not certain to be read back unchanged."""
SEQUENCES: Final = (list, tuple, deque)
SCHEMA_MAX: Final = 8000
"""Maximum characters of a body schema that other agents see."""
REPLY_SCHEMA_MAX: Final = 4096
"""Maximum characters of the reply schema that a request carries."""


@lru_cache(maxsize=1024)
def adapter(wanted: Any) -> TypeAdapter[Any]:
    """
    Return the validator of a type, built once.

    Bytes are base64 unless the type's own configuration says otherwise.
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
def body_schema(wanted: Any) -> dict[str, Any] | None:
    """Return the JSON schema of a body type; None if it has none, or a very long one."""
    if wanted in {None, Any, object}:
        return None
    try:
        schema = adapter(wanted).json_schema()
    except PydanticUserError:  # a type that exists only in Python
        return None
    return schema if len(json.dumps(schema)) <= SCHEMA_MAX else None


@lru_cache(maxsize=1024)
def reply_schema(wanted: Any) -> str | None:
    """Return the JSON schema of a reply that must be an object; None for all other types."""
    schema = None if wanted is None else body_schema(wanted)
    if schema is None or schema.get("type") != "object" or not schema.get("properties"):
        return None
    text = json.dumps(schema, separators=(",", ":"))
    return text if len(text) <= REPLY_SCHEMA_MAX else None


@lru_cache(maxsize=1024)
def is_loose(kind: type, *, trusted: frozenset[str] = frozenset()) -> bool:
    """Return whether a class has fields, except *trusted* ones, whose values JSON may alter."""
    found = set(_parts(adapter(kind).core_schema))
    return not LOOSE.isdisjoint(found - trusted)


def _parts(schema: object) -> Iterator[str]:
    """Yield the types of all fields of a class; undeclared fields are of any type."""
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
    """Return the JSON value *written* for *sent*, with set members sorted by their text."""
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
    Yield the parts of *sent* that JSON loses: bytes, keys that are not text, and iterators.

    *back* is what the recipient reads. Tuples and sets that come back as lists,
    and dates and numbers that come back as text, are as documented.
    """
    if isinstance(sent, Enum):
        sent = sent.value
    match sent:
        case bytes() | bytearray() | memoryview():
            if sent != back:
                yield f"{path or 'it'}: bytes, which JSON cannot represent: send base64 text"
        case Mapping():
            yield from _altered_items(sent, back, path)
        case list() | tuple() | deque() | set() | frozenset():
            others = back if isinstance(back, SEQUENCES) else ()
            for at, value in enumerate(sent):
                other = others[at] if at < len(others) else None
                yield from altered(value, other, f"{path}[{at}]")
        case Iterator():
            yield f"{path or 'it'}: an iterator, which can be read only once: send a list"


def _altered_items(sent: Mapping[Any, Any], back: object, path: str) -> Iterator[str]:
    others = back if isinstance(back, Mapping) else {}
    for key, value in sent.items():
        if not isinstance(key, str) and key not in others:
            yield f"{path or 'it'}: key {quoted(key)} is not text: JSON has text keys only"
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


JSON: Final = "application/json"
TEXT: Final = "text/plain"
BYTES: Final = "application/octet-stream"
SAFE_BRACKETS: Final = 190
"""Number of brackets up to which no text is nested too deeply for JSON readers."""
LONG: Final = 4000
"""Characters up to which no number in a text is too long for JSON readers."""
TYPED_BYTES: Final = frozenset({"bytes"})
"""Field types that a Msg encodes by its own rules."""
FAULTS: Final = 3
"""Maximum faults that one error names; the others are counted."""


class Msg(BaseModel):
    """
    A message type whose wire name is in the class statement.

    ``class Paid(Msg, type="invoice.paid")``: renaming the class or moving it to
    another module never orphans messages that are already queued.
    """

    model_config = ConfigDict(
        frozen=True,
        allow_inf_nan=False,
        ser_json_inf_nan="constants",
        defer_build=True,
        **BYTES_AS_BASE64,
    )
    __message_type__: ClassVar[str] = "msg"

    def __init_subclass__(cls, *, type: str | None = None, **kwargs: Any) -> None:
        """Fix the wire name; by default it is the class name in lower case."""
        super().__init_subclass__(**kwargs)
        cls.__message_type__ = plain_text(
            "type", type if type is not None else cls.__name__.lower()
        )


Msg.model_config["defer_build"] = False  # a field that cannot be a type fails in its class


class Payload(NamedTuple):
    """A body ready for the frame: media type, JSON text, and the type that its class declares."""

    media: str
    text: str
    type: str


def encode(body: object) -> Payload:
    """
    Return *body* as JSON text, once.

    Accepts models, dataclasses, dict, list, str, numbers, None and bytes. Tuples and sets become
    lists (sets sorted), dates, times, Decimal and UUID become text. NaN, infinities, bytes inside
    an untyped body and keys that are not text are refused, because JSON cannot represent them.

    Raises:
        InvalidMessage: the body cannot be written as JSON.

    """
    media, kind, written = _encoder_for(type(body))  # type: ignore[arg-type]  # classes are hashable
    try:
        text = written(body)
        if media != BYTES:
            _refuse_unreadable(text)
    except (PydanticSerializationError, ValueError, RecursionError) as error:
        msg = f"body of type {type(body).__name__} cannot be written as JSON: {error}"
        raise InvalidMessage(msg) from error
    return Payload(media, text, kind)


@lru_cache(maxsize=1024)
def _encoder_for(kind: type) -> tuple[str, str, Callable[[Any], str]]:
    """
    Return media type, wire type and encoder for bodies of a class.

    Cached, because inspecting a model's class costs more than encoding a body.
    """
    if issubclass(kind, bytes | bytearray | memoryview):
        return BYTES, "bytes", _quoted_bytes
    if issubclass(kind, str):
        return TEXT, "text", _json
    if issubclass(kind, Msg):
        loose = is_loose(kind, trusted=TYPED_BYTES)
        return JSON, message_type(kind), partial(_loose_json, _msg_json) if loose else _msg_json
    if issubclass(kind, BaseModel) or is_dataclass(kind):
        return JSON, message_type(kind), _typed_encoder(kind)
    return JSON, "json", _plain_json


def _typed_encoder(kind: type) -> Callable[[Any], str]:
    """Return the encoder of a model or a dataclass; without a validator it counts as a dict."""
    try:
        return partial(_loose_json, _typed_json) if is_loose(kind) else _typed_json
    except PydanticUserError:
        return _fields_json


def _quoted_bytes(body: Any) -> str:
    return f'"{base64.b64encode(bytes(body)).decode()}"'


def _msg_json(body: Any) -> str:
    written: bytes = body.__pydantic_serializer__.to_json(body, by_alias=True)
    return written.decode()


def _typed_json(body: Any) -> str:
    """Return a model or dataclass as JSON, by its own rules."""
    kind: Any = type(body)
    try:
        return _json(adapter(kind).dump_python(body, mode="json", by_alias=True, warnings=False))
    except UnicodeDecodeError as error:
        raise ValueError(
            "bytes that are not UTF-8: derive the class from Msg, or give it"
            " model_config = ConfigDict(ser_json_bytes='base64', val_json_bytes='base64')"
        ) from error


def _fields_json(body: Any) -> str:
    return _plain_json({each.name: getattr(body, each.name) for each in fields(body)})


def _loose_json(write: Callable[[Any], str], body: Any) -> str:
    """Return a model with untyped fields as JSON; raise ValueError if JSON would alter it."""
    own: Any = type(body)
    kind, text = adapter(own), write(body)
    sent, back = kind.dump_python(body, by_alias=True, warnings=False), from_json(text)
    if sent == back:
        return text
    if any(altered(sent, back)):
        _refuse_altered(sent, _read_back(kind, text))
    return _json(ordered(sent, back))


def _read_back(kind: TypeAdapter[Any], text: str) -> Any:
    """Return the values that a recipient with the same class reads; None if it cannot read them."""
    try:
        return kind.dump_python(kind.validate_json(text), by_alias=True, warnings=False)
    except Exception:  # noqa: BLE001 - a validator of the class, which may raise anything
        return None


def _plain_json(body: Any) -> str:
    """Return a body without a class as JSON; raise ValueError if JSON would alter it."""
    text = _json(body)
    back = from_json(text)
    if back == body:
        return text
    _refuse_altered(body, back)
    for model in nested_models(body):
        encode(model)
    return _json(ordered(body, back))


def _refuse_altered(sent: object, back: object) -> None:
    found = list(islice(altered(sent, back), FAULTS))
    if found:
        msg = f"{'; '.join(found)} (a field of type bytes in a Msg keeps bytes as they are)"
        raise ValueError(msg)


def _json(plain: Any) -> str:
    return to_json(plain, inf_nan_mode="constants", by_alias=True).decode()


def _refuse_unreadable(text: str) -> None:
    """Raise ValueError for NaN, Infinity, and depth or numbers that JSON readers reject."""
    if ("N" in text and "NaN" in text) or (
        "I" in text and "Infinity" in text
    ):  # searching for one character first costs next to nothing
        json.loads(text, parse_constant=_refuse_constant)
    if len(text) > LONG or (
        len(text) > SAFE_BRACKETS
        and ("[" in text or text.find("{", 1) > 0)  # cheaper than counting them
        and text.count("[") + text.count("{") > SAFE_BRACKETS
    ):
        from_json(f"[{text}]")


def message_type(model: type) -> str:
    """Return a message class's wire name: its declared type, else its name in lower case."""
    try:
        return getattr(model, "__message_type__", None) or model.__name__.lower()
    except AttributeError:
        msg = f"{quoted(model)} must be a class, or the name of a type"
        raise InvalidArgument(msg) from None


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} cannot be written in JSON: send null or a string")


def decode(data: Any, base64_text: str | None, wanted: Any) -> Any:
    """
    Return a received body as *wanted* (None: as plain Python values).

    Raises:
        InvalidMessage: the body does not fit the wanted type; a retry cannot help.

    """
    try:
        value = data if base64_text is None else base64.b64decode(base64_text, validate=True)
        if wanted is None or wanted is Any or wanted is object:
            return value
        return _validated(value, wanted)
    except ValueError as error:  # ValidationError and binascii.Error are
        msg = f"body does not fit {getattr(wanted, '__name__', wanted)}: {describe_errors(error)}"
        raise InvalidMessage(msg) from error


def describe_errors(error: ValueError) -> str:
    """Return the faults of a validation in one line: field, fault and given value of each."""
    if not isinstance(error, ValidationError):
        return str(error)
    found = error.errors(include_url=False, include_context=False)
    told = [
        f"{'.'.join(map(str, each['loc'])) or 'it'}: {each['msg']} (given {quoted(each['input'])})"
        for each in found[:FAULTS]
    ]
    return "; ".join([*told, f"and {len(found) - FAULTS} more"] if len(found) > FAULTS else told)


def _validated(value: Any, wanted: Any) -> Any:
    try:
        # JSON has no dates, tuples or sets: models may coerce, but a bare str takes no number.
        if wanted in (str, bytes):
            return adapter(wanted).validate_python(value, strict=True)
        return adapter(wanted).validator.validate_python(value)
    except ValidationError:
        if isinstance(value, bytes) or wanted in (str, bytes):
            raise
        return adapter(wanted).validate_json(
            to_json(value)
        )  # strict models read JSON's dates only as JSON
