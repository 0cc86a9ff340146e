"""Collect how full the streams of NATS servers are for Prometheus."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Final

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

if TYPE_CHECKING:
    from onceward.nats import NatsListener

USED: Final = "onceward_nats_stream_bytes"
MOST: Final = "onceward_nats_stream_max_bytes"
NATS_METRICS: Final = {
    USED: "Used bytes of a stream at a NATS server, as a keeper sees it.",
    MOST: "Maximum bytes of that stream.",
}
"""The help text of each metric of a NATS server."""


class NatsMetrics(Collector):
    """
    Ask the servers of *listeners* for their streams at each scrape.

    A stream that no agent of the process may see, or that has no limit, has no values.
    """

    def __init__(self, listeners: Iterable[NatsListener]) -> None:
        self._listeners = tuple(listeners)

    def describe(self) -> Iterable[Metric]:
        """Return the metrics without values."""
        return _families()

    def collect(self) -> Iterator[Metric]:
        """Yield both metrics, by the url of the server and the name of the stream."""
        used, most = families = _families()
        for listener in self._listeners:
            for each in listener.streams():
                if each.max_bytes:
                    used.add_metric([listener.url, each.name], each.bytes)
                    most.add_metric([listener.url, each.name], each.max_bytes)
        yield from families


def _families() -> tuple[GaugeMetricFamily, GaugeMetricFamily]:
    labels = ["url", "stream"]
    return (
        GaugeMetricFamily(USED, NATS_METRICS[USED], labels=labels),
        GaugeMetricFamily(MOST, NATS_METRICS[MOST], labels=labels),
    )
