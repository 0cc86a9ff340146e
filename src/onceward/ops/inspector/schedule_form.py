"""Describe the form of a schedule, and apply what was written into it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from onceward.message.vocabulary import MISSED, OVERLAPS
from onceward.ops.typed_body import typed_body
from onceward.ops.views import lists
from onceward.ops.views.expected import ReplyField

if TYPE_CHECKING:
    from onceward import Postbox
    from onceward.file.read_only import FileReader

DATES: Final = 5
"""Dates that the outcome names."""


def schedule_fields(reader: FileReader, name: str) -> tuple[ReplyField, ...]:
    """Return the fields of a schedule's form, with its values; a new one also has a name."""
    found = lists.schedule(reader, name) if name else None
    every = None if found is None or found.every is None else f"{found.every / 1000:g}s"
    named = () if found else (text_field("name", "letters, digits and . _ -", required=True),)
    return (
        *named,
        text_field(
            "cron", "minute, hour, day, month, weekday; or:", None if found is None else found.cron
        ),
        text_field("every", "an interval such as 15m", every),
        text_field(
            "timezone",
            "of cron, such as Europe/Zurich; UTC if empty",
            None if found is None else found.timezone,
        ),
        text_field(
            "to", "the recipient; this agent if empty", None if found is None else found.recipient
        ),
        text_field("type", "wire name of the type of its messages; unchanged if empty"),
        text_field("body", "JSON or plain text; unchanged, or a tick, if empty"),
        _choice(
            "missed",
            MISSED,
            "dates that passed without a sender",
            None if found is None else found.missed,
        ),
        _choice(
            "overlap",
            OVERLAPS,
            "while the last message waits",
            None if found is None else found.overlap,
        ),
    )


def text_field(
    name: str, meaning: str, value: str | None = None, *, required: bool = False
) -> ReplyField:
    """Return a field of a form, with a line of text."""
    return ReplyField(name=name, kind="text", required=required, meaning=meaning, default=value)


def _choice(
    name: str, choices: tuple[str, ...], meaning: str, value: str | None = None
) -> ReplyField:
    told = tuple(map(json.dumps, choices))
    chosen = None if value is None else json.dumps(value)
    return ReplyField(
        name=name, kind="choice", required=False, meaning=meaning, choices=told, default=chosen
    )


def save(box: Postbox, name: str | None, text: str) -> str:
    """
    Add a schedule, or change the one of *name*; return its next dates as text.

    Raises:
        OncewardError: a field breaks its rules; nothing was changed.

    """
    given: dict[str, Any] = json.loads(text)
    body = given.pop("body", "")
    if body:
        given["body"] = typed_body(body)
    stored = (
        box.schedules.add(given.pop("name"), **given)
        if name is None
        else box.schedules.edit(name, **given)
    )
    return ", ".join(stored.local(at).isoformat(" ") for at in stored.dates(DATES))
