"""Read the reply that a request expects, and build one from a person's input."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite
from typing import Any, Final, Literal

from onceward.errors import InvalidMessage
from onceward.message.names import quoted
from onceward.ops.views.asking import Source
from onceward.ops.views.listing import LARGE
from onceward.ops.views.messages import frame_size, message, whole_frame

Kind = Literal["text", "date", "integer", "number", "boolean", "choice"]
DATES: Final = frozenset({"date"})
NUMBERS: Final[Mapping[Any, Kind]] = {"integer": "integer", "number": "number"}
NULL: Final = {"type": "null"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplyField:
    """One property of the object that a request expects as its reply."""

    name: str
    kind: Kind
    required: bool
    meaning: str
    choices: tuple[str, ...] = ()
    """The values to choose from, each as JSON."""
    default: Any = None

    @property
    def input(self) -> str:
        """The type of its input on a page."""
        return "number" if self.kind in {"integer", "number"} else self.kind

    @property
    def told(self) -> str:
        """The field as text: name, kind and whether it is required."""
        words: str = self.kind
        if self.kind in {"boolean", "choice"}:
            words = f"one of {', '.join(self.choices or ('true', 'false'))}"
        return f"{self.name} ({words}{'' if self.required else ', may be left out'})"

    def value(self, given: str) -> Any:
        """
        Return a person's input as the type of the field.

        Raises:
            InvalidMessage: it is of another type.

        """
        try:
            match self.kind:
                case "choice" if given in self.choices:
                    return json.loads(given)
                case "boolean":
                    return given == "on"
                case "integer":
                    return int(given)
                case "number" if isfinite(number := float(given)):
                    return number
                case "text" | "date":
                    return given
        except ValueError:
            pass
        raise InvalidMessage(f"{self.name} is {quoted(given)}, and must be: {self.told}")


def expected_fields(source: Source, message_id: str) -> tuple[ReplyField, ...]:
    """
    Return the fields of the reply that a received request expects.

    There are none if the request has no schema, or expects more than a flat object.
    """
    for each in message(source, message_id, window=0).received:
        if frame_size(source, each.box, each.seq) <= LARGE:
            return _of_frame(whole_frame(source, each.box, each.seq) or b"")
    return ()


def reply_of(fields: tuple[ReplyField, ...], given: Mapping[str, str]) -> dict[str, Any]:
    """
    Return the reply from a person's input; omit empty optional fields.

    Raises:
        InvalidMessage: a field is missing or of another type.

    """
    missing = [
        each.name
        for each in fields
        if each.required and each.kind != "boolean" and each.name not in given
    ]
    if missing:
        raise InvalidMessage(f"{', '.join(missing)}: a value is required")
    return {
        each.name: each.value(given.get(each.name, ""))
        for each in fields
        if each.name in given or each.kind == "boolean"
    }


def _of_frame(frame: bytes) -> tuple[ReplyField, ...]:
    try:
        schema = json.loads(json.loads(frame)["replyschema"])
        found = [_field(schema, name, each) for name, each in schema["properties"].items()]
    except (LookupError, TypeError, ValueError, AttributeError, RecursionError):
        return ()  # it has none, or one from another library
    return tuple(each for each in found if each) if all(found) else ()


def _field(schema: dict[str, Any], name: str, given: dict[str, Any]) -> ReplyField | None:
    """Return a property as a field; None for a list, an object or another type without input."""
    kinds = [_resolved(schema, each) for each in given.get("anyOf", [given])]
    nullable, kinds = NULL in kinds, [each for each in kinds if each != NULL]
    found = _kind(kinds)
    if found is None:
        return None
    kind, choices = found
    if kind == "boolean" and nullable:
        kind, choices = "choice", ("true", "false")
    meaning = str(given.get("description") or kinds[0].get("description") or "")
    return ReplyField(
        name=name,
        kind=kind,
        required=name in schema.get("required", ()) and not nullable,
        meaning=meaning,
        choices=choices,
        default=given.get("default"),
    )


def _resolved(schema: dict[str, Any], given: dict[str, Any]) -> dict[str, Any]:
    """Return a schema, or the definition that it refers to."""
    name = given.get("$ref")
    return given if name is None else {**schema["$defs"][name.removeprefix("#/$defs/")], **given}


def _kind(kinds: list[dict[str, Any]]) -> tuple[Kind, tuple[str, ...]] | None:
    """Return the kind of a field and its choices; several kinds become text."""
    if len(kinds) == 1 and (choices := _choices(kinds[0])):
        return "choice", choices
    names = {each.get("type") for each in kinds}
    if not names or not names <= {"string", "integer", "number", "boolean"}:
        return None
    if len(kinds) > 1:
        return ("text", ()) if "string" in names else None
    [name] = names
    if name == "string":
        return ("date" if kinds[0].get("format") in DATES else "text"), ()
    return NUMBERS.get(name, "boolean"), ()


def _choices(given: dict[str, Any]) -> tuple[str, ...]:
    values = [given["const"]] if "const" in given else given.get("enum", [])
    return tuple(json.dumps(each, ensure_ascii=False) for each in values)
