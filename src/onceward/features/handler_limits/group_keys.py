"""
Read the key of a message for its group; a stored body is read outside of the claim.

A body that is stored outside of its message may be in another machine's store, and a claim holds
the file's writer: the claim passes such a message over, the worker reads the body, and its next
claim knows the key.
"""

from __future__ import annotations

from typing import Final

from onceward.core.handle.signatures import Handler
from onceward.features.handler_limits import turns
from onceward.file import forks
from onceward.message.body import decode
from onceward.message.frame import Frame
from onceward.message.log import log

KEPT: Final = 1000
"""Groups of messages with stored bodies that are kept in memory."""


class GroupKeys:
    """The groups of messages with stored bodies, shared by the workers of one postbox."""

    def __init__(self) -> None:
        self._lock = forks.new_lock()
        self._known: dict[tuple[str, str], str] = {}
        """By the pattern of the handler and the frame."""
        self._reading = set[tuple[str, str]]()

    def group_of(self, handler: Handler, text: str) -> str | None:
        """Return the group of a message; None if its body must be read first."""
        key = handler.rules.key
        try:
            frame = Frame.accepted(text)
            if key is not None and key.needs_body and frame.has_stored_body:
                return self._known.get((handler.pattern, text))
            return _name(handler, frame)
        except Exception as error:  # noqa: BLE001 - the handler's call reports what is wrong with it
            return _without_key(handler, error)

    def read(self, handler: Handler, text: str) -> bool:
        """Read the body of a message for its group; return False if another worker reads it."""
        asked = handler.pattern, text
        with self._lock:
            if asked in self._reading:
                return False
            self._reading.add(asked)
        try:
            found = _name(handler, Frame.accepted(text).with_stored_body())
        except Exception as error:  # noqa: BLE001 - as above
            found = _without_key(handler, error)
        with self._lock:
            self._reading.discard(asked)
            self._known[asked] = found
            while len(self._known) > KEPT:
                del self._known[next(iter(self._known))]
        return True


def _name(handler: Handler, frame: Frame) -> str:
    key = handler.rules.key
    if key is None:
        return turns.name_of(handler.pattern, "")
    body = decode(frame.data, frame.data_base64, handler.body) if key.needs_body else None
    return turns.name_of(handler.pattern, key.of(frame, body))


def _without_key(handler: Handler, error: Exception) -> str:
    """Return the group of the messages whose key cannot be read."""
    log.write("warning", "the key of a message cannot be read", {"error": str(error)})
    return turns.name_of(handler.pattern, "")
