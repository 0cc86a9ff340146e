"""Explain a message from the files of its sender and recipient in the same home."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from onceward.errors import OncewardError
from onceward.file.read_only import FileReader, opened
from onceward.message.clock import Millis
from onceward.ops.views.messages import message
from onceward.ops.views.why import Why, message_why

Skipped = Callable[[Path, OncewardError], None]
"""Called for a file that cannot be read."""


def why_of_message(
    path: Path, message_id: str, now: Millis, skipped: Skipped = lambda _path, _error: None
) -> Why | None:
    """
    Return why a message waits or how it ended; None if the file does not know it.

    Raises:
        OncewardError: the file at *path* cannot be read.

    """
    with ExitStack() as stack:
        here = stack.enter_context(opened(path))
        known = message(here, message_id, window=0)
        if not known:
            return None
        one = known.rows[0]
        sender, recipient = (
            _opened(stack, path.with_name(f"{name}.db"), skipped)
            for name in (one.sender, one.recipient)
        )
        return message_why(sender or here, recipient or here, message_id, now)


def _opened(stack: ExitStack, path: Path, skipped: Skipped) -> FileReader | None:
    """Open a file of this home; None if it is missing or cannot be read."""
    if not path.exists():
        return None
    try:
        return stack.enter_context(opened(path))
    except OncewardError as error:
        skipped(path, error)
        return None
