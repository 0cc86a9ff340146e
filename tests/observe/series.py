"""List the series that Prometheus stores of onceward."""

from __future__ import annotations

from onceward.ops.observe.names import COUNTERS, DURATIONS, GAUGES, OLDEST_BY_PEER, READABLE
from onceward.ops.observe.nats_metrics import NATS_METRICS


def exported() -> dict[str, tuple[str, ...]]:
    """Return the labels of every series by its name."""
    files = {each.name: ("agent",) for each in (*GAUGES, *COUNTERS)}
    parts = {
        f"{each.name}{part}": each.labels
        for each in DURATIONS.values()
        for part in ("_bucket", "_count", "_sum")
    }
    brokers = dict.fromkeys(NATS_METRICS, ("url", "stream"))
    return files | brokers | {OLDEST_BY_PEER: ("agent", "peer"), READABLE: ("agent",)} | parts
