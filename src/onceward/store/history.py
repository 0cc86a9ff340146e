"""Looking back: pages of past messages, whole conversations; nothing here consumes anything."""

from __future__ import annotations

import heapq
import json
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import islice
from typing import Any, Final

from onceward.db.database import Database
from onceward.errors import InvalidArgument
from onceward.model.names import rank
from onceward.model.topics import WILD, check_pattern, matches
from onceward.store.bodies_search import BATCH, NEVER, SOURCES, HistoryFilter, Hit, Scan, Source
from onceward.store.queries import HistoryEntry, Page
from onceward.store.regexp import Pattern

FILTERS: Final = (
    "session", "sender", "recipient", "type", "topic", "state", "since", "until", "channel", "kind", "priority", "correlation_id",
    "content",
)  # fmt: skip
STATES: Final = frozenset[str]().union(*(place.states for place in SOURCES))
TOKEN: Final = re.compile(r"(\d+)\.(\d+)\.(\d+)\.(\d+)")
# An id is unique for each sender: the index on both is asked once for each sender there is.
OF_ID: Final = """
WITH RECURSIVE senders (name) AS (
    SELECT min(sender) FROM inbox
     UNION ALL
    SELECT (SELECT min(sender) FROM inbox WHERE sender > senders.name) FROM senders WHERE senders.name IS NOT NULL
)
SELECT 'outbox', seq, created_at, id FROM outbox WHERE id = :id
 UNION ALL
SELECT 'inbox', b.seq, b.received_at, b.id FROM senders AS s JOIN inbox AS b ON b.sender = s.name AND b.id = :id
 UNION ALL
SELECT 'dead_letters', seq, created_at, id FROM dead_letters WHERE id = :id
"""
FOLLOWING: Final = """
SELECT 'outbox', seq, created_at, id FROM outbox WHERE correlation_id = :root
 UNION ALL
SELECT 'inbox', seq, received_at, id FROM inbox WHERE correlation_id = :root
 UNION ALL
SELECT 'dead_letters', seq, created_at, id FROM dead_letters WHERE correlation_id = :root
"""
CAUSE: Final = """
SELECT CASE WHEN json_valid(m.frame) THEN coalesce(m.frame ->> '$.correlationid', m.frame ->> '$.causationid') END
  FROM (SELECT {frame} AS frame FROM {table} AS m WHERE m.seq = ?) AS m
"""


def find(
    db: Database,
    *,
    limit: int = 100,
    offset: int = 0,
    after: str | None = None,
    count: bool = True,
    **filters: Any,
) -> Page:
    """
    Return sent, received and dead messages, newest first.

    Filters, all of which must hold: session, sender, recipient, type, topic
    (also a pattern), state, since and until (milliseconds), channel, kind and
    priority (also several), correlation_id, content (a regular expression that
    occurs in the body's text). Channel, correlation, the sender of received
    mail and time cost what they find; the others cost what is left to look at.

    ``Page.next``, given as *after*, goes on where a page ended, however much
    came since. ``count=False`` leaves ``total_count`` out and stops early.

    Raises:
        InvalidArgument: a filter of that name does not exist, or its value is none.

    """
    if limit < 0 or offset < 0:
        msg = "limit and offset must not be negative"
        raise InvalidArgument(msg)
    cuts = _cuts(after)
    with _wanted(
        db.agent, {name: value for name, value in filters.items() if value is not None}
    ) as wanted:
        walks = [Scan(db, place, wanted) for place in wanted.sources()]
        total = sum(walk.count() for walk in walks) if count else None
        found = [
            walk.found(cuts[walk.source.table], min(offset + limit + 1, BATCH)) for walk in walks
        ]
        chosen = list(
            islice(heapq.merge(*found, key=lambda each: each.at, reverse=True), offset + limit + 1)
        )
    page, more = chosen[offset : offset + limit], len(chosen) > offset + limit
    return Page(
        rows(db, page), total, more, _token(cuts, chosen[: offset + limit]) if more else None
    )


@contextmanager
def _wanted(agent: str, filters: dict[str, Any]) -> Iterator[HistoryFilter]:
    unknown = set(filters) - set(FILTERS)
    if unknown:
        msg = f"history filters are {', '.join(FILTERS)}; got {', '.join(sorted(unknown))}"
        raise InvalidArgument(msg)
    values = {
        name: value
        for name, value in filters.items()
        if name not in {"topic", "content", "kind", "priority"}
    }
    if values.get("state", "dead") not in STATES:
        msg = f"state {values['state']!r} is none of {', '.join(sorted(STATES))}"
        raise InvalidArgument(msg)
    if "kind" in filters:
        values["kind"] = json.dumps(_listed(filters["kind"]))
    if "priority" in filters:
        values["rank"] = json.dumps([rank(name) for name in _listed(filters["priority"])])
    topic = None
    if (pattern := filters.get("topic")) is not None:
        check_pattern(pattern)
        if WILD & set(pattern):
            topic = partial(matches, pattern)
        else:
            values["topic"] = pattern
    content = Pattern(filters["content"]) if "content" in filters else None
    try:
        yield HistoryFilter(agent, values, topic, None if content is None else content.found)
    finally:
        if content is not None:
            content.close()


def _listed(value: str | Iterable[str]) -> list[str]:
    return [value] if isinstance(value, str) else list(value)


def rows(db: Database, chosen: list[Hit]) -> list[HistoryEntry]:
    """Read the chosen messages whole, place by place, and put them in their order."""
    read: dict[tuple[str, int], HistoryEntry] = {}
    for place in SOURCES:
        seqs = [each.seq for each in chosen if each.source is place]
        if seqs:
            sql = f"SELECT m.seq, {place.columns()} FROM json_each(:seqs) AS j JOIN {place.table} AS m ON m.seq = j.value"
            for seq, *row in db.read(sql, {"seqs": json.dumps(seqs), "agent": db.agent}):
                read[place.table, seq] = HistoryEntry(*row)
    return [read[key] for each in chosen if (key := (each.source.table, each.seq)) in read]


def _cuts(after: str | None) -> dict[str, tuple[int, int]]:
    if after is None:
        return {place.table: (NEVER, NEVER) for place in SOURCES}
    match = TOKEN.fullmatch(after)
    if match is None:
        msg = f"after={after!r:.60} is no Page.next"
        raise InvalidArgument(msg)
    out, received, at, dead = (int(part) for part in match.groups())
    return {"outbox": (NEVER, out), "inbox": (NEVER, received), "dead_letters": (at, dead)}


def _token(cuts: dict[str, tuple[int, int]], seen: list[Hit]) -> str:
    """Return where a walk goes on: behind the last message of each place that was shown."""
    for each in seen:
        cuts[each.source.table] = (each.at, each.seq)
    (at, dead) = cuts["dead_letters"]
    return f"{cuts['outbox'][1]}.{cuts['inbox'][1]}.{at}.{dead}"


def thread(db: Database, message_id: str) -> list[HistoryEntry]:
    """Return every message of the conversation that *message_id* belongs to, or that all its copies carry, oldest first."""
    found = db.read(OF_ID, {"id": message_id})
    causes = [
        db.read(CAUSE.format(table=each[0], frame=_source_of(each[0]).frame), (each[1],))[0][0]
        for each in found[:1]
    ]
    root = next(filter(None, causes), message_id)
    members = [*found, *db.read(OF_ID, {"id": root}), *db.read(FOLLOWING, {"root": root})]
    at_of = {(table, seq): (at, message_id) for table, seq, at, message_id in members}
    ordered = sorted(at_of, key=lambda key: (at_of[key], key))
    return rows(db, [Hit(at_of[table, seq][0], seq, _source_of(table)) for table, seq in ordered])


def _source_of(table: str) -> Source:
    return next(place for place in SOURCES if place.table == table)
