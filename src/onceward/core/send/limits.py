"""Store limits by scope, and decide what happens to a message at them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, cast

from onceward.core.send import outbox
from onceward.core.send.outbox import TICKET_FAILED, OutgoingMessage, undelivered
from onceward.errors import QueueFull, StoreFull
from onceward.file.migrations import folder
from onceward.file.transaction import StoreTransaction, bump
from onceward.message.queue_modes import LINE_MAX
from onceward.message.reasons import reason_text
from onceward.message.vocabulary import LimitScope, Overflow, Reason

SUMMARY: Final = "onceward.summary"
"""Type of the message that summarizes dropped ones."""
LINE: Final = LINE_MAX
LINES: Final = 20
"""Lines of one summary; older drops are only counted."""

ACTIVE: Final = """
SELECT EXISTS (SELECT 1 FROM _onceward_limits)
       OR EXISTS (SELECT 1 FROM _onceward_rate_limits WHERE name = 'send')
       OR (SELECT max_file_bytes FROM _onceward_file_info) IS NOT NULL
"""
KEEP: Final = """
INSERT INTO _onceward_limits (scope, name, max_messages, max_bytes, overflow) VALUES (?, ?, ?, ?, ?)
ON CONFLICT (scope, name) DO UPDATE
   SET max_messages = excluded.max_messages, max_bytes = excluded.max_bytes,
       overflow = excluded.overflow
"""
REMOVE: Final = "DELETE FROM _onceward_limits WHERE scope = ? AND name = ?"
LIST: Final = """
SELECT scope, name, max_messages, max_bytes, overflow FROM _onceward_limits ORDER BY scope, name
"""
INSTALLED: Final = """
SELECT type, name
  FROM sqlite_schema
 WHERE name GLOB '_onceward_limits_*' AND type IN ('trigger', 'view', 'index')
"""
EMPTY: Final = "DELETE FROM _onceward_limit_usage"
RECOUNT: Final = """
INSERT INTO _onceward_limit_usage (scope, name, messages, bytes)
SELECT f.scope, f.name, count(*), sum(f.bytes)
  FROM _onceward_limits_of AS f JOIN _onceward_outbox AS o ON o.seq = f.seq
 WHERE o.state IN ('pending', 'sent') AND o.held_by IS NULL
   AND EXISTS (SELECT 1
                 FROM _onceward_limits AS l
                WHERE l.scope = f.scope AND l.name IN (f.name, '*'))
 GROUP BY f.scope, f.name
"""
FREE_ALL: Final = """
UPDATE _onceward_outbox
   SET held_by = NULL
 WHERE state = 'pending' AND held_by GLOB 'limit:*'
"""
FREE_NEXT: Final = """
UPDATE _onceward_outbox
   SET held_by = NULL
 WHERE seq = (SELECT seq FROM _onceward_limits_next)
"""
# The limits that a new message meets, each with how full it is; its own name goes before the star.
MET: Final = """
SELECT l.scope, s.name, l.max_messages, l.max_bytes, l.overflow, coalesce(f.messages, 0),
       coalesce(f.bytes, 0),
       CASE l.scope WHEN 'store' THEN
            (SELECT coalesce((SELECT seq FROM sqlite_sequence WHERE name = '_onceward_inbox'), 0)
                    - (SELECT value FROM _onceward_counters WHERE name = 'ended'))
            ELSE 0 END
  FROM (SELECT 'store' AS scope, '' AS name
        UNION ALL SELECT 'outbox', ''
        UNION ALL SELECT 'channel', :channel
        UNION ALL SELECT 'session', :session
        UNION ALL SELECT 'lane', :recipient || '/' || :lane) AS s
  JOIN _onceward_limits AS l ON l.scope = s.scope
   AND l.name = CASE WHEN EXISTS (SELECT 1
                                    FROM _onceward_limits AS x
                                   WHERE x.scope = s.scope AND x.name = s.name)
                     THEN s.name ELSE '*' END
  LEFT JOIN _onceward_limit_usage AS f ON f.scope = s.scope AND f.name = s.name
"""
BEHIND: Final = "SELECT 1 FROM _onceward_outbox WHERE held_by = ? LIMIT 1"
SAME: Final = {
    "outbox": "1",
    "session": "o.session = :session",
    "lane": "o.recipient = :recipient AND o.lane = :lane",
    "channel": "o.channel = :channel",
}
PROTECTED: Final = """
(o.rank = 0 OR o.type = 'worker_result' OR o.type = 'onceward.summary'
 OR json_extract(CASE WHEN o.body_id IS NULL THEN o.frame ELSE o.frame || 'null}' END,
                 '$.inreplyto') IS NOT NULL
 OR coalesce(json_extract(CASE WHEN o.body_id IS NULL THEN o.frame ELSE o.frame || 'null}' END,
                          '$.protected'), 0))
"""
# Oldest first; messages that have left, or are about to, are not dropped.
CANDIDATES: Final = f"""
SELECT o.seq, o.id, o.recipient, o.session, length(CAST(o.frame AS BLOB)),
       substr(CASE WHEN o.body_id IS NULL THEN coalesce(o.frame ->> '$.data', '') ELSE o.type END,
              1, {LINE})
  FROM _onceward_outbox AS o
 WHERE o.state = 'pending'
   AND o.held_by IS NULL
   AND {{same}} AND NOT {PROTECTED} AND NOT {outbox.PUSHED}
 ORDER BY o.seq LIMIT 1000
"""
DROP: Final = """
UPDATE _onceward_outbox
   SET state = 'dropped', due_at = NULL, ended_at = ?, reason = ?
 WHERE seq = ?
"""
RECORD: Final = """
INSERT INTO _onceward_drops (id, peer, session, scope, name, policy, line, dropped_at)
VALUES (?, ?, ?, ?, ?, ?, ?, ?)
"""
ADD_DROPPED: Final = f"""
INSERT INTO _onceward_outbox ({", ".join(outbox.COLUMNS)}, state, ended_at, reason)
VALUES ({", ".join("?" * len(outbox.COLUMNS))}, 'dropped', ?, ?)
"""
TASK_DROPPED: Final = undelivered("""
SELECT id, session, reason AS error,
       CASE WHEN body_id IS NULL THEN frame ELSE frame || 'null}' END AS head
  FROM _onceward_outbox
 WHERE id = ?
""")
UNSUMMARIZED: Final = f"""
SELECT d.seq, d.line, d.summary_id
  FROM _onceward_drops AS d
  LEFT JOIN _onceward_outbox AS o ON o.id = d.summary_id
 WHERE d.policy = 'summarize' AND d.scope <> 'queue' AND d.peer = ? AND d.session = ?
   AND (d.summary_id IS NULL OR (o.state = 'pending' AND NOT {outbox.PUSHED}))
 ORDER BY d.seq
"""
MARK_SUMMARIZED: Final = "UPDATE _onceward_drops SET summary_id = ? WHERE seq = ?"
REPLACE: Final = """
UPDATE _onceward_outbox
   SET state = 'cancelled', due_at = NULL, ended_at = ?, reason = 'superseded'
 WHERE id = ? AND state = 'pending'
"""
FULLNESS: Final = """
SELECT scope, name, messages, bytes
  FROM _onceward_limit_usage
 WHERE messages > 0
 ORDER BY scope, name
"""
DROPS: Final = """
SELECT id, recipient, session, scope, name, policy, line, summary_id, dropped_at
  FROM onceward_drops
 ORDER BY seq DESC LIMIT ?
"""
ALONE: Final = " by this message alone"
UNDROPPABLE: Final = ", and what is there may not be dropped"
Change = Callable[[StoreTransaction], object]


@dataclass(frozen=True, slots=True)
class Limit:
    """
    Most messages and bytes that may be unsettled in one scope.

    The name ``*`` limits each session, lane or channel by itself.
    """

    scope: LimitScope
    name: str
    messages: int | None
    bytes: int | None
    overflow: Overflow


class LimitHit(NamedTuple):
    """A limit that a new message would exceed, and by how much."""

    scope: LimitScope
    name: str
    overflow: Overflow
    messages: int
    bytes: int

    @property
    def held(self) -> str:
        """The value of ``held_by`` of a message that this limit holds."""
        return f"limit:{self.scope}:{self.name}"

    @property
    def where(self) -> str:
        """Scope and name of the limit."""
        return f"{self.scope} {self.name}".rstrip()

    def error(self, why: str = "") -> QueueFull:
        """Return the error for a refused sender."""
        msg = (
            f"the limit of {self.where} is reached{why}; nothing was written,"
            " wait until some of it is settled"
        )
        return StoreFull(msg) if self.scope == "store" else QueueFull(msg)


class DropCandidate(NamedTuple):
    """A message that a policy drops."""

    full: LimitHit
    seq: int
    id: str
    recipient: str
    session: str
    bytes: int
    line: str


class Accept(NamedTuple):
    """Admission: the message is stored as it is."""

    evicted: tuple[DropCandidate, ...] = ()
    """The messages that are dropped to make room for it."""


class Hold(NamedTuple):
    """Admission: the message is stored, and waits until its limit lets it leave."""

    limit: LimitHit
    evicted: tuple[DropCandidate, ...] = ()


class DropNew(NamedTuple):
    """Admission: the message is dropped by its limit."""

    limit: LimitHit


Admission = Accept | Hold | DropNew


def save(tx: StoreTransaction, limit: Limit) -> None:
    """Set a limit; messages beyond it that exist already stay."""
    tx.run(KEEP, (limit.scope, limit.name, limit.messages, limit.bytes, limit.overflow))
    _recount(tx)


def remove(tx: StoreTransaction, scope: str, name: str) -> bool:
    """Remove a limit and release what only it held back; return whether it existed."""
    gone = tx.run(REMOVE, (scope, name)) > 0
    _recount(tx)
    return gone


def _recount(tx: StoreTransaction) -> None:
    """Put the triggers there while there are limits, and count what each scope holds."""
    for kind, name in tx.rows(INSTALLED):
        tx.run(f'DROP {kind} "{name}"')
    tx.run(EMPTY)
    if not tx.rows(LIST):
        tx.run(FREE_ALL)
        return
    tx.rows((folder() / "limits.sql").read_text(encoding="utf-8"))
    tx.run(RECOUNT)
    _free_orphans(tx)
    while tx.run(FREE_NEXT):
        pass


ORPHANS: Final = """
UPDATE _onceward_outbox SET held_by = NULL
 WHERE held_by GLOB 'limit:*' AND NOT EXISTS (
       SELECT 1
         FROM _onceward_limits AS l
        WHERE l.overflow = 'hold' AND _onceward_outbox.held_by GLOB 'limit:' || l.scope || ':*'
          AND (l.name = '*' OR _onceward_outbox.held_by = 'limit:' || l.scope || ':' || l.name))
"""


def _free_orphans(tx: StoreTransaction) -> None:
    tx.run(ORPHANS)


def admit(tx: StoreTransaction, message: OutgoingMessage, *, protected: bool) -> Admission:
    """
    Return what the limits that a message meets make of it; nothing is changed yet.

    Raises:
        QueueFull, StoreFull: a limit is reached and nothing may be dropped for it.

    """
    size = len(message.frame.encode())
    named = {
        "channel": message.channel,
        "session": message.session,
        "recipient": message.recipient,
        "lane": message.lane,
    }
    held, dropped, evicted = None, None, dict[int, DropCandidate]()
    for full in _full(tx, named, size):
        if protected and full.scope != "store":
            continue
        match full.overflow:
            case "hold" if message.held_by is None:
                held = held or full
            case "drop_new":
                dropped = dropped or full
            case "drop_old" | "summarize":
                evicted |= {candidate.seq: candidate for candidate in _candidates(tx, full, named)}
            case _:
                raise full.error()
    if dropped is not None:
        return DropNew(dropped)
    found = tuple(evicted.values())
    return Accept(found) if held is None else Hold(held, found)


def _full(tx: StoreTransaction, named: dict[str, Any], size: int) -> list[LimitHit]:
    found: list[LimitHit] = []
    for scope, name, max_messages, max_bytes, overflow, messages, used, others in tx.rows(
        MET, named
    ):
        over = 0 if max_messages is None else messages + others + 1 - max_messages
        over_bytes = 0 if max_bytes is None else used + size - max_bytes
        full = LimitHit(scope, name, overflow, over, over_bytes)
        if max_bytes is not None and size > max_bytes:
            raise full.error(ALONE)
        if over > 0 or over_bytes > 0 or (overflow == "hold" and tx.rows(BEHIND, (full.held,))):
            found.append(full)
    return found


def _candidates(tx: StoreTransaction, full: LimitHit, named: dict[str, Any]) -> list[DropCandidate]:
    """Return the oldest that may be dropped, as many as the new message needs."""
    messages, left, chosen = full.messages, full.bytes, list[DropCandidate]()
    for row in tx.rows(CANDIDATES.replace("{same}", SAME[full.scope]), named):
        if messages <= 0 and left <= 0:
            break
        chosen.append(DropCandidate(full, *row))
        messages, left = messages - 1, left - row[4]
    if messages > 0 or left > 0:
        raise full.error(UNDROPPABLE)
    return chosen


def make_room(tx: StoreTransaction, evicted: Sequence[DropCandidate]) -> None:
    """Drop messages that give way to a new one; each has a reason, a time and a record."""
    for v in evicted:
        policy = cast("Reason", v.full.overflow)  # one of those that drop
        reason = reason_text(policy, f"the limit of {v.full.where} is reached")
        tx.run(DROP, (tx.now, reason, v.seq))
        full = v.full.scope, v.full.name, v.full.overflow
        tx.run(RECORD, (v.id, v.recipient, v.session, *full, v.line, tx.now))
        tx.run(TICKET_FAILED, (f"dropped: {reason}", tx.now, v.id))
    _count(tx, len(evicted))


def drop(tx: StoreTransaction, message: OutgoingMessage, full: LimitHit) -> None:
    """Store a message as dropped: it has an id, a reason and a time, and leaves nowhere."""
    reason = reason_text("drop_new", f"the limit of {full.where} is reached")
    beside = message.body is not None and message.body_id is None
    stored = outbox.with_body(tx, message) if beside else message
    tx.rows(ADD_DROPPED, (*outbox.ROW(stored._replace(due_at=None, held_by=None)), tx.now, reason))
    named = message.id, message.recipient, message.session
    tx.run(RECORD, (*named, full.scope, full.name, "drop_new", None, tx.now))
    _count(tx, 1)


def tell_callers(tx: StoreTransaction, message_ids: Iterable[str]) -> None:
    """
    Send the sessions that dispatched dropped messages as tasks the results of these.

    Results may exceed the limit, so what they gave way to is stored before.
    """
    for message_id in message_ids:
        if tx.run(TASK_DROPPED, (message_id,)):
            tx.has_news = True


def _count(tx: StoreTransaction, dropped: int) -> None:
    bump(tx, ended_pending=dropped, outbox_dropped=dropped, dropped_by_policy=dropped)


def unsummarized_drops(
    tx: StoreTransaction, recipient: str, session: str
) -> tuple[list[int], list[str], list[str]]:
    """Return drops for the next summary, their last lines, and unsent summaries it replaces."""
    found = tx.rows(UNSUMMARIZED, (recipient, session))
    return (
        [seq for seq, _, _ in found],
        [line for _, line, _ in found][-LINES:],
        sorted({i for _, _, i in found if i is not None}),
    )


def mark_summarized(
    tx: StoreTransaction, summary_id: str, drops: list[int], replaced: list[str]
) -> None:
    """Record the summary of drops; cancel unsent summaries that it replaces."""
    tx.many(MARK_SUMMARIZED, [(summary_id, seq) for seq in drops])
    gone = sum(tx.run(REPLACE, (tx.now, message_id)) for message_id in replaced)
    bump(tx, ended_pending=gone, cancelled=gone)
