"""Write and read the reason of an ended message: a word of the vocabulary, then details."""

from __future__ import annotations

from onceward.message.vocabulary import REASONS, Reason


def reason_text(reason: Reason, detail: str = "") -> str:
    """Return a reason as it is stored and told to peers: alone, or with ``: `` and details."""
    return f"{reason}: {detail}" if detail else reason


def reason_of(text: str) -> Reason | None:
    """Return the reason that a text begins with; None where the vocabulary has none."""
    word = text.partition(": ")[0]
    return word if word in REASONS else None
