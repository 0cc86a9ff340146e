"""Encode the bodies of messages as JSON text without loss, and decode them as a handler wants."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterable
from dataclasses import fields, is_dataclass
from datetime import datetime
from functools import lru_cache, partial
from typing import Annotated, Any, ClassVar, Final, NamedTuple, Protocol, get_args, get_origin

from pydantic import BaseModel, ConfigDict, PydanticUserError
from pydantic_core import PydanticSerializationError, from_json, to_json
from typing_extensions import TypeVar

from onceward.errors import InvalidArgument, InvalidMessage
from onceward.message.names import plain_text, quoted
from onceward.message.round_trip import (
    is_lossless,
    nested_classes,
    ordered,
    read_back,
    refuse_lost,
)
from onceward.message.validators import BYTES_AS_BASE64, adapter, describe_errors, validated

Upcast = Callable[[Any], Any]
"""Returns a body of one version, as JSON has it, as that of the next."""
U = TypeVar("U", bound=Upcast)
JSON: Final = "application/json"
VERSIONED: Final = f"{JSON};version="
"""Media type of bodies whose class has a version after the first, before its number."""
Body = TypeVar("Body", default=Any)
"""Type of a message's body; without a type, or with its name only, it is any."""
TEXT: Final = "text/plain"
BYTES: Final = "application/octet-stream"
CONTAINERS: Final = (list, tuple, dict, set, frozenset)
SAFE_BRACKETS: Final = 190
"""Number of brackets up to which no text is nested too deeply for JSON readers."""
LONG: Final = 4000
"""Characters up to which no number in a text is too long for JSON readers."""


class Msg(BaseModel):
    """
    A message type whose wire name is in the class statement.

    ``class Paid(Msg, type="invoice.paid")``: renaming the class or moving it to
    another module never orphans messages that are already queued. With ``version=2`` bodies of
    version 1 are brought up by the functions that ``upcast`` declares, before they are validated.
    """

    model_config = ConfigDict(
        frozen=True,
        allow_inf_nan=False,
        ser_json_inf_nan="constants",
        defer_build=True,
        **BYTES_AS_BASE64,
    )
    __message_type__: ClassVar[str] = "msg"
    __message_version__: ClassVar[int] = 1
    __upcasts__: ClassVar[dict[int, Upcast]] = {}

    def __init_subclass__(cls, *, type: str | None = None, version: int = 1, **kwargs: Any) -> None:
        """Fix the wire name, by default the class name in lower case, and the version."""
        super().__init_subclass__(**kwargs)
        cls.__message_type__ = plain_text(
            "type", type if type is not None else cls.__name__.lower()
        )
        if version != 1:
            from onceward.message.versions import check_version  # noqa: PLC0415 - rarely needed

            check_version(version, cls.__name__)
        cls.__message_version__, cls.__upcasts__ = version, {}

    @classmethod
    def upcast(cls, *, from_version: int) -> Callable[[U], U]:
        """
        Bring bodies of a version up to the next one by a function, before they are validated.

        The function gets the body as JSON has it and returns that of version *from_version* + 1; it
        may change what it gets. Older bodies pass through the functions of all versions between;
        one without a function is unchanged. An exception makes the body unreadable.

        Raises:
            InvalidArgument: the class has no later version, or the version has a function.

        """
        if not 1 <= from_version < cls.__message_version__:
            raise InvalidArgument(
                f"from_version={quoted(from_version)}: {cls.__name__} has version "
                f"{cls.__message_version__}: class {cls.__name__}(Msg, version=…)"
            )
        if from_version in cls.__upcasts__:
            raise InvalidArgument(f"{cls.__name__} has a function for version {from_version}")

        def declare(function: U) -> U:
            cls.__upcasts__[from_version] = function
            return function

        return declare


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
    an untyped body and keys that are not text are refused, because JSON cannot represent them; so
    is a value that the body's own class would not read again.

    Raises:
        InvalidMessage: the body cannot be written as JSON, or a part would be lost.

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
    if issubclass(kind, BaseModel) or is_dataclass(kind):
        return _media(kind), message_type(kind), _class_encoder(kind)
    return _media(kind), "json", _plain_json


def _media(kind: type) -> str:
    """Return the media type of bodies of a class, by its version."""
    version = getattr(kind, "__message_version__", 1)
    return JSON if version == 1 else f"{VERSIONED}{version}"


def _class_encoder(kind: type) -> Callable[[Any], str]:
    """
    Return the encoder of a model or a dataclass; without a validator it counts as a dict.

    Only bodies of classes whose schema can lose values are read back at each send.
    """
    write = _msg_json if issubclass(kind, Msg) else _typed_json
    try:
        schema = adapter(kind).core_schema
    except PydanticUserError:
        return _fields_json
    if not is_lossless(schema):
        return _checked_json
    nested = nested_classes(schema)
    return partial(_nested_json, write, nested) if nested else write


def _quoted_bytes(body: Any) -> str:
    return f'"{base64.b64encode(bytes(body)).decode()}"'


def _msg_json(body: Any) -> str:
    """Return a Msg as JSON; only one with a value that its class does not allow is read back."""
    try:
        written: bytes = body.__pydantic_serializer__.to_json(body, by_alias=True, warnings="error")
    except PydanticSerializationError:
        return _checked_json(body)
    return written.decode()


def _typed_json(body: Any) -> str:
    """Return a model or dataclass as JSON, by its own rules; see ``_msg_json``."""
    own = adapter(type(body))
    try:
        return _json(own.dump_python(body, mode="json", by_alias=True, warnings="error"))
    except (PydanticSerializationError, UnicodeDecodeError):
        return _checked_json(body)


def _nested_json(write: Callable[[Any], str], nested: tuple[type, ...], body: Any) -> str:
    """Return a body as JSON; read it back if a field may have an instance of a subclass."""
    return _checked_json(body) if any(map(type.__subclasses__, nested)) else write(body)


def _fields_json(body: Any) -> str:
    return _plain_json({each.name: getattr(body, each.name) for each in fields(body)})


def _checked_json(body: Any) -> str:
    """Return a model or dataclass as JSON; raise ValueError if its class reads other values."""
    own = adapter(type(body))
    try:
        plain = own.dump_python(body, mode="json", by_alias=True, warnings=False)
    except UnicodeDecodeError as error:
        raise ValueError(
            "bytes that are not UTF-8: derive the class from Msg, or give it"
            " model_config = ConfigDict(ser_json_bytes='base64', val_json_bytes='base64')"
        ) from error
    text = _json(plain)
    _refuse_unreadable(text)
    back = from_json(text)
    refuse_lost(body, read_back(back, type(body)))
    sent = own.dump_python(body, by_alias=True, warnings=False)
    return text if sent == back else _json(ordered(sent, back))


def _plain_json(body: Any) -> str:
    """Return a body without a class as JSON; raise ValueError if JSON would alter it."""
    text = _json(body)
    back = from_json(text)
    if back == body:
        return text
    refuse_lost(body, back)
    return _json(ordered(body, back))


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


def canonical(text: str) -> str:
    """
    Return the one text of all JSON texts with the same value.

    Neither the order of keys counts nor how a number is written: 1, 1.0 and 1e0 are one value.
    """
    return CANONICAL(BY_VALUE(text))


def _number(text: str) -> float:
    value = float(text)
    return int(value) if value.is_integer() else value


BY_VALUE: Final = json.JSONDecoder(parse_float=_number).decode
"""Reads JSON; made once, as the functions of ``json`` make one for each text with options."""
CANONICAL: Final = json.JSONEncoder(sort_keys=True, separators=(",", ":")).encode


def message_type(model: Any) -> str:
    """Return a message class's wire name: its declared type, else its name in lower case."""
    found = get_args(model)[0] if get_origin(model) is Annotated else get_origin(model) or model
    if not isinstance(found, type) or (found is not model and found in CONTAINERS):
        msg = f"{quoted(model)} must be a class, or the name of a type"
        raise InvalidArgument(msg)
    return getattr(found, "__message_type__", None) or found.__name__.lower()


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} cannot be written in JSON: send null or a string")


def decode(data: Any, base64_text: str | None, wanted: Any, media: str = JSON) -> Any:
    """
    Return a received body as *wanted* (None: as plain Python values).

    Raises:
        InvalidMessage: the body does not fit the wanted type; a retry cannot help.
        InvalidVersion: it has a newer version, or could not be brought up to the newest.

    """
    try:
        plain = wanted is None or isinstance(wanted, type)
        versioned: Any = wanted if plain else _versioned_in(wanted)
    except TypeError:  # it cannot be hashed
        versioned = None
    newest = getattr(versioned, "__message_version__", 0)
    if (newest > 1 or ";" in media) and newest and base64_text is None:
        from onceward.message.versions import brought_up  # noqa: PLC0415 - rarely needed

        data = brought_up(data, versioned, media)
    try:
        value = data if base64_text is None else base64.b64decode(base64_text, validate=True)
        if wanted is None or wanted is Any or wanted is object:
            return value
        return validated(value, wanted)
    except ValueError as error:  # ValidationError and binascii.Error are
        msg = f"body does not fit {getattr(wanted, '__name__', wanted)}: {describe_errors(error)}"
        raise InvalidMessage(msg) from error


@lru_cache(maxsize=1024)
def _versioned_in(wanted: Any) -> Any:
    """Return the one class with versions in a type such as ``Order | None``; None without one."""
    found = [each for each in get_args(wanted) if getattr(each, "__message_version__", 0)]
    return found[0] if len(found) == 1 else None


class LargeBodyStore(Protocol):
    """
    Stores large bodies under names such as ``shop/reader/ID.DIGEST``.

    Several threads and processes use a store at once. No two bodies have the same name. An
    exception other than those named here makes a send fail with ``StoreFault``, and a handler's
    message is tried again.
    """

    def put(self, name: str, data: bytes) -> None:
        """Store a body, or replace it whole; it must survive a power cut once this returns."""

    def get(self, name: str) -> bytes:
        """Return a body; raise FileNotFoundError if it is not there."""

    def delete(self, name: str) -> None:
        """Delete a body, if it is there."""

    def names(self, folder: str) -> Iterable[tuple[str, datetime]]:
        """Return the names that begin with ``folder/``, and when each body was stored."""
