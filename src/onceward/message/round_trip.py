"""
Find what a body loses on its way through JSON: what its recipient, with the same class, misses.

The schema of a class decides once whether its bodies can lose anything; the others cost nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterator, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import lru_cache
from itertools import islice
from typing import Any, Final, cast

from pydantic import BaseModel
from pydantic_core import to_json, to_jsonable_python

from onceward.message.error_text import error_text
from onceward.message.names import quoted
from onceward.message.validators import FAULTS, adapter, describe_errors, validated

SEQUENCES: Final = (list, tuple, deque)
BYTES_LOST: Final = (
    "bytes, which JSON cannot represent: send base64 text"
    " (a field of type bytes in a Msg keeps bytes as they are)"
)
PLAIN: Final = (str, int, float, bool, type(None))
JSON_TYPES: Final = (*PLAIN, list, dict)
CURE: Final = (
    "declare the field with the type of its value, or send model_dump(mode='json') if the"
    " recipient may get less"
)

# -- classes --------------------------------------------------------------------------------------

BASE64: Final = "base64"
COMMON: Final = frozenset({"type", "ref", "metadata", "default", "default_factory"})
"""Keys of a schema that change no value which is present."""
SCALARS: Final = (
    *("none", "bool", "int", "float", "str", "bytes"),
    *("date", "time", "datetime", "timedelta", "uuid"),
)
LOSSLESS: Final[dict[str, frozenset[str]]] = {
    **dict.fromkeys(SCALARS, frozenset({"microseconds_precision"})),
    "list": frozenset({"items_schema"}),
    "tuple": frozenset({"items_schema", "variadic_item_index"}),
    "dict": frozenset({"keys_schema", "values_schema"}),
    "nullable": frozenset({"schema"}),
    "default": frozenset({"schema", "copy_default", "default_factory_takes_data"}),
    "literal": frozenset({"expected"}),
    "union": frozenset({"choices"}),
    "tagged-union": frozenset({"choices", "discriminator", "from_attributes"}),
    "definitions": frozenset({"schema", "definitions"}),
    "definition-ref": frozenset({"schema_ref"}),
    "model": frozenset({"cls", "schema", "config", "generic_origin", "root_model", "frozen"}),
    "model-fields": frozenset({"fields", "model_name"}),
    "model-field": frozenset({"schema", "frozen", "validation_alias", "serialization_alias"}),
    "dataclass": frozenset({"cls", "schema", "fields", "config", "frozen", "slots"}),
    "dataclass-args": frozenset({"fields", "dataclass_name"}),
    "dataclass-field": frozenset({"schema", "name", "kw_only", "init", "frozen"}),
}
"""The keys that a schema may have, by its type, so that its values are read as they were sent."""
CONFIG: Final = frozenset(
    {
        *("title", "frozen", "allow_inf_nan", "ser_json_inf_nan", "ser_json_bytes"),
        *("val_json_bytes", "from_attributes", "validate_default", "validate_assignment"),
    }
)
"""Settings of a class that change no value."""
NATIVE: Final = frozenset({"none", "bool", "int", "float", "str"})
"""Members of a union that JSON distinguishes."""
CLASSES: Final = frozenset({"model", "dataclass"})


def is_lossless(schema: Any, *, base64: bool = False) -> bool:
    """Return whether JSON keeps all values that a class allows."""
    if isinstance(schema, list):
        return all(is_lossless(each, base64=base64) for each in schema)
    if not isinstance(schema, dict):
        return True
    kind = schema.get("type")
    if not isinstance(kind, str):  # fields or choices by name
        return is_lossless(list(schema.values()), base64=base64)
    used = _used(schema) - COMMON
    known = kind in LOSSLESS and used <= LOSSLESS[kind]
    if not known or not _keeps(kind, schema, base64=base64):
        return False
    if kind in CLASSES:
        config = schema.get("config", {})
        base64 = config.get("ser_json_bytes") == config.get("val_json_bytes") == BASE64
    return all(is_lossless(schema[key], base64=base64) for key in used - {"config"})


def _used(mapping: Mapping[str, Any]) -> set[str]:
    """Return the keys of a schema or a configuration that say something."""
    return {key for key, value in mapping.items() if value not in (None, []) and value is not False}


def _keeps(kind: str, schema: Mapping[str, Any], *, base64: bool) -> bool:
    """Return whether a schema of a lossless type keeps values in this form, too."""
    match kind:
        case "bytes":
            return base64
        case "literal":
            return all(type(each) in JSON_TYPES for each in schema["expected"])
        case "list" | "tuple":
            return "items_schema" in schema
        case "dict":
            keys = schema.get("keys_schema", {})
            return "values_schema" in schema and keys.get("type") == "str"
        case "union":
            members = schema["choices"]
            return all(isinstance(each, dict) and each["type"] in NATIVE for each in members)
        case "tagged-union":
            return isinstance(schema["discriminator"], str)
        case "model-field":
            return bool(schema.get("validation_alias") == schema.get("serialization_alias"))
        case "dataclass-field":
            return schema.get("init", True) is True
        case "model" | "dataclass":
            return _used(schema.get("config", {})) <= CONFIG
    return True


def nested_classes(schema: Any) -> tuple[type, ...]:
    """Return the models and dataclasses of a class's fields; a subclass may have more fields."""
    own = schema["schema"] if schema["type"] in CLASSES else schema
    found = (each["cls"] for each in _nodes(own) if each.get("type") in CLASSES)
    return tuple(dict.fromkeys(found))


def _nodes(schema: Any) -> Iterator[dict[str, Any]]:
    """Yield the schemas inside a schema, and itself."""
    if isinstance(schema, dict):
        yield schema
        for key in schema.keys() - {"metadata", "default", "config", "cls"}:
            yield from _nodes(schema[key])
    elif isinstance(schema, list):
        for each in schema:
            yield from _nodes(each)


# -- values ---------------------------------------------------------------------------------------


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


def read_back(written: Any, kind: Any) -> Any:
    """Return what a recipient reads as *kind*; raise ValueError if it can read nothing."""
    try:
        return validated(written, kind)
    except Exception as error:
        told = describe_errors(error) if isinstance(error, ValueError) else error_text(error)
        msg = f"{kind.__name__} cannot read it back: {told}"
        raise ValueError(msg) from error


def refuse_lost(sent: object, back: object) -> None:
    """Raise ValueError if *back*, which the recipient reads, lacks values of *sent*."""
    if type(sent) in PLAIN and sent == back:  # as below, sooner
        return
    found = list(islice(lost(sent, back), FAULTS))
    if found:
        raise ValueError("; ".join(found))


def lost(sent: object, back: object, path: str = "", *, typed: bool = False) -> Iterator[str]:
    """
    Yield the values of *sent* that are others in *back*, each with its path.

    In places that are not *typed*, tuples and sets that come back as lists, models that come back
    as dicts, and dates and numbers that come back as text, are as documented.
    """
    if isinstance(back, Iterator):  # its type is read item by item
        return
    if isinstance(sent, Enum):
        sent = back if sent is back else sent.value
    match sent:
        case bytes() | bytearray() | memoryview():
            if sent != back:
                yield f"{path or 'it'}: {BYTES_LOST}"
        case Mapping():
            yield from _lost_items(sent, back, path, typed=typed)
        case Iterator():
            yield f"{path or 'it'}: an iterator, which can be read only once: send a list"
        case _ if isinstance(sent, SEQUENCES) or (_is_set(sent) and not _is_set(back)):
            yield from _lost_members(list(cast("Collection[Any]", sent)), back, path, typed=typed)
        case _ if isinstance(sent, BaseModel) or is_dataclass(sent):
            yield from _lost_fields(sent, back, path)
        case _ if not _same(sent, back, typed=typed):
            yield f"{path or 'it'}: {_told(sent, back)}"


def _is_set(value: object) -> bool:
    return isinstance(value, set | frozenset)


def _told(sent: object, back: object) -> str:
    """Return how a value is lost, and what to do."""
    before, after = quoted(sent), quoted(back)
    if before == after:
        return f"JSON hides the value of {before}: give the class a field_serializer that writes it"
    return f"{before} is read as {after}: {CURE}"


def _lost_items(sent: Mapping[Any, Any], back: object, path: str, *, typed: bool) -> Iterator[str]:
    others = back if isinstance(back, Mapping) else {}
    for key, value in sent.items():
        if not isinstance(key, str) and key not in others:
            yield f"{path or 'it'}: key {quoted(key)} is not text: JSON has text keys only"
        yield from lost(value, others.get(key), f"{path}.{key}" if path else str(key), typed=typed)
    if len(others) > len(sent):
        yield f"{path or 'it'}: {_told(sent, back)}"


def _lost_members(sent: list[Any], back: object, path: str, *, typed: bool) -> Iterator[str]:
    others = list(back) if isinstance(back, SEQUENCES) else []
    for at, value in enumerate(sent):
        other = others[at] if at < len(others) else None
        yield from lost(value, other, f"{path}[{at}]", typed=typed)
    if len(others) > len(sent):
        yield f"{path or 'it'}: {_told(sent, back)}"


def _lost_fields(sent: Any, back: Any, path: str) -> Iterator[str]:
    """
    Yield the fields of a model or dataclass that are lost; in an untyped place it is a dict.

    Two classes of one name are one that was imported twice, such as that of a script.
    """
    kind: Any = type(sent)
    if isinstance(back, dict | list | str | int | float | None) and not isinstance(back, kind):
        try:
            back = read_back(back, kind)
        except ValueError as error:
            yield f"{path or 'it'}: {error}: {CURE}"
            return
    if type(back) is not kind and type(back).__qualname__ != kind.__qualname__:
        told = type(back).__name__
        yield f"{path or 'it'}: a {kind.__name__} is read as {told}: {CURE}"
        return
    others, typed = _fields(back), _typed_fields(cast("Any", kind))
    for name, value in _fields(sent).items():
        at = f"{path}.{name}" if path else name
        yield from lost(value, others.get(name), at, typed=name in typed)


def _fields(held: Any) -> dict[str, Any]:
    """Return the values of the fields of a model or dataclass."""
    if is_dataclass(held):
        return {each.name: getattr(held, each.name, None) for each in fields(held)}
    return {each: getattr(held, each, None) for each in type(held).model_fields} | (
        held.model_extra or {}
    )


@lru_cache(maxsize=1024)
def _typed_fields(kind: Any) -> frozenset[str]:
    """Return the fields of a class that take only values of known types."""
    nodes = _nodes(adapter(kind).core_schema)
    own = next(each for each in nodes if each.get("type") in CLASSES and each["cls"] is kind)
    if own.get("root_model"):
        named = {"root": own["schema"]}
    else:
        found = next(each["fields"] for each in _nodes(own["schema"]) if _lists_fields(each))
        named = found if isinstance(found, dict) else {each["name"]: each for each in found}
    return frozenset(name for name, schema in named.items() if not _takes_any(schema))


def _lists_fields(schema: Mapping[str, Any]) -> bool:
    return schema.get("type") in {"model-fields", "dataclass-args"}


def _takes_any(schema: Any) -> bool:
    return any(part.get("type") == "any" for part in _nodes(schema))


def _same(sent: object, back: object, *, typed: bool) -> bool:
    """Return whether a value is read as itself, or as the text that stands for it."""
    if sent == back:
        return True
    try:
        if type(back) in JSON_TYPES:  # without a type it is read as JSON
            return not typed and bool(read_back(back, type(sent)) == sent)
        return type(back) is not type(sent) and to_jsonable_python(sent) == to_jsonable_python(back)
    except ValueError:
        return False
