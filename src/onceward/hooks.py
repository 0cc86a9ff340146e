"""Hooks: told after the commit, in order, on the thread that committed; they cannot veto and cannot harm."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from onceward.errors import InvalidArgument
from onceward.model.clock import iso
from onceward.model.events import EVENTS, Event, Expired, Polled

_log = logging.getLogger("onceward")

Hook = Callable[[Event], None]
ALL: Final = "*"


class Hooks:
    """Who wants to hear of which events."""

    def __init__(self) -> None:
        self._hooks: dict[str, tuple[Hook, ...]] = {}
        self._held: list[Event] = []

    def on(self, name: str, hook: Hook) -> Callable[[], None]:
        """
        Tell *hook* of every event called *name* (``*``: of all); returns the call that ends it.

        Raises:
            InvalidArgument: there is no event of that name.

        """
        if name != ALL and name not in EVENTS:
            msg = f"no event is called {name!r}: there are {', '.join(EVENTS)}"
            raise InvalidArgument(msg)
        self._hooks[name] = (*self._hooks.get(name, ()), hook)
        held, self._held = self._held, []
        for event in held:
            self.hold(event)

        def off() -> None:
            self._hooks[name] = tuple(known for known in self._hooks[name] if known is not hook)

        return off

    def __bool__(self) -> bool:
        """Whether anybody hears anything."""
        return bool(self._hooks)

    def wanted(self, kind: type[Event]) -> bool:
        """Return whether anybody hears events of *kind*, so that nobody builds them in vain."""
        return bool(self._hooks) and bool(self._hooks.get(kind.name) or self._hooks.get(ALL))

    def hold(self, event: Event) -> None:
        """Tell of an event now, or, where nobody wants it yet, once somebody does: it came before anybody could ask."""
        if self.wanted(type(event)):
            self.emit([event])
        else:
            self._held.append(event)

    def emit(self, events: Iterable[Event]) -> None:
        """Tell the hooks; one that raises is logged and harms nothing."""
        for event in events:
            for hook in (*self._hooks.get(event.name, ()), *self._hooks.get(ALL, ())):
                try:
                    hook(event)
                except Exception:  # noqa: BLE001 - a hook can harm nothing
                    _log.exception("hook %r failed on %s", hook, event.name)


LEVELS: Final = {
    "retry": "info",
    "delivery_failed": "warning",
    "rejected": "warning",
    "failed": "warning",
    "dropped": "warning",
    "nearly_full": "warning",
    "weak_receipt": "warning",
    "dead": "error",
    "breaker_opened": "error",
    "breaker_closed": "info",
    "stream_forked": "error",
    "peer_rolled_back": "error",
}
"""Level by event name; everything else is DEBUG, because one written line costs more than one insert."""


class LogHook:
    """
    One structured line per event: its name is the message, its fields are the keys.

    Bodies are not part of events, so none is ever logged. structlog is imported
    on first use.
    """

    def __init__(self, log: Any = None) -> None:
        if log is None:
            import structlog  # noqa: PLC0415 - costs more to import than the rest of the library

            log = structlog.get_logger("onceward")
        self._log = log

    def __call__(self, event: Event) -> None:
        """Write one line."""
        getattr(self._log, LEVELS.get(event.name, "debug"))(event.name, **asdict(event))


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
            handle = os.open(
                self.path,
                os.O_WRONLY | os.O_APPEND | os.O_CREAT | getattr(os, "O_CLOEXEC", 0),
                0o600,
            )
            try:
                for entry in entries:
                    os.write(
                        handle,
                        json.dumps(entry, ensure_ascii=False, separators=(",", ":")).encode(
                            errors="replace"
                        )
                        + b"\n",
                    )
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
                    [
                        {
                            "op": "expire",
                            "ts": iso(event.at),
                            "agent_id": event.agent,
                            "session": event.session,
                            "dropped": event.count,
                        }
                    ]
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
