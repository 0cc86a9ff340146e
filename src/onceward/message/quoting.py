"""Quote a value or an error in a text; a long value is cut."""

from __future__ import annotations

from typing import Final

LONGEST: Final = 60
"""Characters of a value in an error text."""


def error_text(error: BaseException) -> str:
    """Return an error as ``Type: message``."""
    return f"{type(error).__name__}: {error}"


def quoted(value: object, longest: int = LONGEST) -> str:
    """
    Return a value as Python writes it, with at most *longest* of its characters.

    A cut text ends in an ellipsis and its quote, so that the reader sees where it ends.
    """
    if isinstance(value, str | bytes):
        text = repr(value[:longest])
        return text if len(value) <= longest else f"{text[:-1]}…{text[-1]}"
    text = repr(value)
    return text if len(text) <= longest else f"{text[:longest]}…"
