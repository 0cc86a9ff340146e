"""Count judged messages by pair, time taken, hour and lane, in one walk through the workspace."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import compress, groupby, islice
from operator import itemgetter
from typing import Any, Final

import apsw

from onceward.fleet.summary import (
    GAPS,
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
MANY: Final = 4096
"""Rows that are counted at once: a third of the work of one by one."""
BY_PAIR: Final = "CREATE INDEX by_pair ON messages (sender, recipient)"
"""It leaves small sorts, within a pair, to a walk by pair and lane."""
WALK: Final = """
SELECT sender, recipient, lane, verdict, created_at, received_at, processed_at, out_seq, in_seq,
       mark_seq, id
  FROM messages
 ORDER BY sender, recipient, lane, in_seq
"""
PAIR: Final = itemgetter(0, 1)
LANE: Final = itemgetter(2)
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
    sent: Counter[int] = field(default_factory=Counter)
    processed: Counter[int] = field(default_factory=Counter)

    @property
    def hours(self) -> list[Row]:
        """How many messages were sent, and how many took effect, in each hour."""
        lines = (("sent", self.sent), ("processed", self.processed))
        return [(hour, what, n) for what, line in lines for hour, n in sorted(line.items())]


@dataclass(frozen=True, slots=True)
class _Pair:
    """Counts of one sender and recipient."""

    verdicts: Counter[str] = field(default_factory=Counter)
    times: defaultdict[str, Counter[int]] = field(default_factory=lambda: defaultdict(Counter))
    """The number of messages by duration in milliseconds, for each kind."""

    def buckets(self) -> dict[str, list[tuple[int, int]]]:
        """Return by kind how many times lie in each bucket, in order."""
        found: dict[str, Counter[int]] = {}
        for kind, line in self.times.items():
            found[kind] = Counter()
            for ms, n in line.items():
                found[kind][bucket_of(ms)] += n
        return {kind: sorted(line.items()) for kind, line in found.items()}


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
    for names, rows in groupby(con.execute(WALK), PAIR):
        pair = _Pair()
        for lane, members in groupby(_counted(rows, pair, found), LANE):
            counts = _lane(members)
            if counts and lane is not None:
                found.lanes.append((*names, lane, *counts))
        spans = pair.buckets()
        found.pairs.append((*names, *_pair(pair.verdicts, spans["effect"])))
        found.spans.extend((*names, kind, *one) for kind, line in spans.items() for one in line)
    return found


def _counted(rows: Iterator[Row], pair: _Pair, found: _Figures) -> Iterator[Row]:
    """Pass rows on, counting verdicts, hours and times of many at once."""
    while some := list(islice(rows, MANY)):
        _, _, _, verdicts, created, received, done, *_ = zip(*some, strict=True)
        pair.verdicts.update(verdicts)
        found.sent.update([at // HOUR for at in created if at is not None])
        found.processed.update([at // HOUR for at in done if at is not None])
        settled = [verdict in SETTLED for verdict in verdicts]
        for kind, begins, ends in (
            ("store", created, received),
            ("handle", received, done),
            ("effect", created, done),
        ):
            pair.times[kind].update(_times(compress(zip(begins, ends, strict=True), settled)))
        yield from some


def _times(moments: Iterable[tuple[Any, Any]]) -> list[int]:
    """Return the milliseconds between two moments, if both are known."""
    return [to - at for at, to in moments if at is not None and to is not None]


def _pair(verdicts: Counter[str], effects: Sequence[tuple[int, int]]) -> Row:
    """Return the messages of a pair, those of each verdict, and percentiles of the whole time."""
    times = percentiles_of(effects)
    counts = (verdicts[name] for name in NAMES)
    return verdicts.total(), *counts, *(times.get(name) for name in SHARES)


def _lane(rows: Iterator[Row]) -> Row | None:
    """Return the counts of a lane that is out of order, from its rows in order of acceptance."""
    handled = sent = last = -1
    overtook = late = messages = 0
    waiting: list[int] = []
    example = ""
    for _, _, _, verdict, _, _, _, out_seq, in_seq, mark_seq, message_id in rows:
        messages += 1
        example = max(example, message_id)
        out, mark = -1 if out_seq is None else out_seq, -1 if mark_seq is None else mark_seq
        if mark >= 0:
            overtook += mark < handled
            last = out if out > last else last  # noqa: FURB136 - saves a call per message
        if out >= 0 and verdict in GAPS:
            waiting.append(out)
        if in_seq is not None:
            late += 0 <= out < sent
            handled = mark if mark > handled else handled  # noqa: FURB136 - as above
            sent = out if out > sent else sent  # noqa: FURB136 - as above
    gap = sum(seq < last for seq in waiting)
    if not overtook and not late and not gap:
        return None
    return messages, overtook, late, gap, example
