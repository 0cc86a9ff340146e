"""Read messages of mailboxes: inbox rows with many readers, ended by expiry or deletion."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from heapq import nlargest
from operator import attrgetter
from typing import Any, Final, NamedTuple

from onceward.core.end import received
from onceward.core.rows import inbox, senders
from onceward.errors import InvalidArgument, LeaseLost
from onceward.features.mailboxes import mailbox_readers
from onceward.features.mailboxes.mailbox_readers import MailboxLease, MailboxRef, Reader, Start
from onceward.file import identity
from onceward.file.transaction import Rows, StoreTransaction, bump
from onceward.message.clock import Millis
from onceward.message.frame import digest, tags_in
from onceward.message.record import MessageRecord, read_record
from onceward.message.topics import matches_any
from onceward.message.vocabulary import Reason

COLUMNS: Final = "rank, seq, sender, id, session, type, topic, frame, digest, received_at"
ALIVE: Final = (
    "mailbox = :mailbox AND state = 'pending' AND (expires_at IS NULL OR expires_at > :now)"
)
ORDER: Final = attrgetter("rank", "seq")
RANKS: Final = range(mailbox_readers.RANKS)
# One arm per priority, in index order: a read costs only the rows that it returns.
NEXT: Final = " UNION ALL ".join(
    f"""
SELECT {COLUMNS}, 0
  FROM (SELECT {COLUMNS}
          FROM _onceward_inbox
         WHERE {ALIVE} AND rank = {n} AND seq > :p{n}
         ORDER BY seq LIMIT :limit)
"""
    for n in RANKS
)
NEWEST: Final = " UNION ALL ".join(
    f"""
SELECT {COLUMNS}, 0
  FROM (SELECT {COLUMNS}
          FROM _onceward_inbox
         WHERE {ALIVE} AND rank = {n} AND seq < :before
         ORDER BY seq DESC LIMIT :limit)
"""
    for n in RANKS
)
KEPT: Final = f"""
SELECT b.rank, b.seq, sender, id, session, type, topic, frame, digest, received_at, h.attempts
  FROM _onceward_mailbox_leases AS h JOIN _onceward_inbox AS b ON b.seq = h.seq
 WHERE h.reader_id = :reader AND h.due_at IS NULL AND {ALIVE}
 ORDER BY h.rank, h.seq LIMIT :limit
"""
WAITS: Final = f"""
SELECT EXISTS (SELECT 1 FROM _onceward_mailbox_leases WHERE reader_id = :reader AND due_at IS NULL)
    OR EXISTS (SELECT 1 FROM _onceward_mailbox_leases WHERE reader_id = :reader AND due_at <= :now)
    OR {
    " OR ".join(
        f"EXISTS (SELECT 1 FROM _onceward_inbox WHERE {ALIVE} AND rank = {n} AND seq > :p{n})"
        for n in RANKS
    )
}
"""
COUNT: Final = f"SELECT rank, count(*) FROM _onceward_inbox WHERE {ALIVE} GROUP BY rank"
EXPIRED: Final = """
SELECT seq FROM _onceward_inbox
 WHERE mailbox IS NOT NULL AND expires_at <= ? AND expires_at IS NOT NULL AND state = 'pending'
 ORDER BY expires_at LIMIT ?
"""
MARKED: Final = """
SELECT 1 FROM _onceward_processed_messages WHERE sender = ? AND message_id = ? AND consumer = ?
"""
SCAN: Final = 500
"""Maximum rows scanned under one lock; a reader whose filter skips more commits in between."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageFilter:
    """Filter of a reader; None matches all."""

    types: tuple[str, ...] | None = None
    topics: tuple[str, ...] | None = None
    """Patterns, of which one must match."""
    sender: str | None = None
    session: str | None = None
    tags: frozenset[str] | None = None
    """Tags, one of which the message must have."""

    def wants(self, row: MailboxRow) -> bool:
        """Return whether a message matches."""
        return (
            (self.types is None or row.type in self.types)
            and (self.sender is None or row.sender == self.sender)
            and (self.session is None or row.session == self.session)
            and matches_any(self.topics, row.topic)
            and (self.tags is None or not self.tags.isdisjoint(tags_in(row.frame)))
        )


class MailboxRow(NamedTuple):
    """A stored message of a mailbox."""

    rank: int
    seq: int
    sender: str
    id: str
    session: str
    type: str
    topic: str | None
    frame: str
    digest: bytes
    received_at: Millis
    attempts: int

    def record(self, wanted: Any = None) -> MessageRecord:
        """Return the row as a record; raise InvalidArgument if its frame cannot be read."""
        sound = digest(self.frame) == self.digest
        return read_record(
            self.frame, self.received_at, wanted, attempts=self.attempts, sound=sound
        )


ALL: Final = MessageFilter()


def next_messages(
    rows: Rows, mailbox: str, passed: tuple[int, ...], *, now: Millis, limit: int
) -> list[MailboxRow]:
    """Return the rows after a position, in delivery order: by priority, then by arrival."""
    named = {"mailbox": mailbox, "now": now, "limit": limit} | _marks(passed)
    return sorted((MailboxRow(*row) for row in rows(NEXT, named)), key=ORDER)[:limit]


def _marks(passed: tuple[int, ...]) -> dict[str, int]:
    return {f"p{rank}": seq for rank, seq in enumerate(passed)}


def newest(
    rows: Rows, mailbox: str, wanted: MessageFilter, *, now: Millis, limit: int
) -> list[MailboxRow]:
    """Return the newest matching messages, newest first; change nothing."""
    found: list[MailboxRow] = []
    before = 1 << 62
    while len(found) < limit:
        named = {"mailbox": mailbox, "now": now, "before": before, "limit": SCAN}
        looked = nlargest(SCAN, map(MailboxRow._make, rows(NEWEST, named)), key=attrgetter("seq"))
        found += [row for row in looked if wanted.wants(row)]
        if len(looked) < SCAN:
            break
        before = looked[-1].seq
    return found[:limit]


def has_work(rows: Rows, place: MailboxRef, mode: str, name: str, *, now: Millis) -> bool:
    """
    Return whether a position may find messages, before taking the write lock.

    True for a position that does not exist yet, which must be created.
    """
    found = mailbox_readers.find(rows, place, mode, name, now=now)
    if found is None:
        return True
    named = {"reader": found[0], "mailbox": place.mailbox, "now": now}
    [(any_there,)] = rows(WAITS, named | _marks(found[1]))
    return bool(any_there)


def count(rows: Rows, mailbox: str, *, now: Millis) -> dict[int, int]:
    """Return how many messages a mailbox holds, by rank."""
    return {int(rank): int(many) for rank, many in rows(COUNT, {"mailbox": mailbox, "now": now})}


@dataclass(frozen=True, slots=True, kw_only=True)
class CursorRead:
    """How a cursor moves."""

    name: str
    start: Start
    wanted: MessageFilter = ALL
    limit: int
    consume_skipped: bool = True


def read_on(
    tx: StoreTransaction, place: MailboxRef, how: CursorRead
) -> tuple[list[MailboxRow], bool]:
    """
    Move a cursor past the next messages; return the matching ones, and whether to continue.

    The position is part of the caller's commit, so a crash after it loses undelivered messages, and
    none comes twice.
    """
    if identity.is_paused(tx.rows):
        return [], False
    reader = mailbox_readers.open_reader(tx, place, "cursor", how.name, how.start)
    # Kept messages are tested again: their filter may differ.
    kept, fresh = _candidates(tx, place, reader, kept=-1, fresh=SCAN)
    taken, seen = list[MailboxRow](), list[MailboxRow]()
    for row in sorted([*kept, *fresh], key=ORDER):
        if len(taken) == how.limit:
            break
        seen.append(row)
        if how.wanted.wants(row):
            taken.append(row)
    if not seen or not (taken or fresh or how.consume_skipped):
        # No position moves: a commit would only make readers wake each other.
        return [], False
    mailbox_readers.advance(tx, reader, [(row.rank, row.seq) for row in seen])
    mailbox_readers.forget_kept(
        tx, reader, [row.seq for row in (seen if how.consume_skipped else taken)]
    )
    if not how.consume_skipped:
        chosen = {row.seq for row in taken}
        mailbox_readers.keep_skipped(
            tx, reader, [(row.seq, row.rank) for row in seen if row.seq not in chosen]
        )
    return taken, len(fresh) == SCAN and len(taken) < how.limit


def _candidates(
    tx: StoreTransaction, place: MailboxRef, reader: Reader, *, kept: int, fresh: int
) -> tuple[list[MailboxRow], list[MailboxRow]]:
    """Return kept or released messages, and new ones."""
    named = {"reader": reader.reader_id, "mailbox": place.mailbox, "now": tx.now, "limit": kept}
    return [MailboxRow(*row) for row in tx.rows(KEPT, named)], next_messages(
        tx.rows, place.mailbox, reader.passed, now=tx.now, limit=fresh
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """The request of a group's member for messages."""

    group: str
    start: Start
    limit: int
    owner: str
    lease_for: Millis


def lease(
    tx: StoreTransaction, place: MailboxRef, claim: Claim, dead: Sequence[str] = ()
) -> list[MailboxLease]:
    """
    Lease the next messages of a group to one of its members.

    A message has at most one live lease in a group. One that was not settled is leased again when
    its lease has run out or its owner is among the *dead*, before newer ones of its priority.
    """
    if identity.is_paused(tx.rows):
        return []
    reader = mailbox_readers.open_reader(tx, place, "lease", claim.group, claim.start)
    mailbox_readers.wake(tx, reader)
    mailbox_readers.free(tx, reader, dead)
    kept, fresh = _candidates(tx, place, reader, kept=claim.limit, fresh=claim.limit)
    chosen = sorted([*kept, *fresh], key=ORDER)[: claim.limit]
    if not chosen:
        return []
    token = mailbox_readers.advance(tx, reader, [(row.rank, row.seq) for row in chosen])
    held = [(row.seq, row.rank, row.attempts + 1) for row in chosen]
    mailbox_readers.hold(
        tx, reader, held, token=token, owner=claim.owner, until=tx.now + claim.lease_for
    )
    return [
        MailboxLease(
            reader.reader_id, token, claim.owner, row.seq, row.sender, row.id, row.session,
            row.frame, row.digest,
            row.attempts + 1, row.received_at,
        )
        for row in chosen
    ]  # fmt: skip


def marked(rows: Rows, held: MailboxLease, consumer: str) -> bool:
    """Return whether a consumer has handled a message."""
    return bool(rows(MARKED, (held.sender, held.id, consumer)))


def mark(tx: StoreTransaction, held: MailboxLease, consumer: str) -> None:
    """
    Record that *consumer* has handled a message.

    Raises:
        LeaseLost: it is already recorded; the caller's transaction must be rolled back.

    """
    if not senders.mark_for(tx, consumer, (held.sender, held.id, held.session)):
        raise LeaseLost(
            f"this group has already handled message {held.id}: the writes are undone; no action "
            "is needed"
        )


def dead_letter(tx: StoreTransaction, held: MailboxLease, *, reason: Reason, error: str) -> None:
    """Move a message from the mailbox to the dead letters; raise LeaseLost without its lease."""
    mailbox_readers.end(tx, held)
    received.bury(tx, held.seq, reason=reason, error=error[:2000], attempts=held.attempt)


def delete(tx: StoreTransaction, mailbox: str, message_id: str) -> bool:
    """Delete a message from a mailbox, for all readers; return whether it existed."""
    gone = inbox.delete_kept(tx, mailbox, message_id)
    bump(tx, processed=gone, ended=gone)
    return gone > 0


def expire(tx: StoreTransaction, limit: int) -> int:
    """End expired messages of mailboxes, which reads no longer return, to free space."""
    seqs = [seq for (seq,) in tx.rows(EXPIRED, (tx.now, limit))]
    if seqs:
        gone = inbox.expire_kept(tx, seqs)
        bump(tx, expired=gone, ended=gone)
    mailbox_readers.sweep(tx)
    return len(seqs)


def limit_of(limit: int) -> int:
    """Return *limit* if it is valid; raise InvalidArgument otherwise."""
    if not isinstance(limit, int) or isinstance(limit, bool) or not 0 < limit <= SCAN:
        raise InvalidArgument(f"limit {limit!r} must be 1 to {SCAN} messages")
    return limit
