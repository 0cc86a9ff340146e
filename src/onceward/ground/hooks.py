"""Hooks: told after the commit, in order, on the thread that committed; they cannot veto and cannot harm."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Final

from onceward.errors import InvalidArgument
from onceward.words.events import ALIASES, EVENTS, Event

Hook = Callable[[Event], None]
ALL: Final = "*"
_log = logging.getLogger("onceward")


class Hooks:
    """Who wants to hear of which events."""

    def __init__(self) -> None:
        self._told: dict[str, tuple[Hook, ...]] = {}
        self._held: list[Event] = []

    def on(self, name: str, hook: Hook) -> Callable[[], None]:
        """
        Tell *hook* of every event called *name* (``*``: of all); returns the call that ends it.

        Raises:
            InvalidArgument: there is no event of that name.

        """
        real = ALIASES.get(name, name)
        if real != ALL and real not in EVENTS:
            msg = f"no event is called {name!r}: there are {', '.join(EVENTS)}"
            raise InvalidArgument(msg)
        self._told[real] = (*self._told.get(real, ()), hook)
        held, self._held = self._held, []
        for event in held:
            self.hold(event)

        def off() -> None:
            self._told[real] = tuple(known for known in self._told[real] if known is not hook)

        return off

    def __bool__(self) -> bool:
        """Whether anybody hears anything."""
        return bool(self._told)

    def wanted(self, kind: type[Event]) -> bool:
        """Return whether anybody hears events of *kind*, so that nobody builds them in vain."""
        return bool(self._told) and bool(self._told.get(kind.name) or self._told.get(ALL))

    def hold(self, event: Event) -> None:
        """Tell of an event now, or, where nobody wants it yet, once somebody does: it came before anybody could ask."""
        if self.wanted(type(event)):
            self.tell([event])
        else:
            self._held.append(event)

    def tell(self, events: Iterable[Event]) -> None:
        """Tell the hooks; one that raises is logged and harms nothing."""
        for event in events:
            for hook in (*self._told.get(event.name, ()), *self._told.get(ALL, ())):
                try:
                    hook(event)
                except Exception:  # noqa: BLE001 - a hook can harm nothing
                    _log.exception("hook %r failed on %s", hook, event.name)
