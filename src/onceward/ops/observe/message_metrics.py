"""Measure how long messages, handlers and commits take in a working process."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Final

from prometheus_client import CollectorRegistry, Histogram

from onceward import Postbox
from onceward.events import DeadLettered, Processed, Retried, Sent
from onceward.file.transaction import StoreTransaction
from onceward.message.clock import monotonic
from onceward.message.events import MessageEvent
from onceward.ops.observe.names import DURATIONS, DurationMetric

OTHER: Final = "other"
"""Label of all types without their own series."""


class MessageMetrics:
    """
    Histograms of this process's postboxes, filled from their events.

    *types* are the message types that get a label; without any there is no label ``type``.
    """

    def __init__(self, registry: CollectorRegistry, *, types: Iterable[str] = ()) -> None:
        self._types = frozenset(types)
        made = {name: self._histogram(each, registry) for name, each in DURATIONS.items()}
        self._delivery, self._handling = made["delivery"], made["handling"]
        self._handler, self._commit = made["handler"], made["commit"]

    def watch(self, box: Postbox) -> Callable[[], None]:
        """Measure what *box* does; return the function that ends it."""
        writer, commits = box._db.writer, self._commit.labels(box.agent)
        writer.measured_commit = partial(_measured, commits)
        offs = [
            box.on(Sent, self._on_sent),
            box.on(Processed, self._on_processed),
            box.on(Retried, self._on_failed),
            box.on(DeadLettered, self._on_failed),
        ]

        def off() -> None:
            writer.measured_commit = None
            for each in offs:
                each()

        return off

    def _histogram(self, metric: DurationMetric, registry: CollectorRegistry) -> Histogram:
        labels = (*metric.labels, *self._by_type(metric))
        return Histogram(
            metric.name, metric.about, labels, buckets=metric.buckets, registry=registry
        )

    def _by_type(self, metric: DurationMetric) -> tuple[str, ...]:
        return ("type",) if self._types and metric is not DURATIONS["commit"] else ()

    def _labels(self, event: MessageEvent) -> tuple[str, ...]:
        if not self._types:
            return (event.agent,)
        return (event.agent, event.type if event.type in self._types else OTHER)

    def _on_sent(self, event: Sent) -> None:
        if event.created_at is not None:
            self._delivery.labels(*self._labels(event)).observe(_span(event.created_at, event.at))

    def _on_processed(self, event: Processed) -> None:
        if event.received_at is not None:
            waited = _span(event.received_at, event.at)
            self._handling.labels(*self._labels(event)).observe(waited)
        self._ran(event, event.took)

    def _on_failed(self, event: Retried | DeadLettered) -> None:
        self._ran(event, event.took)

    def _ran(self, event: MessageEvent, took: float | None) -> None:
        if took is not None:
            agent, *kind = self._labels(event)
            self._handler.labels(agent, event.name, *kind).observe(took)


def _span(since: int, until: int) -> float:
    """Return the seconds between two moments; None if a clock was set back."""
    return max(0, until - since) / 1000


def _measured(commits: Histogram, tx: StoreTransaction) -> None:
    began = monotonic()
    try:
        tx.commit()
    finally:
        commits.observe(monotonic() - began)
