"""An audit: one JSON line for each send, poll and expire. Metadata only; no body, and no id of a private mailbox, is ever in it."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from onceward.words.clock import iso
from onceward.words.events import Event, Expired, Polled

_log = logging.getLogger("onceward")


class AuditLog:
    """
    A file of JSON lines that several processes append to, each line by one write.

    It is written after the commit, so a crash between the two leaves a gap;
    a disk that is full costs lines, never mail.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)

    def write(self, entries: Iterable[Mapping[str, Any]]) -> None:
        """Append entries, each whole; what cannot be written is told to the log and harms nothing."""
        try:
            handle = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | getattr(os, "O_CLOEXEC", 0), 0o600)
            try:
                for entry in entries:
                    os.write(handle, json.dumps(entry, ensure_ascii=False, separators=(",", ":")).encode(errors="replace") + b"\n")
            finally:
                os.close(handle)
        except OSError as error:
            _log.warning("the audit %s was not written: %s", self.path, error)

    def __call__(self, event: Event) -> None:
        """Note a poll or an expire; other events are not audited."""
        match event:
            case Polled():
                self.write([_polled(event)])
            case Expired():
                self.write(
                    [{"op": "expire", "ts": iso(event.at), "agent_id": event.agent, "session": event.session, "dropped": event.count}]
                )


def _polled(event: Polled) -> dict[str, Any]:
    return {
        "op": "poll",
        "ts": iso(event.at),
        "agent_id": event.agent,
        "session": event.session,
        "topics": list(event.topics),
        "matched": event.matched,
        "cursor_from": event.cursor_from,
        "cursor_to": event.cursor_to,
    }
