"""
Find messages of one file that meet conditions, newest first, in a bounded time.

No index answers most conditions, so rows are looked at one by one, from the newest
on. A page ends when it is full, or when its time is used up; the next one goes on
from the last row that was looked at. Bodies are looked through up to LARGE bytes of
their frame.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Generator, Iterable
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Final

from onceward.message.clock import Millis
from onceward.ops.inspector.queries.message import LARGE
from onceward.ops.inspector.reading import NEVER, Reader

ROWS: Final = 50
LOOK: Final = 50_000
"""Most rows that one page looks at."""
BUDGET: Final = 0.1
"""Seconds after which a page stops to look."""


VIEWS: Final = {
    "outbox": ("onceward_outbox", "created_at", "recipient", "state"),
    "inbox": ("onceward_inbox", "received_at", "sender", "state"),
    "dead": (
        "onceward_dead_letters",
        "dead_at",
        "CASE origin WHEN 'outbox' THEN recipient ELSE sender END",
        "reason",
    ),
}
"""View, time, peer and state by box; the state of a dead letter is its reason."""
FITS: Final = f"""
       (:state IS NULL OR {{state}} = :state) AND (:peer IS NULL OR {{peer}} = :peer)
   AND (:type IS NULL OR type = :type) AND (:session IS NULL OR session = :session)
   AND (:topic IS NULL OR topic = :topic)
   AND CASE WHEN :text IS NULL THEN 1 WHEN octet_length(frame) > {LARGE} THEN 0
            ELSE instr(coalesce(body, ''), :text) > 0 END
"""
"""CASE, as OR computes the body also where it is not asked for."""
SCAN: Final = {
    box: f"""
SELECT seq, {FITS.format(peer=peer, state=state)}
  FROM {view} WHERE seq < :before ORDER BY seq DESC LIMIT {LOOK}
"""
    for box, (view, _, peer, state) in VIEWS.items()
}
WHY: Final = {
    "outbox": "coalesce(reason, 'held by ' || held_by)",
    "inbox": "reason",
    "dead": "last_error",
}
ROW: Final = {
    box: f"""
SELECT m.seq, m.id, m.sender, m.recipient, m.session, m.type, m.topic, m.priority, m.state,
       m.attempts, m.at, m.reason, m.extra
  FROM json_each(:seqs) AS j
 CROSS JOIN (SELECT seq, id, sender, recipient, session, type, topic, priority, {state} AS state,
                    attempts, {at} AS at, {WHY[box]} AS reason,
                    {"origin" if box == "dead" else "NULL"} AS extra FROM {view}) AS m
    ON m.seq = j.value
 ORDER BY j.key
"""
    for box, (view, at, _, state) in VIEWS.items()
}
AT: Final = {
    box: f"SELECT {at} FROM {view} WHERE seq >= ? ORDER BY seq LIMIT 1"
    for box, (view, at, _, _) in VIEWS.items()
}
NEWEST: Final = {
    box: f"SELECT seq FROM {view} WHERE seq <= ? ORDER BY seq DESC LIMIT 1"
    for box, (view, _, _, _) in VIEWS.items()
}
BODY: Final = {
    box: f"SELECT body FROM {view} WHERE seq = ?" for box, (view, _, _, _) in VIEWS.items()
}


Visible = Callable[[str], bool]
"""Returns whether a page shows the text that is sought in a body."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Conditions:
    """Conditions on messages; None is no condition."""

    state: str | None = None
    peer: str | None = None
    type: str | None = None
    session: str | None = None
    topic: str | None = None
    text: str | None = None
    """Text that occurs in the body."""


@dataclass(frozen=True, slots=True)
class ListedMessage:
    """One message of a list."""

    seq: int
    id: str
    sender: str
    recipient: str
    session: str
    type: str
    topic: str | None
    priority: str
    state: str
    attempts: int
    at: Millis
    reason: str | None
    origin: str | None
    """Where a dead letter died: outbox, inbox or queue."""


@dataclass(frozen=True, slots=True)
class Listing:
    """One page of messages."""

    messages: tuple[ListedMessage, ...]
    next: int | None
    """Sequence number before which the next page goes on; None where nothing is left."""
    looked: int
    looked_until_at: Millis | None
    """How far back was looked, where the time was used up before the page was full."""


def listing(
    reader: Reader,
    box: str,
    wanted: Conditions,
    *,
    before: int = NEVER,
    rows: int = ROWS,
    budget: float = BUDGET,
    visible: Visible = lambda _: True,
) -> Listing:
    """
    Return a page of messages of one box, newest first, after at most *budget* seconds.

    Where a text is sought, a message fits only if the text is *visible* in its body.
    """
    until = time.monotonic() + budget
    with closing(_looked_at(reader, box, wanted, before, visible)) as looking:
        seqs, looked, last = _found(looking, rows, until)
    full = len(seqs) == rows
    over = looked < LOOK and not full and last is None
    found = reader.rows(ROW[box], {"seqs": json.dumps(seqs)})
    ended = None if full or over or last is None else reader.rows(AT[box], (last,))[0][0]
    return Listing(tuple(ListedMessage(*row) for row in found), last, looked, ended)


def _looked_at(
    reader: Reader, box: str, wanted: Conditions, before: int, visible: Visible
) -> Generator[tuple[int, bool], None, None]:
    """Yield each message, and whether it fits."""
    with closing(reader.walk(SCAN[box], _named(wanted) | {"before": before})) as walked:
        for seq, fits in walked:
            hidden = fits and wanted.text is not None and not visible(_body(reader, box, seq))
            yield seq, bool(fits) and not hidden


def _found(
    looking: Iterable[tuple[int, bool]], rows: int, until: float
) -> tuple[list[int], int, int | None]:
    """Return the rows that fit, how many were looked at, and the last of them if more are left."""
    seqs: list[int] = []
    looked = 0
    for seq, fits in looking:
        looked += 1
        if fits:
            seqs.append(seq)
        over = time.monotonic() > until
        if over or len(seqs) == rows or looked == LOOK:
            return seqs, looked, seq
    return seqs, looked, None


def _named(wanted: Conditions) -> dict[str, Any]:
    names = ("state", "peer", "type", "session", "topic", "text")
    return {name: getattr(wanted, name) for name in names}


def before(reader: Reader, box: str, until: Millis) -> int:
    """Return the number of the first message of a box at or after a moment."""
    last = reader.rows(NEWEST[box], (NEVER,))
    low, high = 0, int(last[0][0]) + 1 if last else 0
    while low < high:
        middle = (low + high) // 2
        found = reader.rows(AT[box], (middle,))
        low, high = (low, middle) if not found or found[0][0] >= until else (middle + 1, high)
    return low


def _body(reader: Reader, box: str, seq: int) -> str:
    """Return the body of a message, empty where it has none or is gone."""
    return next((str(text) for (text,) in reader.rows(BODY[box], (seq,)) if text is not None), "")
