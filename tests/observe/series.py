"""List the series that Prometheus stores of onceward."""

from __future__ import annotations

from onceward.ops.observe.names import COUNTERS, DURATIONS, GAUGES, OLDEST_BY_PEER, READABLE


def exported() -> dict[str, tuple[str, ...]]:
    """Return the labels of every series by its name."""
    files = {each.name: ("agent",) for each in (*GAUGES, *COUNTERS)}
    parts = {
        f"{each.name}{part}": each.labels
        for each in DURATIONS.values()
        for part in ("_bucket", "_count", "_sum")
    }
    return files | {OLDEST_BY_PEER: ("agent", "peer"), READABLE: ("agent",)} | parts
