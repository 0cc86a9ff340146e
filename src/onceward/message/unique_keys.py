"""Refuse JSON objects that name a key twice: readers disagree on which value holds."""

from __future__ import annotations

import json
from typing import Any

from onceward.errors import InvalidMessage
from onceward.message.quoting import quoted


def refuse_repeated_keys(text: str | bytes) -> None:
    """Raise InvalidMessage if an object of a JSON text names a key twice."""
    json.loads(text, object_pairs_hook=unique)


def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object of these pairs; raises InvalidMessage for a key that comes twice."""
    made = dict(pairs)
    if len(made) < len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        msg = f"key {quoted(twice)} comes twice in one JSON object: name it once"
        raise InvalidMessage(msg)
    return made
