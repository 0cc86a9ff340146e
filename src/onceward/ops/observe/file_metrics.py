"""Collect the gauges and counters of agents' files for Prometheus."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from onceward.message.clock import Clock, Millis, SystemClock
from onceward.message.times import Span, seconds
from onceward.ops.observe.names import COUNTERS, GAUGES, OLDEST_BY_PEER, READABLE, FileMetric, age
from onceward.ops.observe.snapshots import FileSnapshot, Snapshots, agent_files
from onceward.ops.views.overview import Backlog

WITHIN: Final = 5.0
"""Maximum seconds in which one collection opens files; Prometheus waits ten by default."""
MOST_PEERS: Final = 20
"""Maximum peers of an agent with their own series."""
Taken = Callable[[], Sequence[FileSnapshot]]
"""Returns the newest snapshots of all files."""
OTHER: Final = "other"
"""Label of all other peers together."""


class FileMetrics(Collector):
    """
    Collect the metrics of all agents' files in *places*: homes, and single files.

    Homes are listed at each collection, so new agents appear automatically. The first *peers* peers
    of an agent with waiting messages are labels, all others are ``other``. If a program already has
    snapshots of its files, *taken* returns them, and no file is opened.
    """

    def __init__(
        self,
        places: Iterable[Path],
        *,
        peers: int = MOST_PEERS,
        within: Span | None = WITHIN,
        clock: Clock | None = None,
        taken: Taken | None = None,
    ) -> None:
        self._places, self._peers = tuple(places), peers
        self._within = None if within is None else seconds("within", within)
        self._clock = clock or SystemClock()
        self._snapshots = Snapshots(self._clock)
        self._taken = self._read if taken is None else taken
        self._labels: dict[str, dict[str, None]] = {}

    def describe(self) -> Iterable[Metric]:
        """Return the metrics without values: registering opens no file."""
        return [
            *(_family(each) for each in (*GAUGES, *COUNTERS)),
            _oldest(),
            _readable(),
        ]

    def collect(self) -> Iterator[Metric]:
        """Read the changed files, and yield every metric."""
        found = self._taken()
        now, named = self._clock.now(), named_apart(found)
        whole = [(name, each, each.overview) for name, each in named if each.overview]
        for metric in (*GAUGES, *COUNTERS):
            family = _family(metric)
            for name, each, numbers in whole:
                family.add_metric([name], metric.value(each, numbers, now))
            yield family
        yield self._by_peer([(name, numbers.outbox) for name, _, numbers in whole], now)
        family = _readable()
        for name, each in named:
            if each.taken_at:  # otherwise it has not been read yet
                family.add_metric([name], each.problem is None)
        yield family

    def _read(self) -> Sequence[FileSnapshot]:
        return self._snapshots.take(agent_files(self._places), within=self._within)

    def _by_peer(self, named: Sequence[tuple[str, Backlog]], now: Millis) -> Metric:
        family = _oldest()
        for name, backlog in named:
            for peer, waits in self._ages(name, backlog, now).items():
                family.add_metric([name, peer], waits)
        return family

    def _ages(self, name: str, backlog: Backlog, now: Millis) -> dict[str, float]:
        """Return the age by label; 0 for a peer that had waiting messages before."""
        known = self._labels.setdefault(name, {})
        ages = dict.fromkeys(known, 0.0)
        for peer, at in backlog:
            label = peer if peer in known or len(known) < self._peers else OTHER
            if label != OTHER:
                known[label] = None
            ages[label] = max(ages.get(label, 0.0), age(at, now))
        return ages


def named_apart(found: Sequence[FileSnapshot]) -> list[tuple[str, FileSnapshot]]:
    """Return snapshots by agent; if two files have the same agent, add their paths."""
    counts = Counter(each.agent for each in found)
    return [
        (each.agent if counts[each.agent] == 1 else f"{each.agent} {each.path}", each)
        for each in found
    ]


Family = GaugeMetricFamily | CounterMetricFamily


def _family(metric: FileMetric) -> Family:
    if metric.kind == "counter":
        return CounterMetricFamily(metric.name, metric.about, labels=["agent"])
    return GaugeMetricFamily(metric.name, metric.about, labels=["agent"])


def _oldest() -> GaugeMetricFamily:
    about = "Age of the oldest message that may be pushed to a peer."
    return GaugeMetricFamily(OLDEST_BY_PEER, about, labels=["agent", "peer"])


def _readable() -> GaugeMetricFamily:
    return GaugeMetricFamily(READABLE, "1 if the file could be read, else 0.", labels=["agent"])
