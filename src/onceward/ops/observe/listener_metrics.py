"""Collect the connections of a process's HTTP listeners for Prometheus."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

if TYPE_CHECKING:
    from onceward.http import HttpListener

OPEN: Final = "onceward_listener_connections"
MOST: Final = "onceward_listener_connections_max"
REFUSED: Final = "onceward_listener_refused"
DISPLACED: Final = "onceward_listener_displaced"
LISTENER_METRICS: Final = {
    OPEN: "Connections by kind: unknown callers, peers, and held questions for parcels.",
    MOST: "Maximum connections; kind is connections for all, held for those that hold a question.",
    f"{REFUSED}_total": "Connections and questions that were refused for now.",
    f"{DISPLACED}_total": "Connections that were closed for a newer one.",
}
"""The help text of each metric of a listener."""


class ListenerMetrics(Collector):
    """Collect how many connections *listeners* have, and have refused since they started."""

    def __init__(self, listeners: Iterable[HttpListener]) -> None:
        self._listeners = tuple(listeners)

    def describe(self) -> Iterable[Metric]:
        """Return the metrics without values."""
        return _families()

    def collect(self) -> Iterator[Metric]:
        """Yield every metric, by the url of its listener."""
        connections, most, refused, displaced = families = _families()
        for each in self._listeners:
            found = each.connections()
            if found is None:
                continue
            connections.add_metric([each.url, "stranger"], found.strangers)
            connections.add_metric([each.url, "peer"], found.peers)
            connections.add_metric([each.url, "held"], found.held)
            most.add_metric([each.url, "connections"], found.most)
            most.add_metric([each.url, "held"], found.most_held)
            refused.add_metric([each.url], found.refused)
            displaced.add_metric([each.url], found.displaced)
        yield from families


def _families() -> tuple[
    GaugeMetricFamily, GaugeMetricFamily, CounterMetricFamily, CounterMetricFamily
]:
    about, labels = LISTENER_METRICS, ["url", "kind"]
    return (
        GaugeMetricFamily(OPEN, about[OPEN], labels=labels),
        GaugeMetricFamily(MOST, about[MOST], labels=labels),
        CounterMetricFamily(REFUSED, about[f"{REFUSED}_total"], labels=labels[:1]),
        CounterMetricFamily(DISPLACED, about[f"{DISPLACED}_total"], labels=labels[:1]),
    )
