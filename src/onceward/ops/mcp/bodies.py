"""Format bodies as text for a model, truncated if long."""

from __future__ import annotations

import json
from typing import Any, Final

from onceward.message.redaction import visible

WHOLE: Final = 20_000
"""Maximum characters of a requested body."""
GLANCE: Final = 2_000
"""Maximum characters of a body in a list."""


def as_text(body: Any) -> str:
    """Return a body as text: a text unchanged, other values as JSON."""
    return body if isinstance(body, str) else json.dumps(body, ensure_ascii=False)


def shown(body: Any, most: int) -> tuple[str, bool]:
    """Return a body's text with at most *most* characters, and whether it was truncated."""
    text = as_text(body)
    return visible(text[:most]), len(text) > most
