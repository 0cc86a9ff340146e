"""Plant a mistake in a text, such as a statement."""

from __future__ import annotations


def replaced(text: str, before: str, after: str) -> str:
    """
    Return *text* with *after* in place of *before*.

    Raises:
        AssertionError: *before* is not there, so that nothing would be planted.

    """
    assert before in text, f"a planted mistake does not fit: {before!r} is not in {text!r}"
    return text.replace(before, after)
