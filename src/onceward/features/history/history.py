"""Find past messages in outbox, inbox and dead letters: filtered pages, whole conversations."""

from __future__ import annotations

import heapq
import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import islice
from operator import attrgetter
from typing import Any, Final, NamedTuple

from onceward.core.rows.outbox import frame_of
from onceward.errors import InvalidArgument
from onceward.features.history import time_index
from onceward.features.history.regexp import Pattern
from onceward.file.database import Database
from onceward.file.sql_parts import columns, senders
from onceward.message.clock import Millis
from onceward.message.error_text import Hint
from onceward.message.names import no_option, quoted, rank
from onceward.message.options import json_string
from onceward.message.record import MessageRecord, Page
from onceward.message.times import moment
from onceward.message.topics import WILD, check_pattern, matches
from onceward.message.vocabulary import INBOX_STATES, OUTBOX_STATES

BATCH: Final = 2000
"""Rows of one read, few enough that other readers do not wait long."""
NEVER: Final = 1 << 62
PRIORITY: Final = """
CASE m.rank WHEN 0 THEN 'critical' WHEN 1 THEN 'urgent' WHEN 2 THEN 'normal' WHEN 3 THEN 'low'
            ELSE 'background' END
"""
SENDING: Final = """CASE WHEN m.state = 'pending' AND m.seq IN (
    SELECT j.value
      FROM _onceward_peers AS p, json_each(p.in_flight_seqs) AS j
     WHERE p.in_flight_seqs IS NOT NULL) THEN 'sending'
     ELSE m.state END"""
PROCESSING: Final = """CASE WHEN m.state = 'pending' AND m.seq IN (
    SELECT j.value
      FROM _onceward_lanes AS c, json_each(c.leased_seqs) AS j
     WHERE c.leased_seqs IS NOT NULL) THEN 'processing'
     ELSE m.state END"""
ORIGIN: Final = "CASE WHEN m.queue IS NULL THEN m.origin ELSE 'queue' END"
LISTS: Final = ("kind", "rank")
"""Conditions that accept several values."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """One of the three tables, with its expression for each attribute."""

    table: str
    box: str
    at: str
    states: frozenset[str]
    frame: str = "m.frame"
    sender: str = ":agent"
    recipient: str = ":agent"
    state: str = "'dead'"
    indexed: frozenset[str] = frozenset()
    """Conditions that an index answers."""
    by_seq: bool = True
    """Whether its sequence is the order of its times, except for clock steps."""

    @property
    def spelled(self) -> dict[str, str]:
        """The attributes that are not columns of the table, with their expressions."""
        return {"sender": self.sender, "recipient": self.recipient, "state": self.state}

    def where(self, names: Iterable[str]) -> str:
        """Return the conditions of these names as SQL."""
        parts = [
            f"m.{name} IN (SELECT value FROM json_each(:{name}))"
            if name in LISTS
            else f"{self.spelled.get(name, f'm.{name}')} = :{name}"
            for name in names
            if name not in {"since", "until"}
        ]
        parts += [
            f"{self.at} {sign} :{name}"
            for name, sign in (("since", ">="), ("until", "<"))
            if name in names
        ]
        return " AND ".join(parts) or "1"

    def columns(self) -> str:
        """Return the columns of a past message, for the fields of ``MessageRecord``."""
        return columns(
            MessageRecord,
            "m.",
            priority=PRIORITY,
            at=self.at,
            text=self.frame,
            box=self.box,
            **self.spelled,
        )


OUT: Final = Source(
    table="outbox",
    box="'out'",
    at="m.created_at",
    states=frozenset({*OUTBOX_STATES, "sending"}),
    frame=frame_of("m"),
    recipient="m.recipient",
    state=SENDING,
    indexed=frozenset({"channel", "correlation_id"}),
)
IN: Final = Source(
    table="inbox",
    box="'in'",
    at="m.received_at",
    states=frozenset({*INBOX_STATES, "processing"}),
    sender="m.sender",
    state=PROCESSING,
    indexed=frozenset({"channel", "correlation_id", "sender"}),
)
DEAD: Final = Source(
    table="dead_letters",
    box=ORIGIN,
    at="m.created_at",
    states=frozenset({"dead"}),
    by_seq=False,
    sender="CASE m.origin WHEN 'outbox' THEN :agent ELSE m.peer END",
    recipient="CASE m.origin WHEN 'outbox' THEN m.peer ELSE :agent END",
)
SOURCES: Final = (OUT, IN, DEAD)


class HistoryFilter(NamedTuple):
    """Filter of past messages: conditions by name for SQL; checks of topic and body in Python."""

    agent: str
    values: dict[str, Any]
    topic: Callable[[str], bool] | None = None
    content: Callable[[str], bool] | None = None

    def sources(self) -> list[Source]:
        """Return the sources that can hold matching messages."""
        state, sender, recipient = (
            self.values.get(name) for name in ("state", "sender", "recipient")
        )
        found = [place for place in SOURCES if state is None or state in place.states]
        if sender not in {None, self.agent}:
            found = [place for place in found if place is not OUT]
        return (
            found
            if recipient in {None, self.agent}
            else [place for place in found if place is not IN]
        )

    @property
    def judged(self) -> bool:
        """Whether a row must be read in full to decide whether it matches."""
        return self.topic is not None or self.content is not None


class Hit(NamedTuple):
    """Position of one matching message."""

    at: int
    """Time by which sources are merged; at equal times sent, then received, then dead ones."""
    seq: int
    source: Source


@dataclass(slots=True)
class Scan:
    """One source, scanned newest first for matching rows."""

    db: Database
    source: Source
    filter: HistoryFilter
    _all: list[int] | None = None

    @property
    def names(self) -> set[str]:
        """The conditions that rows of this source may not fulfil."""
        spelled = self.source.spelled
        return {
            name for name in self.filter.values if spelled.get(name) not in {":agent", "'dead'"}
        }

    def count(self) -> int:
        """Return how many rows match."""
        if not self.names and not self.filter.judged:
            [(total,)] = self.db.ask(f"SELECT count(*) FROM _onceward_{self.source.table}")
            return int(total)
        if self._all is None:
            self._all = list(self._seqs(NEVER))
        return len(self._all)

    def found(self, cut: tuple[int, int], chunk: int) -> Iterator[Hit]:
        """Yield matches older than *cut*, (time, sequence), reading *chunk* rows at a time."""
        sql = f"""
        SELECT m.seq, {self.source.at}
          FROM json_each(?) AS j
          JOIN _onceward_{self.source.table} AS m ON m.seq = j.value
         ORDER BY j.key
        """
        seqs = (
            self._seqs(cut[1] if self.source.by_seq else NEVER)
            if self._all is None
            else iter(self._all)
        )
        while part := list(islice(seqs, chunk)):
            for seq, at in self.db.ask(sql, (json.dumps(part),)):
                if seq < cut[1] if self.source.by_seq else (at, seq) < cut:
                    yield Hit(at, seq, self.source)

    def _seqs(self, below: int) -> Iterator[int]:
        for batch in self._candidates(below):
            yield from self._judged(batch) if self.filter.judged else batch

    def _candidates(self, below: int) -> Iterator[list[int]]:
        """Yield rows that match in SQL: by an index, by their time, or by batches of all rows."""
        names = self.names
        if not self.source.by_seq or names & self.source.indexed:
            yield from _cut(self._at_once(), below)
        elif names & {"since", "until"}:
            since = self.filter.values.get("since", 0)
            until = self.filter.values.get("until", NEVER)
            for batch in _cut(time_index.within(self.db, self.source.table, since, until), below):
                yield self._fitting(batch) if names - {"since", "until"} else batch
        else:
            yield from self._row_by_row(below)

    def _at_once(self) -> list[int]:
        order = "m.seq" if self.source.by_seq else f"{self.source.at} DESC, m.seq"
        sql = f"""
        SELECT m.seq
          FROM _onceward_{self.source.table} AS m
         WHERE {self.source.where(self.names)}
         ORDER BY {order} DESC
        """
        return [seq for (seq,) in self.db.ask(sql, self._named())]

    def _fitting(self, seqs: list[int]) -> list[int]:
        sql = f"""
        SELECT m.seq
          FROM json_each(:seqs) AS j
          JOIN _onceward_{self.source.table} AS m ON m.seq = j.value
         WHERE {self.source.where(self.names)}
         ORDER BY j.key
        """
        return [seq for (seq,) in self.db.ask(sql, self._named() | {"seqs": json.dumps(seqs)})]

    def _row_by_row(self, below: int) -> Iterator[list[int]]:
        where = self.source.where(self.names)
        sql = f"""
        SELECT m.seq, {where}
          FROM _onceward_{self.source.table} AS m
         WHERE m.seq < :below
         ORDER BY m.seq DESC LIMIT {BATCH}"""
        while rows := self.db.ask(sql, self._named() | {"below": below}):
            yield [seq for seq, fits in rows if fits]
            below = rows[-1][0]

    def _judged(self, seqs: list[int]) -> list[int]:
        """Return those whose topic and body match, in time proportional to the texts."""
        frame = self.source.frame
        body = (
            f"CASE WHEN json_valid({frame}) THEN {frame} ->> '$.data' END"
            if self.filter.content is not None
            else "NULL"
        )
        sql = f"""
        SELECT m.seq, m.topic, {body}
          FROM json_each(?) AS j
          JOIN _onceward_{self.source.table} AS m ON m.seq = j.value
         ORDER BY j.key
        """
        topic, content = self.filter.topic, self.filter.content
        return [
            seq
            for seq, its_topic, text in self.db.ask(sql, (json.dumps(seqs),))
            if (topic is None or (its_topic is not None and topic(its_topic)))
            and (content is None or (text is not None and content(str(text))))
        ]

    def _named(self) -> dict[str, Any]:
        return self.filter.values | {"agent": self.filter.agent}


def _cut(seqs: list[int], below: int) -> Iterator[list[int]]:
    kept = seqs if below == NEVER else [seq for seq in seqs if seq < below]
    for at in range(0, len(kept), BATCH):
        yield kept[at : at + BATCH]


# -- pages and conversations ------------------------------------------------------------

FILTERS: Final = (
    "session", "sender", "recipient", "type", "topic", "state", "since", "until", "channel", "kind",
    "priority", "correlation_id", "content",
)  # fmt: skip
STATES: Final = frozenset[str]().union(*(place.states for place in SOURCES))
TOKEN: Final = re.compile(r"(\d+)\.(\d+)\.(\d+)\.(\d+)")
OF_ID: Final = f"""{senders("_onceward_inbox")}
SELECT 'outbox', seq, created_at, id FROM _onceward_outbox WHERE id = :id
 UNION ALL
SELECT 'inbox', b.seq, b.received_at, b.id
  FROM senders AS s
  JOIN _onceward_inbox AS b ON b.sender = s.name AND b.id = :id
 UNION ALL
SELECT 'dead_letters', seq, created_at, id FROM _onceward_dead_letters WHERE id = :id
"""
FOLLOWING: Final = """
SELECT 'outbox', seq, created_at, id FROM _onceward_outbox WHERE correlation_id = :root
 UNION ALL
SELECT 'inbox', seq, received_at, id FROM _onceward_inbox WHERE correlation_id = :root
 UNION ALL
SELECT 'dead_letters', seq, created_at, id FROM _onceward_dead_letters WHERE correlation_id = :root
"""
CAUSE: Final = """
SELECT CASE WHEN json_valid(m.frame) THEN coalesce(m.frame ->> '$.correlationid',
                                                   m.frame ->> '$.causationid') END
  FROM (SELECT {frame} AS frame FROM _onceward_{table} AS m WHERE m.seq = ?) AS m
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

    Filters, all of which must hold: session, sender, recipient, type, topic (also a pattern),
    state, since and until (moments), channel, kind and priority (also several), correlation_id,
    content (a regular expression that occurs in the body's text). Channel, correlation, the sender
    of received messages and time use an index; the others scan the remaining rows.

    ``Page.next``, given as *after*, continues where a page ended, even after messages were added.
    ``count=False`` omits ``total_count`` and stops early.

    Raises:
        InvalidArgument: a filter of that name does not exist, or its value is invalid.

    """
    if limit < 0 or offset < 0:
        raise InvalidArgument("limit and offset must not be negative")
    cuts, limit = _cuts(after), min(limit, sys.maxsize - offset - 1)
    with _wanted(
        db.agent, {name: value for name, value in filters.items() if value is not None}, db.now()
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
def _wanted(agent: str, filters: dict[str, Any], now: Millis) -> Iterator[HistoryFilter]:
    unknown = set(filters) - set(FILTERS)
    if unknown:
        raise InvalidArgument(no_option("history", unknown, FILTERS))
    values = {
        name: value
        for name, value in filters.items()
        if name not in {"topic", "content", "kind", "priority"}
    }
    for name in ("since", "until"):
        if name in values:
            values[name] = moment(name, values[name], now)
    if values.get("state", "dead") not in STATES:
        msg = f"state {values['state']!r} is not one of {', '.join(sorted(STATES))}"
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


def rows(db: Database, chosen: list[Hit]) -> list[MessageRecord]:
    """Return the chosen messages in full, read source by source, in order."""
    read: dict[tuple[str, int], MessageRecord] = {}
    for place in SOURCES:
        seqs = [each.seq for each in chosen if each.source is place]
        if seqs:
            sql = f"""
            SELECT m.seq, {place.columns()}
              FROM json_each(:seqs) AS j
              JOIN _onceward_{place.table} AS m ON m.seq = j.value
            """
            for seq, *row in db.ask(sql, {"seqs": json.dumps(seqs), "agent": db.agent}):
                read[place.table, seq] = MessageRecord(*row)
    return [read[key] for each in chosen if (key := (each.source.table, each.seq)) in read]


def _cuts(after: str | None) -> dict[str, tuple[int, int]]:
    if after is None:
        return {place.table: (NEVER, NEVER) for place in SOURCES}
    match = TOKEN.fullmatch(after)
    if match is None:
        raise InvalidArgument(f"after={quoted(after)} is not {Hint.NEXT_PAGE}")
    out, received, at, dead = (int(part) for part in match.groups())
    return {"outbox": (NEVER, out), "inbox": (NEVER, received), "dead_letters": (at, dead)}


def _token(cuts: dict[str, tuple[int, int]], seen: list[Hit]) -> str:
    """Return the token from which the next page continues, after the last row of each source."""
    for each in seen:
        cuts[each.source.table] = (each.at, each.seq)
    (at, dead) = cuts["dead_letters"]
    return f"{cuts['outbox'][1]}.{cuts['inbox'][1]}.{at}.{dead}"


def of_id(db: Database, message_id: str) -> list[MessageRecord]:
    """Return a message as sent, as received, and as a dead letter, in this order."""
    found = db.ask(OF_ID, {"id": message_id})
    return rows(db, [Hit(at, seq, _source_of(table)) for table, seq, at, _ in found])


def thread(db: Database, message_id: str) -> list[MessageRecord]:
    """
    Return every message of a conversation, oldest first, each after the one that it answers.

    *message_id* is any message of it, or an id that its copies share. A message to a channel is
    listed once, by its first copy; dead copies are listed separately.
    """
    from onceward.message.record import after_causes  # noqa: PLC0415 - rarely needed

    found = db.ask(OF_ID, {"id": message_id})
    causes = [
        db.ask(CAUSE.format(table=each[0], frame=_source_of(each[0]).frame), (each[1],))[0][0]
        for each in found[:1]
    ]
    root = next(filter(None, causes), message_id)
    members = [*found, *db.ask(OF_ID, {"id": root}), *db.ask(FOLLOWING, {"root": root})]
    sent = {message_id: seq for table, seq, _, message_id in members if table == "outbox"}
    ordered = sorted(
        {(at, sent.get(message_id, 0), table, seq) for table, seq, at, message_id in members}
    )
    found_rows = rows(db, [Hit(at, seq, _source_of(table)) for at, _, table, seq in ordered])
    ordered_rows = after_causes(found_rows, attrgetter("id"), _causes_of)
    return list(_without_copies(ordered_rows))


def _causes_of(entry: MessageRecord) -> list[str]:
    """Return the ids of the messages that one answers or follows from, from its frame."""
    try:
        frame = json.loads(entry.text)
    except ValueError:  # a damaged one has none
        return []
    named = (frame.get("inreplyto"), frame.get("causationid")) if isinstance(frame, dict) else ()
    return [each for each in named if isinstance(each, str)]


def _without_copies(entries: Iterable[MessageRecord]) -> Iterator[MessageRecord]:
    """Yield each message to a channel once; a second copy for a recipient is a second send."""
    sent: dict[str, dict[str, str]] = {}
    for entry in entries:
        if entry.channel is None or entry.state == "dead":
            yield entry
            continue
        shared = entry.text.replace(json_string(entry.id), "", 1)
        shared = shared.replace(f'"recipient":{json_string(entry.recipient)}', "", 1)
        copies = sent.setdefault(shared, {})
        if copies.get(entry.recipient, entry.id) != entry.id:
            copies.clear()
        if not copies:
            yield entry
        copies[entry.recipient] = entry.id


def _source_of(table: str) -> Source:
    return next(place for place in SOURCES if place.table == table)
