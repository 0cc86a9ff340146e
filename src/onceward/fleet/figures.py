"""Count judged messages by pair, time taken, hour and lane, in one walk through the workspace."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import compress, groupby, islice
from typing import Any, Final

import apsw

from onceward.fleet.lane_order import NONE, LaneOrder
from onceward.fleet.summary import (
    LANE_MARKS,
    LISTED,
    LOOK_AT,
    SHARES,
    SHOWN,
    WAITS,
    WAITS_BY,
    WAITS_SUMS,
    Rows,
    Sums,
    bucket_of,
    percentiles_of,
)
from onceward.fleet.verdicts import NAMES, SETTLED

HOUR: Final = 3_600_000
MANY: Final = 256
"""Rows that are counted at once; more would leave the processor's cache, and wake the collector."""
BY_PAIR: Final = "CREATE INDEX by_pair ON messages (sender, recipient)"
PAIRS: Final = "SELECT DISTINCT sender, recipient FROM messages"
KINDS: Final[Mapping[str, str]] = {
    "store": "received_at - created_at",
    "handle": "processed_at - received_at",
    "effect": "processed_at - created_at",
}
"""The times that are measured, in milliseconds."""
WALK: Final = f"""
SELECT lane, created_at / {HOUR}, processed_at / {HOUR},
       {", ".join(KINDS.values())},
       verdict, coalesce(out_seq, {NONE}), coalesce(in_seq, {NONE}), coalesce(mark_seq, {NONE}), id
  FROM messages
 WHERE sender IS ? AND recipient IS ? ORDER BY lane, in_seq
"""
TABLES: Final = {
    "pairs": ("sender", "recipient", "messages", *NAMES, *SHARES),
    "spans": ("sender", "recipient", "kind", "bucket", "count"),
    "hours": ("hour", "what", "count"),
    "lanes": ("sender", "recipient", "lane", "messages", *LANE_MARKS, "example"),
}
"""The tables of figures, and their columns."""
CREATE: Final = "CREATE TABLE {name} ({columns})"
ADD: Final = "INSERT INTO {name} VALUES ({marks})"
SPAN: Final = ("kind", "bucket", "count")
HISTOGRAM: Final = "SELECT kind, bucket, sum(count) FROM spans GROUP BY kind, bucket"
FINDINGS: Final = f"CREATE VIEW findings AS SELECT * FROM messages WHERE verdict IN {LOOK_AT}"
EXAMPLES: Final = f"SELECT {', '.join(SHOWN)} FROM findings LIMIT {LISTED}"
WAITING: Final = f"""
SELECT {", ".join(WAITS_BY)}, {", ".join(WAITS_SUMS.values())} FROM messages
 WHERE verdict IN {WAITS} GROUP BY {", ".join(WAITS_BY)}
"""
Row = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class _Figures:
    """The rows of the tables so far."""

    pairs: list[Row] = field(default_factory=list)
    spans: list[Row] = field(default_factory=list)
    lanes: list[Row] = field(default_factory=list)
    sent: Counter[int | None] = field(default_factory=Counter)
    processed: Counter[int | None] = field(default_factory=Counter)

    @property
    def hours(self) -> list[Row]:
        """How many messages were sent, and how many took effect, in each hour."""
        lines = (("sent", self.sent), ("processed", self.processed))
        return [(hour, what, n) for what, line in lines for hour, n in sorted(_known(line))]


@dataclass(frozen=True, slots=True)
class _Pair:
    """Counts of one sender and recipient."""

    verdicts: Counter[str] = field(default_factory=Counter)
    times: dict[str, Counter[int | None]] = field(
        default_factory=lambda: {kind: Counter() for kind in KINDS}
    )
    """The number of messages by duration in milliseconds, for each kind."""

    def add(self, verdicts: Sequence[str], times: Iterable[Sequence[int | None]]) -> None:
        """Count messages, and the *times* of settled ones in the order of ``KINDS``."""
        self.verdicts.update(verdicts)
        settled = [verdict in SETTLED for verdict in verdicts]
        for counts, line in zip(self.times.values(), times, strict=True):
            counts.update(compress(line, settled))

    def buckets(self) -> dict[str, list[tuple[int, int]]]:
        """Return by kind how many times lie in each bucket, in order."""
        return {kind: _buckets(line) for kind, line in self.times.items()}


def measure(con: apsw.Connection) -> Sums:
    """Write the tables of figures beside the messages, and return the sums for a report."""
    with con:  # one transaction: a row a commit was half of the work
        con.execute(BY_PAIR)
        con.execute(FINDINGS)
        found = _walk(con)
        for name, columns in TABLES.items():
            con.execute(CREATE.format(name=name, columns=", ".join(columns)))
            marks = ", ".join("?" * len(columns))
            con.executemany(ADD.format(name=name, marks=marks), getattr(found, name))
    return Sums(
        pairs=_named(TABLES["pairs"], found.pairs),
        spans=_named(SPAN, con.execute(HISTOGRAM)),
        hours=_named(TABLES["hours"], found.hours),
        lanes=_named(TABLES["lanes"], found.lanes),
        examples=_named(SHOWN, con.execute(EXAMPLES)),
        waits=_named((*WAITS_BY, *WAITS_SUMS), con.execute(WAITING)),
    )


def _named(names: Sequence[str], rows: Iterable[Row]) -> Rows:
    return [dict(zip(names, row, strict=True)) for row in rows]


def _walk(con: apsw.Connection) -> _Figures:
    found = _Figures()
    for names in con.execute(PAIRS).fetchall():
        pair = _Pair()
        for lane, order in _lanes(con.execute(WALK, names), pair, found):
            if lane is not None and (counts := order.row):
                found.lanes.append((*names, lane, *counts))
        spans = pair.buckets()
        found.pairs.append((*names, *_pair(pair.verdicts, spans["effect"])))
        found.spans.extend((*names, kind, *one) for kind, line in spans.items() for one in line)
    return found


def _lanes(rows: Iterator[Row], pair: _Pair, found: _Figures) -> Iterator[tuple[Any, LaneOrder]]:
    """Yield each lane of a pair with its order; count the rest of many rows at once."""
    lane, order = None, LaneOrder()
    while some := list(zip(*islice(rows, MANY), strict=True)):
        lanes, sent, processed, store, handle, effect, *columns = some
        _add_hours(found.sent, sent)
        _add_hours(found.processed, processed)
        pair.add(columns[0], (store, handle, effect))
        first = 0
        for name, members in groupby(lanes):
            if name != lane and order.messages:
                yield lane, order
                order = LaneOrder()
            lane, last = name, first + len(list(members))
            order.add(*(column[first:last] for column in columns))
            first = last
    yield lane, order


def _buckets(times: Counter[int | None]) -> list[tuple[int, int]]:
    found: defaultdict[int, int] = defaultdict(int)
    for ms, n in _known(times):
        found[bucket_of(ms)] += n
    return sorted(found.items())


def _add_hours(hours: Counter[int | None], some: Iterable[int | None]) -> None:
    """Count hours in which mostly many messages follow each other."""
    for hour, same in groupby(some):
        hours[hour] += len(list(same))


def _known(counts: Counter[Any]) -> list[tuple[int, int]]:
    """Return numbers with their counts, without that of rows that have none."""
    return [(number, n) for number, n in counts.items() if number is not None]


def _pair(verdicts: Counter[str], effects: Sequence[tuple[int, int]]) -> Row:
    """Return the messages of a pair, those of each verdict, and percentiles of the whole time."""
    times = percentiles_of(effects)
    counts = (verdicts[name] for name in NAMES)
    return verdicts.total(), *counts, *(times.get(name) for name in SHARES)
