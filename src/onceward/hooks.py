"""
Call hooks after the commit, in order, on the thread that committed; a hook cannot veto.

An observer, such as a tracer, sees sends and attempts from start to end. It may add extension
attributes to the messages that are sent; it cannot veto either.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal, Protocol, TypeVar, cast

from onceward.errors import InvalidArgument
from onceward.message.clock import iso
from onceward.message.error_text import safe_repr
from onceward.message.events import EVENTS, Event, Expired, Polled
from onceward.message.frame import Frame
from onceward.message.log import Level, Log, log, quietly
from onceward.message.names import quoted
from onceward.message.vocabulary import Settlement

Hook = Callable[[Event], object]
E = TypeVar("E", bound=Event)
SendOutcome = Literal["committed", "known", "unconfirmed"]
"""
How a send ended: its messages were committed; a message of the same key or id was sent before;
or no commit is known: the send was refused, rolled back, or its outcome is unknown.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class SendFacts:
    """A send before its messages are composed."""

    agent: str
    session: str
    recipients: Sequence[str]
    topic: str | None
    channel: str | None
    headers: Mapping[str, Any]
    """Extension attributes that the caller gave; they take precedence over those of an observer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One attempt at a message, or at the messages of a run."""

    agent: str
    session: str
    frames: Sequence[Frame]
    number: int
    """Number of the attempt at its first message, from 1."""
    run_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StepFacts:
    """One call of the function of a step."""

    agent: str
    session: str
    message_id: str
    name: str
    """Its name, with its ordinal and version as ``onceward show`` prints them: ``think#2``."""
    number: int
    """Number of the call of its function, from 1."""


class ComposedMessage(Protocol):
    """The facts of a message that is composed but not stored yet."""

    @property
    def id(self) -> str:
        """Id of the message."""
        ...

    @property
    def type(self) -> str:
        """Wire name of its type."""
        ...

    @property
    def correlation_id(self) -> str | None:
        """Id of the conversation's first message; None if this is the first."""
        ...


class Sending:
    """One send under observation; override the methods that you need."""

    headers: Mapping[str, str] = {}
    """Extension attributes to add to each of its frames."""

    def composed(self, messages: Sequence[ComposedMessage]) -> None:
        """Receive the messages, on the thread that sends them."""

    def ended(self, outcome: SendOutcome, refused: type[BaseException] | None) -> None:
        """Receive the end, once, on any thread; *refused* is the class of the error."""


class Handling:
    """One attempt under observation; override the methods that you need."""

    def ended(self, settlements: Sequence[Settlement], error: BaseException | None) -> None:
        """
        Receive the end, on the attempt's thread, before its commit if attempts share one.

        *settlements* has one for each message, in their order; it is empty if another process or a
        reader settles them. *error* is the error of the handler.
        """


class Stepping:
    """One call of a step's function under observation; override the methods that you need."""

    def ended(self, error: BaseException | None) -> None:
        """Receive the end, in the thread or task of the call; *error* is the function's error."""


class Observer:
    """Sees the sends, attempts and steps of a postbox; override the methods that you need."""

    def sending(self, send: SendFacts) -> Sending | None:
        """Start to observe a send, on the thread of its caller; return None to ignore it."""

    def handling(self, attempt: Attempt) -> Handling | None:
        """Start to observe an attempt, on its thread; return None to ignore it."""

    def stepping(self, step: StepFacts) -> Stepping | None:
        """Start to observe a call of a step's function; return None to ignore it."""


class HasHooks(Protocol):
    """The part of a postbox, sync or async, that an observer needs."""

    def _event_hooks(self) -> Hooks: ...


def observe(box: HasHooks, observer: Observer) -> Callable[[], None]:
    """
    Let *observer* see every send and every attempt of a postbox from start to end.

    It may add extension attributes to the messages that are sent. It cannot veto: its errors are
    logged. Returns a function that ends the observation.
    """
    return box._event_hooks().observe(observer)


class Hooks:
    """Keep the hooks of a postbox by the class of their events."""

    def __init__(self) -> None:
        self._hooks: dict[type[Event], tuple[Hook, ...]] = {}
        self._held: list[Event] = []
        self.observers: tuple[Observer, ...] = ()
        """Observers of sends and attempts; usually none."""

    def on(self, kind: type[E], hook: Callable[[E], object]) -> Callable[[], None]:
        """
        Call *hook* with events of a class; return a function that unregisters it.

        Raises:
            InvalidArgument: *kind* is not a class of events.

        """
        if not (isinstance(kind, type) and issubclass(kind, Event)):
            known = ", ".join(each.__name__ for each in EVENTS.values())
            msg = f"event={quoted(kind)} must be a class of onceward.events: {known}"
            raise InvalidArgument(msg)
        if not callable(hook):
            raise InvalidArgument(f"hook={quoted(hook)} must be a function of an event")
        self._hooks[kind] = (*self._hooks.get(kind, ()), cast("Hook", hook))
        held, self._held = self._held, []
        for event in held:
            self.hold(event)

        def off() -> None:
            left = tuple(known for known in self._hooks.pop(kind, ()) if known is not hook)
            if left:
                self._hooks[kind] = left

        return off

    def observe(self, observer: Observer) -> Callable[[], None]:
        """Let *observer* see sends and attempts; return a function that unregisters it."""
        self.observers = (*self.observers, observer)

        def off() -> None:
            self.observers = tuple(known for known in self.observers if known is not observer)

        return off

    def __bool__(self) -> bool:
        """Return whether any hook is registered."""
        return bool(self._hooks)

    def wanted(self, kind: type[Event]) -> bool:
        """Return whether a hook takes events of *kind*; otherwise none need be built."""
        return bool(self._hooks) and not self._hooks.keys().isdisjoint(kind.__mro__)

    def _of(self, kind: type[Event]) -> list[Hook]:
        """Return the hooks of a class of events, those of its bases last."""
        return [hook for base in kind.__mro__ for hook in self._hooks.get(base, ())]

    def hold(self, event: Event) -> None:
        """Emit an event now, or, if no hook takes it yet, when the first one is registered."""
        if self.wanted(type(event)):
            self.emit([event])
        else:
            self._held.append(event)

    def emit(self, events: Iterable[Event]) -> None:
        """Call the hooks; an exception that a hook raises is logged and goes no further."""
        for event in events:
            for hook in self._of(type(event)):
                quietly(hook, event, failed=partial(_log_failed, event, hook))


def _log_failed(event: Event, hook: Hook, error: BaseException) -> None:
    _log_of(event).failure("error", "hook failed", error, hook=safe_repr(hook))


def _log_of(event: Event) -> Log:
    known = ("agent", "session", "message_id", "type", "attempt")
    found = {name: getattr(event, name) for name in known if hasattr(event, name)}
    return log.bind(on=event.name, **found)


LEVELS: Final[dict[str, Level]] = {
    "retried": "info",
    "delivery_failed": "warning",
    "rejected": "warning",
    "failed": "warning",
    "dropped": "warning",
    "nearly_full": "warning",
    "wal_deleted": "error",
    "weak_receipt": "warning",
    "dead_lettered": "error",
    "breaker_opened": "error",
    "breaker_closed": "info",
    "stream_forked": "error",
    "peer_rolled_back": "error",
}
"""Level by event name; all others are DEBUG, because writing a line costs more than an insert."""


class LogHook:
    """
    Write one structured line per event: its name is the text, its fields are the keys.

    Register it with ``box.on(Event, LogHook())``. Lines go to the log of the library, or to
    *logger*, any structlog logger. Events hold no bodies, so no body is logged.
    """

    def __init__(self, logger: Any = None) -> None:
        self._log = log if logger is None else logger

    def __call__(self, event: Event) -> None:
        """Write the line of one event."""
        write = getattr(self._log, LEVELS.get(event.name, "debug"))
        write(event.name, **{field.name: getattr(event, field.name) for field in fields(event)})


class AuditLog:
    """
    Append polls and expiries to a file of JSON lines that several processes may share.

    Each line is one write after the commit. A crash between the two leaves a gap; on a full disk
    lines are lost, never messages.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)

    def write(self, entries: Iterable[Mapping[str, Any]]) -> None:
        """Append entries, each whole; an entry that cannot be written is logged and dropped."""
        try:
            handle = os.open(
                self.path,
                os.O_WRONLY | os.O_APPEND | os.O_CREAT | getattr(os, "O_CLOEXEC", 0),
                0o600,
            )
            try:
                for entry in entries:
                    line = json.dumps(entry, ensure_ascii=False, separators=(",", ":"))
                    os.write(handle, f"{line}\n".encode(errors="replace"))
            finally:
                os.close(handle)
        except OSError as error:
            log.failure("warning", "audit not written", error, file=str(self.path))

    def __call__(self, event: Event) -> None:
        """Append a poll or an expiry; ignore other events."""
        if isinstance(event, Polled | Expired):
            self.write([_entry(event)])


def _entry(event: Polled | Expired) -> dict[str, Any]:
    about = {"ts": iso(event.at), "agent_id": event.agent, "session": event.session}
    if isinstance(event, Expired):
        return {"op": "expire", **about, "dropped": event.count}
    return {
        "op": "poll",
        **about,
        "topics": list(event.topics),
        "matched": event.matched,
        "cursor_from": event.cursor_from,
        "cursor_to": event.cursor_to,
    }
