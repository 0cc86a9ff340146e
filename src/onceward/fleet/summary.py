"""Combine the sums over judged messages into a report; both engines compute them."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from heapq import nsmallest
from itertools import accumulate
from math import ceil, log
from typing import Any, Final

from onceward.fleet.coverage import ALWAYS, READ, Reading
from onceward.fleet.report import Report
from onceward.fleet.verdicts import STUCK, VERDICTS, Rules
from onceward.message.clock import Millis, iso

LISTED: Final = 200
"""Rows of each kind that a report lists at most; the tables beside it have all."""
LOOK_AT: Final = (
    *(verdict.name for verdict in VERDICTS if verdict.weight in {"bad", "open"}),
    *STUCK,
)
SHOWN: Final = [
    "verdict", "id", "sender", "recipient", "sender_says", "recipient_says", "created_at",
    "received_at", "processed_at", "waits_for", "waits_until_at",
]  # fmt: skip
BAD: Final = tuple(verdict.name for verdict in VERDICTS if verdict.weight == "bad")
WIDTH: Final = 1.02
"""A bucket holds values up to two percent apart; its middle is at most one percent wrong."""
SHARES: Final = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "max": 1.0}
LANE_MARKS: Final = ("overtook", "arrived_late", "gap")
"""
Findings about a message within its lane: it was handled before one that was accepted earlier;
it arrived after one that was sent later, as delayed and replayed messages do; it waits or is lost
while later ones of its lane took effect.
"""
GAPS: Final = (*STUCK, "lost")
"""Verdicts of messages that leave a gap in their lane."""
WAITS: Final = ("kept", "waiting")
"""Verdicts of messages that wait as they should."""
WAITS_BY: Final = ("recipient", "verdict", "waits_for")
WAITS_SUMS: Final[Mapping[str, str]] = {
    "messages": "count(*)",
    "next_at": "min(waits_until_at)",
    "last_at": "max(waits_until_at)",
}
"""Sums over the messages of one recipient that wait for one thing."""
FROM_FILES: Final = "Files vouch for what they have now, back to what they have pruned."
FROM_LOG: Final = (
    "The log vouches for what its files had when a shipper looked at them last: all of them at"
    " {upto} or later. It does not see what was deleted from them by hand after it was shipped."
)
FROM_BOTH: Final = (
    "Files vouch for what they have now, the log for what they may have pruned since. A row that"
    " the log has and a file lacks, though it cannot have pruned it, was deleted."
)
UNLIMITED: Final = 50 * 365 * 86_400_000
"""Milliseconds after which a wait counts as one without a time limit."""
Rows = list[dict[str, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sums:
    """Sums over judged messages: one row per pair, span, hour and lane; moments are text."""

    pairs: Rows
    spans: Rows
    hours: Rows
    """``hour`` is the number of hours since 1970."""
    lanes: Rows
    examples: Rows
    waits: Rows
    """The reasons why messages wait: ``WAITS_BY`` and ``WAITS_SUMS``; moments are milliseconds."""


@lru_cache(maxsize=1 << 16)
def bucket_of(span: int) -> int:
    """Return the bucket of a span in milliseconds; below 50 ms each has its own."""
    if span <= 0:
        return -2 if span < 0 else -1
    return ceil(log(span) / log(WIDTH))


def middle(bucket: int) -> int:
    """Return the milliseconds that a bucket stands for; -1: the receiver's clock was behind."""
    return bucket + 1 if bucket < 0 else round(WIDTH ** (bucket - 0.5))


def percentiles_of(line: Sequence[tuple[int, int]]) -> dict[str, int]:
    """Return the percentiles of buckets with their counts, in order, in milliseconds."""
    upto = list(accumulate(count for _, count in line))
    if not upto:
        return {}
    places = {name: bisect_left(upto, ceil(share * upto[-1])) for name, share in SHARES.items()}
    return {name: middle(line[place][0]) for name, place in places.items()}


def report_of(sums: Sums, readings: Iterable[Reading], rules: Rules) -> Report:
    """Return the report on a fleet from the sums over its messages and its files."""
    known = sorted(readings, key=lambda one: one.path)
    read = [one for one in known if one.state == READ]
    unread = [one for one in known if one.state != READ]
    spans = _histogram(sums.spans)
    return Report(
        rules=rules,
        files=len(read),
        agents=len({one.agent for one in read}),
        verdicts=_verdicts(sums.pairs),
        unread=len(unread),
        quarantine=[
            {"path": one.path, "reason": one.state, "detail": one.detail} for one in unread[:LISTED]
        ],
        twins=_twins(read),
        percentiles=[
            {"span": kind, "messages": sum(n for _, n in line), **percentiles_of(line)}
            for kind, line in spans.items()
        ],
        histogram={kind: [(middle(at), n) for at, n in line] for kind, line in spans.items()},
        hours=_hours(sums.hours),
        pairs=_worst(sums.pairs),
        lanes=nsmallest(LISTED, sums.lanes, key=_by_disorder),
        lane_totals={name: sum(row[name] for row in sums.lanes) for name in LANE_MARKS},
        examples=sums.examples,
        waits=_waits(sums.waits, rules.now + UNLIMITED),
        evidence=evidence(read),
    )


def evidence(read: Iterable[Reading]) -> str:
    """Return in sentences what those that were read vouch for: files, files of a log, or both."""
    reached = sorted(one.upto_at for one in read)
    if not reached:
        return ""
    if reached[0] == ALWAYS:
        return FROM_FILES
    if reached[-1] == ALWAYS:
        return FROM_BOTH
    return FROM_LOG.format(upto=iso(reached[0]))


def _verdicts(pairs: Rows) -> dict[str, int]:
    counts = {v.name: sum(row[v.name] for row in pairs) for v in VERDICTS}
    return {name: count for name, count in counts.items() if count}


def _waits(waits: Rows, last: Millis) -> Rows:
    """Return what messages wait for, with moments as text; empty: without a time limit."""
    return [
        {
            name: (None if value is None or value > last else iso(value))
            if name.endswith("_at")
            else value
            for name, value in row.items()
        }
        for row in nsmallest(LISTED, waits, key=_by_number)
    ]


def _by_number(row: Mapping[str, Any]) -> tuple[Any, ...]:
    return -row["messages"], *(row[name] for name in WAITS_BY)


def _by_disorder(row: Mapping[str, Any]) -> tuple[Any, ...]:
    return -row["overtook"], -row["gap"], row["example"]


def _twins(read: Iterable[Reading]) -> Rows:
    files: defaultdict[str, list[str]] = defaultdict(list)
    for one in read:
        files[one.agent].append(one.path)
    return [
        {"agent": name, "files": ", ".join(sorted(paths))}
        for name, paths in sorted(files.items())
        if len(paths) > 1
    ][:LISTED]


def _histogram(spans: Rows) -> dict[str, list[tuple[int, int]]]:
    lines: defaultdict[str, Counter[int]] = defaultdict(Counter)
    for row in spans:
        lines[row["kind"]][row["bucket"]] += row["count"]
    return {kind: sorted(line.items()) for kind, line in sorted(lines.items())}


def _hours(hours: Rows) -> dict[str, list[tuple[int, int]]]:
    lines: dict[str, list[tuple[int, int]]] = {"sent": [], "processed": []}
    for row in sorted(hours, key=lambda one: one["hour"]):
        lines[row["what"]].append((row["hour"], row["count"]))
    return lines


def _worst(pairs: Rows) -> Rows:
    """Return the pairs with most bad messages, then most waiting, then the slowest."""
    ranked = ({**row, "bad": sum(row[name] for name in BAD)} for row in pairs)
    return nsmallest(LISTED, ranked, key=_by_badness)


def _by_badness(row: Mapping[str, Any]) -> tuple[Any, ...]:
    slow = -1 if row["p99"] is None else row["p99"]
    return -row["bad"], -row["unprocessed"], -slow, row["sender"], row["recipient"]
