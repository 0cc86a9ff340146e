"""
Ask one file for the messages of a box that match conditions.

Most conditions have no index, so rows are examined one by one, newest first. A page ends when it is
full, or when its time is used up; the next one continues after the last examined row. Bodies are
searched up to LARGE bytes of their frame.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Generator, Iterable
from contextlib import closing
from dataclasses import asdict, dataclass
from typing import Final

from onceward.file.read_only import FileReader
from onceward.message.clock import Millis, monotonic
from onceward.ops.views.asking import (
    NEVER,
    Source,
    first_since,
    matches,
    moment_before,
    moment_from,
    values,
)
from onceward.ops.views.messages import (
    COLUMNS,
    VIEWS,
    StoredMessage,
    body_text,
)

ROWS: Final = 50
EVERYTHING: Final = -1
"""SQLite's word for no limit."""
LARGE: Final = 262_144
"""Maximum bytes of a frame whose body is searched or shown."""
PREVIEWED: Final = 4_096
"""Maximum bytes of a frame whose body is shown in a list."""
LOOK: Final = 50_000
"""Maximum rows that one page examines."""
BUDGET: Final = 0.1
"""Seconds after which a page stops searching."""

SPECIAL: Final = re.compile(r"[\[?]")
"""Special characters of SQLite's patterns, except the star."""
AT: Final = {"outbox": "created_at", "inbox": "received_at", "dead": "dead_at"}
PEER: Final = {
    "outbox": "recipient",
    "inbox": "sender",
    "dead": "CASE origin WHEN 'outbox' THEN recipient ELSE sender END",
}
STATE: Final = {"outbox": "state", "inbox": "state", "dead": "'dead'"}


def fits(**columns_of: str) -> str:
    """Return a condition: each parameter is NULL, or a pattern of its column."""
    tests = (
        f"(:{name} IS NULL OR coalesce({column}, '') GLOB :{name})"
        for name, column in columns_of.items()
    )
    return "\n   AND ".join(tests)


def pattern(text: str) -> str:
    """Return the pattern of a text in which ``*`` matches any characters."""
    return SPECIAL.sub(r"[\g<0>]", text)


def literal(text: str) -> str:
    """Return the pattern that matches only a text itself."""
    return pattern(text).replace("*", "[*]")


# CASE, because OR computes the body even if it is not needed.
SCAN: Final = {
    box: f"""
SELECT seq, {fits(state=STATE[box], peer=PEER[box], reason="reason")}
   AND {fits(type="type", session="session", topic="topic")}
   AND CASE WHEN :text IS NULL THEN 1 WHEN octet_length(frame) > {LARGE} THEN 0
            ELSE instr(coalesce(body, ''), :text) > 0 END
  FROM {view} WHERE seq < :before AND seq >= :first ORDER BY seq DESC LIMIT {LOOK}
"""
    for box, view in VIEWS.items()
}
ROW: Final = {
    box: f"""
SELECT m.* FROM json_each(:seqs) AS j
 CROSS JOIN (SELECT {COLUMNS[box]} FROM {view}) AS m ON m.seq = j.value
 ORDER BY j.key
"""
    for box, view in VIEWS.items()
}
# Larger bodies would cost more than a line of a list is worth.
PREVIEW: Final = {
    box: f"""
SELECT seq, octet_length(frame), CASE WHEN octet_length(frame) <= {PREVIEWED} THEN body END
  FROM {view} WHERE seq IN (SELECT j.value FROM json_each(:seqs) AS j)
"""
    for box, view in VIEWS.items()
}
FROM: Final = {box: moment_from(view, AT[box]) for box, view in VIEWS.items()}
NEWEST: Final = {box: moment_before(view, AT[box]) for box, view in VIEWS.items()}

Visible = Callable[[str], bool]
"""Returns whether a page shows the searched text of a body."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Conditions:
    """Conditions on messages, each a pattern (``pattern``, ``literal``); None: no condition."""

    state: str | None = None
    peer: str | None = None
    type: str | None = None
    session: str | None = None
    topic: str | None = None
    reason: str | None = None
    text: str | None = None
    """Text that occurs in the body."""
    first: int = 0
    """Number of the first matching message."""


@dataclass(frozen=True, slots=True)
class Listing:
    """One page of messages."""

    messages: tuple[StoredMessage, ...]
    next: int | None
    """Sequence number before which the next page continues; None on the last page."""
    looked: int
    looked_until_at: Millis | None
    """How far back the search went, if its time ended before the page was full."""


def listing(
    reader: FileReader,
    box: str,
    wanted: Conditions,
    *,
    before: int = NEVER,
    rows: int = ROWS,
    budget: float | None = None,
    visible: Visible = lambda _: True,
) -> Listing:
    """
    Return a page of messages of one box, newest first, within *budget* seconds, or BUDGET.

    If a text is searched, a message matches only if the text is *visible* in its body.
    """
    until = monotonic() + (BUDGET if budget is None else budget)
    with closing(_looked_at(reader, box, wanted, before, visible)) as looking:
        seqs, looked, last = _found(looking, rows, until)
    found = stored(reader, box, seqs)
    ended = None
    if last is not None and len(seqs) < rows:
        ended = reader.rows(FROM[box], (last,))[0][1]
    return Listing(found, last, looked, ended)


def stored(source: Source, box: str, seqs: Iterable[int]) -> tuple[StoredMessage, ...]:
    """Return the messages of a box with these numbers, in their order."""
    return values(source, StoredMessage, ROW[box], seqs=json.dumps([*seqs]))


@dataclass(frozen=True, slots=True)
class Preview:
    """The size of a message, and its body if it is small."""

    seq: int
    size: int
    body: str | None


def previews(source: Source, box: str, found: Listing) -> dict[int, Preview]:
    """Return the previews of a page of messages, by their numbers."""
    seqs = json.dumps([each.seq for each in found.messages])
    return {each.seq: each for each in values(source, Preview, PREVIEW[box], seqs=seqs)}


def _looked_at(
    reader: FileReader, box: str, wanted: Conditions, before: int, visible: Visible
) -> Generator[tuple[int, bool], None, None]:
    """Yield each message, and whether it matches."""
    with closing(reader.walk(SCAN[box], asdict(wanted) | {"before": before})) as walked:
        for seq, fits in walked:
            hidden = fits and wanted.text is not None and not visible(body_text(reader, box, seq))
            yield seq, bool(fits) and not hidden


def _found(
    looking: Iterable[tuple[int, bool]], rows: int, until: float
) -> tuple[list[int], int, int | None]:
    """Return matching rows, the number of examined ones, and the last one if more are left."""
    seqs: list[int] = []
    looked = 0
    for seq, fits in looking:
        looked += 1
        if fits:
            seqs.append(seq)
        over = monotonic() > until
        if over or len(seqs) == rows or looked == LOOK:
            return seqs, looked, seq
    return seqs, looked, None


def before(source: Source, box: str, until: Millis) -> int:
    """Return the number of the first message of a box at or after a moment."""
    last = source.rows(NEWEST[box], (NEVER,))
    return first_since(source, FROM[box], until, 0, int(last[0][0]) + 1 if last else 0)


# -- whole answers, however long they take ------------------------------------------------


@dataclass(frozen=True, slots=True)
class QueueCount:
    """How many messages of a peer, a session and a state there are, and since when."""

    box: str
    peer: str
    session: str
    state: str
    messages: int
    oldest_at: Millis


QUEUES: Final = f"""
SELECT 'outbox' AS box, recipient AS peer, session, state,
       count(*) AS messages, min(created_at) AS oldest_at
  FROM onceward_outbox
 WHERE {matches(state="state", peer="recipient", session="session")}
 GROUP BY recipient, session, state
 UNION ALL
SELECT 'inbox', sender, session, state, count(*), min(received_at)
  FROM onceward_inbox
 WHERE {matches(state="state", peer="sender", session="session")}
 GROUP BY sender, session, state
 UNION ALL
SELECT 'dead', {PEER["dead"]} AS peer, session, 'dead' AS state, count(*), min(dead_at)
  FROM onceward_dead_letters
 WHERE {matches(state="'dead'", session="session")}
   AND (:peer IS NULL OR sender = :peer OR recipient = :peer)
 GROUP BY 2, session
 ORDER BY 1 DESC, 2, 3, 4
 LIMIT :limit
"""
LATEST: Final = {
    box: f"""
SELECT {COLUMNS[box]} FROM {VIEWS[box]}
 WHERE {matches(state="state", peer=PEER[box], session="session")}
 ORDER BY seq DESC LIMIT :limit
"""
    for box in ("outbox", "inbox")
}
DEAD: Final = f"""
SELECT {COLUMNS["dead"]} FROM onceward_dead_letters
 WHERE {matches(reason="reason", origin="origin", session="session", type="type")}
   AND (:peer IS NULL OR sender = :peer OR recipient = :peer)
   AND (:before IS NULL OR dead_at < :before)
 ORDER BY seq DESC LIMIT :limit
"""


def queues(
    source: Source, *, state: str | None, peer: str | None, session: str | None, limit: int
) -> tuple[QueueCount, ...]:
    """Return counts of all boxes by peer, session and state; None means no condition."""
    return values(source, QueueCount, QUEUES, state=state, peer=peer, session=session, limit=limit)


def latest(
    source: Source,
    box: str,
    *,
    state: str | None = None,
    peer: str | None = None,
    session: str | None = None,
    limit: int,
) -> tuple[StoredMessage, ...]:
    """Return the messages of the outbox or the inbox, newest first; None means no condition."""
    named = {"state": state, "peer": peer, "session": session, "limit": limit}
    return values(source, StoredMessage, LATEST[box], **named)


def dead_letters(source: Source, **named: str | Millis | None) -> tuple[StoredMessage, ...]:
    """
    Return dead letters, newest first, by reason, origin, session, type, peer and *before*.

    A *limit* is the maximum number; without one all are returned.
    """
    return values(source, StoredMessage, DEAD, **{"limit": EVERYTHING} | named)
