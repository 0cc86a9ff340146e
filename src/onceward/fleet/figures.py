"""Count judged messages by pair, time taken, hour and lane, in one walk through the workspace."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import groupby
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
    """Pass rows on, counting verdict, hours and times of each."""
    verdicts, spans = pair.verdicts, pair.spans
    store, handle, effect = spans["store"], spans["handle"], spans["effect"]
    for row in rows:
        _, _, _, verdict, created, received, done, *_ = row
        verdicts[verdict] += 1
        if created is not None:
            sent[created // HOUR] += 1
        if done is not None:
            processed[done // HOUR] += 1
        if verdict in SETTLED:
            if received is not None and created is not None:
                store[bucket_of(received - created)] += 1
            if done is not None and received is not None:
                handle[bucket_of(done - received)] += 1
            if done is not None and created is not None:
                effect[bucket_of(done - created)] += 1
        yield row


def _lane(rows: Iterator[tuple[Any, ...]]) -> dict[str, Any] | None:
    """Return the counts of a lane that is out of order, from its rows in order of acceptance."""
    handled = sent = last = -1
    overtook = late = messages = 0
    waiting: list[int] = []
    example = ""
    for _, _, _, verdict, _, _, _, out_seq, in_seq, mark_seq, message_id in rows:
        messages += 1
        example = max(example, message_id)
        if mark_seq is not None:
            overtook += mark_seq < handled
            if out_seq is not None:
                last = max(last, out_seq)
        if verdict in GAPS and out_seq is not None:
            waiting.append(out_seq)
        if in_seq is not None:
            late += out_seq is not None and out_seq < sent
            handled = max(handled, mark_seq or -1)
            sent = max(sent, out_seq or -1)
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
