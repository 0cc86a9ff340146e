"""Count judged messages by pair, time taken, hour and lane, in one walk through the workspace."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
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
    SHOWN,
    Rows,
    Sums,
    bucket_of,
    percentiles_of,
)
from onceward.fleet.verdicts import NAMES, SETTLED

HOUR: Final = 3_600_000
MANY: Final = 4096
"""Rows that are counted at once: a third of the work of one by one."""
WALK: Final = """
SELECT sender, recipient, lane, verdict, created_at, received_at, processed_at, out_seq, in_seq,
       mark_seq, id
  FROM messages
 ORDER BY sender, recipient, lane, in_seq
"""
PAIR: Final = itemgetter(0, 1)
LANE: Final = itemgetter(2)
TABLES: Final = {
    "pairs": ("sender", "recipient", "messages", *NAMES, "p50", "p90", "p99", "max"),
    "spans": ("sender", "recipient", "kind", "bucket", "count"),
    "hours": ("hour", "what", "count"),
    "lanes": ("sender", "recipient", "lane", "messages", *LANE_MARKS, "example"),
}
"""The tables of figures, and their columns."""
FINDINGS: Final = f"CREATE VIEW findings AS SELECT * FROM messages WHERE verdict IN {LOOK_AT}"
EXAMPLES: Final = f"SELECT {', '.join(SHOWN)} FROM findings LIMIT {LISTED}"


@dataclass(slots=True)
class _Pair:
    """Counts of one sender and recipient."""

    verdicts: Counter[str] = field(default_factory=Counter)
    spans: defaultdict[str, Counter[int]] = field(default_factory=lambda: defaultdict(Counter))


def measure(con: apsw.Connection) -> Sums:
    """Write the tables of figures beside the messages, and return the sums for a report."""
    for name, columns in TABLES.items():
        con.execute(f"CREATE TABLE {name} ({', '.join(columns)})")
    con.execute(FINDINGS)
    sent: Counter[int] = Counter()
    processed: Counter[int] = Counter()
    pairs, spans, lanes = [], [], []
    for (sender, recipient), rows in groupby(con.execute(WALK), PAIR):
        pair = _Pair()
        for lane, members in groupby(_counted(rows, pair, sent, processed), LANE):
            found = _lane(members)
            if found and lane is not None:
                lanes.append({"sender": sender, "recipient": recipient, "lane": lane} | found)
        pairs.append(_pair_row(sender, recipient, pair))
        spans += [
            {"sender": sender, "recipient": recipient, "kind": kind, "bucket": at, "count": n}
            for kind, line in pair.spans.items()
            for at, n in sorted(line.items())
        ]
    hours = [
        {"hour": hour, "what": what, "count": n}
        for what, line in (("sent", sent), ("processed", processed))
        for hour, n in sorted(line.items())
    ]
    found_tables = {"pairs": pairs, "spans": spans, "hours": hours, "lanes": lanes}
    for name, found_rows in found_tables.items():
        _insert(con, name, found_rows)
    return Sums(pairs=pairs, spans=spans, hours=hours, lanes=lanes, examples=_examples(con))


def _counted(
    rows: Iterator[tuple[Any, ...]], pair: _Pair, sent: Counter[int], processed: Counter[int]
) -> Iterator[tuple[Any, ...]]:
    """Pass rows on, counting verdicts, hours and times of many at once."""
    while some := list(islice(rows, MANY)):
        _, _, _, verdicts, created, received, done, *_ = zip(*some, strict=True)
        pair.verdicts.update(verdicts)
        sent.update([at // HOUR for at in created if at is not None])
        processed.update([at // HOUR for at in done if at is not None])
        settled = [verdict in SETTLED for verdict in verdicts]
        for kind, begins, ends in (
            ("store", created, received),
            ("handle", received, done),
            ("effect", created, done),
        ):
            pair.spans[kind].update(_spans(compress(zip(begins, ends, strict=True), settled)))
        yield from some


def _spans(moments: Iterable[tuple[Any, Any]]) -> list[int]:
    """Return the buckets of the times between two moments, where both are known."""
    return [bucket_of(to - at) for at, to in moments if at is not None and to is not None]


def _lane(rows: Iterator[tuple[Any, ...]]) -> dict[str, Any] | None:
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
            last = out if out > last else last  # noqa: FURB136 - a call less for each message
        if out >= 0 and verdict in GAPS:
            waiting.append(out)
        if in_seq is not None:
            late += 0 <= out < sent
            handled = mark if mark > handled else handled  # noqa: FURB136 - as above
            sent = out if out > sent else sent  # noqa: FURB136 - as above
    gap = sum(seq < last for seq in waiting)
    if not overtook and not late and not gap:
        return None
    counts = dict(zip(LANE_MARKS, (overtook, late, gap), strict=True))
    return {"messages": messages, **counts, "example": example}


def _pair_row(sender: str, recipient: str, pair: _Pair) -> dict[str, Any]:
    times = percentiles_of(sorted(pair.spans["effect"].items()))
    return {
        "sender": sender,
        "recipient": recipient,
        "messages": pair.verdicts.total(),
        **{name: pair.verdicts[name] for name in NAMES},
        **{name: times.get(name) for name in ("p50", "p90", "p99", "max")},
    }


def _insert(con: apsw.Connection, name: str, rows: Rows) -> None:
    columns = TABLES[name]
    marks = ", ".join("?" * len(columns))
    con.executemany(
        f"INSERT INTO {name} VALUES ({marks})",
        [tuple(row[column] for column in columns) for row in rows],
    )


def _examples(con: apsw.Connection) -> Rows:
    return [dict(zip(SHOWN, row, strict=True)) for row in con.execute(EXAMPLES)]
