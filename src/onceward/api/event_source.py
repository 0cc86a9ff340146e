"""Subscribe to events, typed: a hook gets the class of the event that it names."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, TypeVar, overload

from onceward.hooks import Hooks
from onceward.message import events as e

E = TypeVar("E", bound=e.Event)
EventHook = Callable[[E], object]
"""Is called with events after their commit; it cannot veto, and its errors are logged."""
Off = Callable[[], None]
"""Ends a subscription."""


class EventSource:
    """Calls hooks with the events of one postbox."""

    def _event_hooks(self) -> Hooks:
        raise NotImplementedError

    @overload
    def on(self, event: Literal["acked"], hook: EventHook[e.Acked]) -> Off: ...

    @overload
    def on(self, event: Literal["breaker_closed"], hook: EventHook[e.BreakerClosed]) -> Off: ...

    @overload
    def on(self, event: Literal["breaker_opened"], hook: EventHook[e.BreakerOpened]) -> Off: ...

    @overload
    def on(self, event: Literal["cancelled"], hook: EventHook[e.Cancelled]) -> Off: ...

    @overload
    def on(self, event: Literal["dead"], hook: EventHook[e.DeadLettered]) -> Off: ...

    @overload
    def on(self, event: Literal["delivery_failed"], hook: EventHook[e.DeliveryFailed]) -> Off: ...

    @overload
    def on(self, event: Literal["dropped"], hook: EventHook[e.Dropped]) -> Off: ...

    @overload
    def on(self, event: Literal["duplicate"], hook: EventHook[e.Duplicate]) -> Off: ...

    @overload
    def on(self, event: Literal["enqueued"], hook: EventHook[e.Enqueued]) -> Off: ...

    @overload
    def on(
        self, event: Literal["ephemeral_dropped"], hook: EventHook[e.EphemeralDropped]
    ) -> Off: ...

    @overload
    def on(self, event: Literal["expired"], hook: EventHook[e.Expired]) -> Off: ...

    @overload
    def on(self, event: Literal["failed"], hook: EventHook[e.Failed]) -> Off: ...

    @overload
    def on(self, event: Literal["message_bound"], hook: EventHook[e.MessageBound]) -> Off: ...

    @overload
    def on(self, event: Literal["nearly_full"], hook: EventHook[e.NearlyFull]) -> Off: ...

    @overload
    def on(self, event: Literal["overflowed"], hook: EventHook[e.Overflowed]) -> Off: ...

    @overload
    def on(self, event: Literal["peer_rolled_back"], hook: EventHook[e.PeerRolledBack]) -> Off: ...

    @overload
    def on(self, event: Literal["polled"], hook: EventHook[e.Polled]) -> Off: ...

    @overload
    def on(self, event: Literal["processed"], hook: EventHook[e.Processed]) -> Off: ...

    @overload
    def on(self, event: Literal["received"], hook: EventHook[e.Received]) -> Off: ...

    @overload
    def on(self, event: Literal["rejected"], hook: EventHook[e.Rejected]) -> Off: ...

    @overload
    def on(self, event: Literal["retry"], hook: EventHook[e.Retried]) -> Off: ...

    @overload
    def on(self, event: Literal["run_aborted"], hook: EventHook[e.RunWasAborted]) -> Off: ...

    @overload
    def on(self, event: Literal["run_ended"], hook: EventHook[e.RunEnded]) -> Off: ...

    @overload
    def on(self, event: Literal["run_left"], hook: EventHook[e.RunLeft]) -> Off: ...

    @overload
    def on(self, event: Literal["run_started"], hook: EventHook[e.RunStarted]) -> Off: ...

    @overload
    def on(self, event: Literal["sent"], hook: EventHook[e.Sent]) -> Off: ...

    @overload
    def on(self, event: Literal["stream_forked"], hook: EventHook[e.StreamForked]) -> Off: ...

    @overload
    def on(self, event: Literal["weak_receipt"], hook: EventHook[e.WeakReceipt]) -> Off: ...

    @overload
    def on(self, event: Literal["*"], hook: EventHook[e.Event]) -> Off: ...

    def on(self, event: str, hook: Any) -> Off:
        """
        Call *hook* with every event of that name (``*``: all), on the thread that committed.

        Returns a function that unregisters it.

        Raises:
            InvalidArgument: there is no event of that name.

        """
        return self._event_hooks().on(event, hook)
