"""Describe the form of a schedule, and apply what was written into it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from onceward.message.dates import Schedule
from onceward.message.vocabulary import MISSED, OVERLAPS
from onceward.ops.views.expected import ReplyField

if TYPE_CHECKING:
    from onceward import Postbox

DATES: Final = 5
"""Dates that the outcome names."""


def schedule_fields(found: Schedule | None) -> tuple[ReplyField, ...]:
    """Return the fields of a schedule's form, with its values; a new one also has a name."""
    every = None if found is None or found.every is None else f"{found.every / 1000:g}s"
    named = () if found else (_text("name", "letters, digits and . _ -", required=True),)
    return (
        *named,
        _text(
            "cron", "minute, hour, day, month, weekday; or:", None if found is None else found.cron
        ),
        _text("every", "an interval such as 15m", every),
        _text(
            "timezone",
            "of cron, such as Europe/Zurich; UTC if empty",
            None if found is None else found.timezone,
        ),
        _text(
            "to", "the recipient; this agent if empty", None if found is None else found.recipient
        ),
        _text("type", "wire name of the type of its messages; unchanged if empty"),
        _text("body", "JSON or plain text; unchanged, or a tick, if empty"),
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


def _text(
    name: str, meaning: str, value: str | None = None, *, required: bool = False
) -> ReplyField:
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
        given["body"] = _parsed(body)
    stored = (
        box.schedules.add(given.pop("name"), **given)
        if name is None
        else box.schedules.edit(name, **given)
    )
    return ", ".join(stored.local(at).isoformat(" ") for at in stored.dates(DATES))


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text
