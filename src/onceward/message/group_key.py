"""Read the key of a message, by which a handler's limits are counted and groups take turns."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, is_dataclass
from hashlib import sha256
from typing import Any, Final

from pydantic import BaseModel
from pydantic_core import to_json

from onceward.errors import InvalidArgument
from onceward.message.frame import Frame
from onceward.message.names import no_option, quoted

ATTRIBUTES: Final[Mapping[str, Callable[[Frame], object]]] = {
    "sender": lambda frame: frame.sender,
    "session": lambda frame: frame.session,
    "type": lambda frame: frame.type,
    "topic": lambda frame: frame.topic,
    "channel": lambda frame: frame.channel,
    "priority": lambda frame: frame.priority_name,
    "ordering_key": lambda frame: frame.partitionkey,
    "correlation_id": lambda frame: frame.correlationid,
}
LONGEST: Final = 200
"""Longest text of a key that is stored as it is; a longer one is stored with its digest."""


@dataclass(frozen=True, slots=True)
class GroupKey:
    """Where the key of a message is: an attribute, a header, a field of the body, a function."""

    source: str
    """``attribute``, ``headers``, ``body`` or ``function``."""
    path: tuple[str, ...] = ()
    function: Callable[[Any], object] | None = None

    @property
    def needs_body(self) -> bool:
        """Whether the body must be read for the key."""
        return self.source in ("body", "function")

    def of(self, frame: Frame, body: Any) -> str:
        """Return the key of a message as text; empty for a message without one."""
        if self.function is not None:
            return key_text(self.function(body))
        if self.source == "attribute":
            return key_text(ATTRIBUTES[self.path[0]](frame))
        found: object = frame.headers if self.source == "headers" else body
        for name in self.path:
            found = found.get(name) if isinstance(found, Mapping) else getattr(found, name, None)
        return key_text(found)

    def check(self, body: Any) -> None:
        """Raise InvalidArgument if the class of the body is known and has no such field."""
        known = _fields_of(body)
        if self.source != "body" or known is None or self.path[0] in known:
            return
        msg = no_option(f"key='body.{'.'.join(self.path)}': {body.__name__}", self.path[:1], known)
        raise InvalidArgument(msg.replace("has no option", "has no field", 1))


def read_key(field: str, given: object) -> GroupKey:
    """Return where the key of a message is; raise InvalidArgument for anything else."""
    if callable(given):
        return GroupKey("function", function=given)
    if not isinstance(given, str) or not given:
        msg = f"{field}={quoted(given)} is not an attribute, body.FIELD, headers.NAME or a function"
        raise InvalidArgument(msg)
    first, *path = given.split(".")
    if first in ("body", "headers") and path and all(path):
        return GroupKey(first, tuple(path) if first == "body" else (".".join(path),))
    if given in ATTRIBUTES:
        return GroupKey("attribute", (given,))
    msg = no_option(f"{field}={quoted(given)}: a message", [given], ATTRIBUTES)
    more = f"; a field of the body is body.{path[-1] if path else given}"
    raise InvalidArgument(msg.replace("has no option", "has no attribute", 1) + more)


def key_text(value: object) -> str:
    """Return a key as text: equal values give equal texts, and None gives none."""
    if value is None:
        return ""
    if isinstance(value, str):
        text = value
    elif isinstance(value, float) and not math.isfinite(value):
        text = str(value)
    else:
        text = to_json(value, fallback=str).decode()
    if len(text) <= LONGEST and text.isprintable():
        return text
    digest = sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
    return "".join(each for each in text[: LONGEST // 2] if each.isprintable()) + "#" + digest


def _fields_of(body: Any) -> list[str] | None:
    """Return the fields of a class of bodies; None if other names may be in it."""
    if not isinstance(body, type):
        return None
    if issubclass(body, BaseModel):
        if body.model_config.get("extra") == "allow":
            return None
        computed = list(body.model_computed_fields)
        return [*body.model_fields, *computed, *(n for n in dir(body) if _is_property(body, n))]
    return [each.name for each in fields(body)] if is_dataclass(body) else None


def _is_property(body: type, name: str) -> bool:
    return isinstance(body.__dict__.get(name), property)
