"""What is sent in every case: one small typed message whose JSON has 512 bytes."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final, cast

from onceward import Msg, Postbox
from onceward.message.parcel import Durability

BODY_BYTES: Final = 512
UNBOUNDED: Final = 1 << 40


class Note(Msg, type="bench.note"):
    """A number and some text."""

    number: int
    text: str


def note(number: int = 0, size: int = BODY_BYTES) -> Note:
    """Return a message whose JSON has *size* bytes."""
    bare = len(f'{{"number":{number},"text":""}}')
    return Note(number=number, text="x" * max(0, size - bare))


def idle_box(folder: Path, durability: str, **settings: Any) -> Postbox:
    """Open a postbox whose engines stand still, for what is measured without them."""
    return Postbox(
        folder / "alice.db",
        agent="alice",
        start=False,
        durability=cast("Durability", durability),
        hold_unknown=True,
        max_pending=UNBOUNDED,
        **settings,
    )
