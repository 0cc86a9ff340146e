"""
Apply the limits of a file to messages: capacity, rate of sending and rate of accepting.

Without limits this costs a message nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from math import ceil
from typing import Any, Final, NamedTuple, cast

from onceward.core.end import sent
from onceward.core.rows import limits, outbox
from onceward.core.rows.outbox import OutgoingMessage
from onceward.errors import FileLimit, OutboxLimit, RateLimited
from onceward.file.connection import ConstraintError
from onceward.file.database import Database
from onceward.file.transaction import StoreTransaction
from onceward.hooks import Hooks
from onceward.message.clock import Millis
from onceward.message.events import Dropped, Event, NearlyFull
from onceward.message.frame import Frame
from onceward.message.names import byte_length
from onceward.message.queue_modes import LINE_MAX
from onceward.message.vocabulary import LimitScope, Overflow, Reason, reason_text

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
# The limits that apply to a new message, with their usage; its own name precedes the star.
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
UNDROPPABLE_ROW: Final = """
(o.rank = 0 OR o.type = 'worker_result' OR o.type = 'onceward.summary'
 OR json_extract(CASE WHEN o.body_id IS NULL THEN o.frame ELSE o.frame || 'null}' END,
                 '$.inreplyto') IS NOT NULL
 OR coalesce(json_extract(CASE WHEN o.body_id IS NULL THEN o.frame ELSE o.frame || 'null}' END,
                          '$.protected'), 0))
"""
# Oldest first; messages that have left, or are in a parcel, are not dropped.
CANDIDATES: Final = f"""
SELECT o.seq, o.id, o.recipient, o.session, o.type, length(CAST(o.frame AS BLOB)),
       substr(CASE WHEN o.body_id IS NULL THEN coalesce(o.frame ->> '$.data', '') ELSE o.type END,
              1, {LINE})
  FROM _onceward_outbox AS o
 WHERE o.state = 'pending'
   AND o.held_by IS NULL
   AND {{same}} AND NOT {UNDROPPABLE_ROW} AND NOT {outbox.pushed("o")}
 ORDER BY o.seq LIMIT 1000
"""
TASK_DROPPED: Final = outbox.undelivered("""
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
   AND (d.summary_id IS NULL OR (o.state = 'pending' AND NOT {outbox.pushed("o")}))
 ORDER BY d.seq
"""
WARN_AT: Final = 0.9
SENDERS_BUCKET: Final = """
SELECT r.per_second, r.burst,
       min(r.burst,
           coalesce(s.tokens + max(0, :now - s.filled_at) * r.per_second / 1000.0, r.burst))
  FROM _onceward_rate_limits AS r LEFT JOIN _onceward_rate_limits AS s ON s.name = :bucket
 WHERE r.name = 'accept'
"""
FILE: Final = "SELECT max_file_bytes FROM _onceward_file_info"
PAGES: Final = """
SELECT ((SELECT page_count FROM pragma_page_count)
        - (SELECT freelist_count FROM pragma_freelist_count)) * page_size
  FROM pragma_page_size
"""
ALONE: Final = " by this message alone"
UNDROPPABLE: Final = ", and its messages may not be dropped"
Rows = Callable[[str], list[tuple[Any, ...]]]
PROTECTED: Final = frozenset({"worker_result", SUMMARY})


class LimitHit(NamedTuple):
    """A limit that a new message would exceed, and by how much."""

    scope: LimitScope
    name: str
    overflow: Overflow
    messages: int
    bytes: int

    @property
    def held(self) -> str:
        """The value of ``held_by`` for a message that this limit holds."""
        return f"limit:{self.scope}:{self.name}"

    @property
    def where(self) -> str:
        """Scope and name of the limit."""
        return f"{self.scope} {self.name}".rstrip()

    @property
    def reached(self) -> str:
        """Its text in the reason of a dropped message."""
        return f"the limit of {self.where} is reached"

    def error(self, why: str = "") -> OutboxLimit | FileLimit:
        """Return the error for a refused sender."""
        msg = (
            f"the limit of {self.where} is reached{why}; nothing was written,"
            " wait until some of it is settled"
        )
        return FileLimit(msg) if self.scope == "store" else OutboxLimit(msg)


class DropCandidate(NamedTuple):
    """A message that a policy drops."""

    full: LimitHit
    seq: int
    id: str
    recipient: str
    session: str
    type: str
    bytes: int
    line: str


class Accept(NamedTuple):
    """Admission: the message is stored as it is."""

    evicted: tuple[DropCandidate, ...] = ()
    """The messages that are dropped to store it."""


class Hold(NamedTuple):
    """Admission: the message is stored, and waits until its limit allows it to leave."""

    limit: LimitHit
    evicted: tuple[DropCandidate, ...] = ()


class DropNew(NamedTuple):
    """Admission: the message is dropped by its limit."""

    limit: LimitHit


Admission = Accept | Hold | DropNew


class FileUsage(NamedTuple):
    """Used bytes of a file, and their limit."""

    bytes: int
    limit: int


class AdmissionControl:
    """Decides by the limits of a file which messages its outbox accepts."""

    def __init__(self, db: Database, hooks: Hooks) -> None:
        self._db, self._hooks = db, hooks
        self._warned = False
        self.unlimited: bool | None = None
        """Whether the file has no limits; None until the first message reads them."""

    def reload(self, read: Rows | None = None) -> bool:
        """
        Read whether the file has limits; return whether it has none.

        Limits that another process sets are noticed at the next opening, or
        when one of them is reached.
        """
        self.unlimited = unlimited = not (read or self._db.read)(ACTIVE)[0][0]
        return unlimited

    def is_limit_error(self, error: ConstraintError) -> bool:
        """Return whether a limit that was set since refused a row; remember the limit."""
        if "_full" not in str(error) or "queue_full" in str(error):
            return False
        return not self.reload()

    def admit(self, tx: StoreTransaction, message: OutgoingMessage) -> Admission:
        """
        Decide whether a message is accepted, held or dropped; drop messages in its favour.

        Raises:
            OutboxLimit, FileLimit, RateLimited: nothing was written nor dropped.

        """
        used = _check_file_size(tx)
        admission = _admit(tx, message, protected=_protected(message))
        _take_token(tx, self._db.agent)
        events = list(self._nearly_full(tx.now, used))
        if isinstance(admission, DropNew):
            events.append(self._dropped(tx.now, message, admission.limit))
        else:
            _make_room(tx, admission.evicted)
            events += [self._dropped(tx.now, each, each.full) for each in admission.evicted]
        if events and self._hooks:
            tx.after_commit(partial(self._hooks.emit, events))
        return admission

    def _nearly_full(self, at: Millis, used: FileUsage | None) -> Iterable[Event]:
        """Yield a warning once when the file is nearly full."""
        if used is None:
            return
        full = used.bytes >= WARN_AT * used.limit
        if full and not self._warned:
            yield NearlyFull(agent=self._db.agent, at=at, used=used.bytes, limit=used.limit)
        self._warned = full

    def _dropped(
        self, at: Millis, message: OutgoingMessage | DropCandidate, full: LimitHit
    ) -> Dropped:
        return Dropped(
            agent=self._db.agent,
            at=at,
            message_id=message.id,
            peer=message.recipient,
            session=message.session,
            type=message.type,
            scope=full.where,
            policy=full.overflow,
        )


def _protected(message: OutgoingMessage) -> bool:
    """
    Return whether a message may exceed the limits.

    Critical messages may, workers' results, awaited replies, and messages marked protected.
    """
    whole = message.body is None and message.body_id is None
    frame = Frame.parse(message.frame if whole else f"{message.frame}null}}")
    return (
        message.headers.rank == 0
        or frame.type in PROTECTED
        or frame.inreplyto is not None
        or bool(frame.headers.get("protected"))
    )


def _admit(tx: StoreTransaction, message: OutgoingMessage, *, protected: bool) -> Admission:
    """
    Return the decision of a message's limits, without changes.

    Raises:
        OutboxLimit, FileLimit: a limit is reached and no message may be dropped for it.

    """
    size = byte_length(message.frame)
    named = {
        "channel": message.headers.channel,
        "session": message.session,
        "recipient": message.recipient,
        "lane": message.headers.lane,
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
    """Return the oldest droppable messages, as many as the new message needs."""
    messages, left, chosen = full.messages, full.bytes, list[DropCandidate]()
    for row in tx.rows(CANDIDATES.replace("{same}", SAME[full.scope]), named):
        if messages <= 0 and left <= 0:
            break
        chosen.append(DropCandidate(full, *row))
        messages, left = messages - 1, left - chosen[-1].bytes
    if messages > 0 or left > 0:
        raise full.error(UNDROPPABLE)
    return chosen


def _make_room(tx: StoreTransaction, evicted: Sequence[DropCandidate]) -> None:
    """Drop messages in favour of a new one; each gets a reason, a time and a record."""
    for v in evicted:
        policy = cast("Reason", v.full.overflow)  # one of those that drop
        reason = reason_text(policy, v.full.reached)
        sent.drop(tx, v.seq, v.id, reason)
        full = v.full.scope, v.full.name, v.full.overflow
        limits.record_drops(tx, [(v.id, v.recipient, v.session, *full, v.line, tx.now)])
    sent.count_dropped(tx, len(evicted))


def record_drop(tx: StoreTransaction, message: OutgoingMessage, full: LimitHit) -> None:
    """Record a new message that its limit has dropped."""
    named = message.id, message.recipient, message.session
    limits.record_drops(tx, [(*named, full.scope, full.name, "drop_new", None, tx.now)])
    sent.count_dropped(tx, 1)


def tell_callers(tx: StoreTransaction, message_ids: Iterable[str]) -> None:
    """
    Send the results of dropped tasks to the sessions that dispatched them.

    Results may exceed the limit, so the new message is stored before them.
    """
    for message_id in message_ids:
        if tx.run(TASK_DROPPED, (message_id,)):
            tx.has_news = True


def unsummarized_drops(
    tx: StoreTransaction, recipient: str, session: str
) -> tuple[list[int], list[str], list[str]]:
    """Return the drops and last lines for the next summary, and the unsent ones it replaces."""
    found = tx.rows(UNSUMMARIZED, (recipient, session))
    return (
        [seq for seq, _, _ in found],
        [line for _, line, _ in found][-LINES:],
        sorted({i for _, _, i in found if i is not None}),
    )


def mark_summarized(
    tx: StoreTransaction, summary_id: str, dropped: list[int], replaced: list[str]
) -> None:
    """Record the summary of drops; cancel unsent summaries that it replaces."""
    limits.mark_summarized(tx, summary_id, dropped)
    sent.supersede(tx, replaced)


def _take_token(tx: StoreTransaction, sender: str) -> None:
    """Count one message against the rate; raise RateLimited with the wait if it is exceeded."""
    for tokens, per_second, burst in limits.take_send(tx):
        if tokens < 0:
            wait = -tokens / per_second
            msg = (
                f"agent {sender} sends faster than its limit of {per_second:g} messages a second"
                f" (burst {burst:g}); nothing was written, try again in {wait:.3f} s"
            )
            raise RateLimited(msg, retry_after=wait, sender=sender, limit=per_second)


def _check_file_size(tx: StoreTransaction) -> FileUsage | None:
    """Return the file's usage if it is limited; raise FileLimit if it is reached."""
    [(limit,)] = tx.rows(FILE)
    if limit is None:
        return None
    [(size,)] = tx.rows(PAGES)
    found = FileUsage(size, limit)
    if found.bytes >= found.limit:
        raise FileLimit(
            f"{size} bytes of the file are in use, the limit is {found.limit}; nothing was "
            "written: wait until messages are settled and pruned"
        )
    return found


def accept_at_rate(tx: StoreTransaction, sender: str, messages: int) -> Millis:
    """
    Count a sender's parcel against the accept rate; return the wait, 0 if it is accepted.

    A parcel larger than a burst is accepted when the bucket is full, and paid off afterwards: a
    parcel is accepted as a whole or not at all. A refused sender consumes no tokens.
    """
    bucket = f"accept/{sender}"
    for per_second, burst, tokens in tx.rows(SENDERS_BUCKET, {"now": tx.now, "bucket": bucket}):
        missing = min(messages, burst) - tokens
        if missing > 0:
            wait: Millis = ceil(1000 * missing / per_second)
            return wait
        left = {
            "bucket": bucket,
            "per_second": per_second,
            "burst": burst,
            "tokens": tokens - messages,
            "now": tx.now,
        }
        limits.fill_bucket(tx, left)
    return 0
