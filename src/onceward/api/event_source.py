"""Subscribe to events by their class; a base class subscribes to all of its events."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from onceward.hooks import Hooks
from onceward.message.events import Event

E = TypeVar("E", bound=Event)
Off = Callable[[], None]
"""Ends a subscription."""


class EventSource:
    """Calls hooks with the events of one postbox."""

    def _event_hooks(self) -> Hooks:
        raise NotImplementedError

    def on(self, event: type[E], hook: Callable[[E], object]) -> Off:
        """
        Call *hook* with each event of a class, after its commit, on the thread that committed.

        A base class stands for all of its events: ``Event`` for every event, ``PeerEvent`` for
        those about peers. A hook cannot veto, and its errors are logged. Returns a function that
        ends the subscription.

        Raises:
            InvalidArgument: *event* is not a class of ``onceward.events``.

        """
        return self._event_hooks().on(event, hook)
