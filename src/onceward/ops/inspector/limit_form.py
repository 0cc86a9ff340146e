"""Describe the forms of a handler's limit and of a type's pause, and apply what they hold."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from onceward.errors import InvalidArgument
from onceward.ops.inspector.schedule_form import text_field
from onceward.ops.views.handler_limits import handler_limits, rate_text

if TYPE_CHECKING:
    from onceward import Postbox
    from onceward.file.read_only import FileReader
    from onceward.ops.views.expected import ReplyField


def limit_fields(reader: FileReader, name: str) -> tuple[ReplyField, ...]:
    """Return the fields of a handler's limit, with its values; a new one also has a name."""
    found = next((each for each in handler_limits(reader) if each.name == name), None)
    rate, most = None, None
    if found is not None:
        rate = None if found.per_second is None else rate_text(found.per_second, None)
        most = None if found.concurrency is None else str(found.concurrency)
    named = (text_field("handler", "its type, topic or pattern", required=True),)
    return (
        *(() if name else named),
        text_field("rate", "such as 10/s or 100/m; unchanged if empty", rate),
        text_field("concurrency", "calls at once; unchanged if empty", most),
    )


def type_fields(reader: FileReader, name: str) -> tuple[ReplyField, ...]:
    """Return the field of a type to pause."""
    del reader, name
    return (text_field("type", "a type or topic, or a pattern such as order.*", required=True),)


def save_limit(box: Postbox, name: str | None, text: str) -> tuple[str, str]:
    """
    Set the limits of a handler; return its name, and what is set now.

    Raises:
        OncewardError: a field breaks its rules; nothing was changed.

    """
    given: dict[str, Any] = json.loads(text)
    handler, most = name or str(given.get("handler", "")), given.get("concurrency")
    if most and not str(most).isdecimal():
        raise InvalidArgument(f"concurrency {most!r} is not a whole number")
    box.limits.set(
        "handler",
        handler,
        rate=given.get("rate") or None,
        concurrency=int(most) if most else None,
    )
    return handler, "workers follow it from their next claim"


def paused_type(text: str) -> str:
    """Return the type of a filled form."""
    return str(json.loads(text).get("type", ""))
