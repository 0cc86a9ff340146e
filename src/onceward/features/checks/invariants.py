"""
Check the invariants of one file and between two files.

Rules about one file are SQL: each query returns the offenders, and should return none. Rules about
a pair compare a sender's file with its recipient's: the sender has settled only messages that the
recipient keeps.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Final, NamedTuple, Protocol, cast

from onceward.core.contract import FileRule
from onceward.core.rows.outbox import body_digest_of, frame_of
from onceward.errors import StoreClosed, StoreError
from onceward.message.frame import digest, same_contents, split_digest
from onceward.message.ids import OWN_ID

INVARIANTS: Final = {
    "S1": FileRule(
        "a message is in the outbox or in its dead letters, never in both",
        """
        SELECT o.id
          FROM _onceward_outbox AS o
          JOIN _onceward_dead_letters AS d ON d.origin = 'outbox' AND d.peer = o.recipient
           AND d.id = o.id
        """,
    ),
    "S2": FileRule(
        "no waiting message has vanished: the number of 'pending' rows matches the counters",
        """
        SELECT 'pending ' || n || ', counted ' || expected FROM (
            SELECT (SELECT count(*) FROM _onceward_outbox WHERE state = 'pending') AS n,
                   coalesce((SELECT seq FROM sqlite_sequence WHERE name = '_onceward_outbox'), 0)
                   - (SELECT value FROM _onceward_counters WHERE name = 'ended_pending')
                   AS expected)
         WHERE n <> expected
        """,
    ),
    "S3": FileRule(
        "the number of 'sent' rows matches the counters",
        """
        SELECT 'sent ' || n || ', counted ' || expected FROM (
            SELECT (SELECT count(*) FROM _onceward_outbox WHERE state = 'sent') AS n,
                   (SELECT value FROM _onceward_counters WHERE name = 'sent') AS expected)
         WHERE n <> expected
        """,
    ),
    "S4": FileRule(
        "every message of the parcel in flight is for its peer",
        """
        SELECT p.name || ' parcel_ordinal row ' || j.value
          FROM _onceward_peers AS p, json_each(p.in_flight_seqs) AS j
          JOIN _onceward_outbox AS o ON o.seq = j.value
         WHERE p.in_flight_seqs IS NOT NULL AND o.recipient <> p.name
        """,
    ),
    "S5": FileRule(
        "a message that waits for a peer's outcome has a time at which the peer is asked",
        """
        SELECT id FROM _onceward_outbox
         WHERE state = 'sent' AND due_at IS NULL
           AND recipient <> (SELECT agent FROM _onceward_file_info)
        """,
    ),
    "S7": FileRule(
        "a message to oneself that waits for its outcome is pending in the inbox of the same file",
        """
        SELECT o.id
          FROM _onceward_outbox AS o
          JOIN _onceward_file_info AS i ON i.agent = o.recipient
         WHERE o.state = 'sent'
           AND NOT EXISTS (SELECT 1
                             FROM _onceward_inbox AS b
                            WHERE b.sender = i.agent AND b.id = o.id AND b.state = 'pending')
        """,
    ),
    "S6": FileRule(
        "a message was sent before it ended, unless it was withdrawn",
        "SELECT id FROM _onceward_outbox WHERE state IN ('acked', 'failed') AND sent_at IS NULL",
    ),
    "S10": FileRule(
        "every message has its body",
        """
        SELECT o.id
          FROM _onceward_outbox AS o
         WHERE o.body_id IS NOT NULL
           AND NOT EXISTS (SELECT 1 FROM _onceward_bodies AS b WHERE b.body_id = o.body_id)
        """,
    ),
    "R1": FileRule(
        "a message is processed exactly if it has a dedup record",
        """
        SELECT b.id FROM _onceward_inbox AS b
          LEFT JOIN _onceward_processed_messages AS p ON p.sender = b.sender
           AND p.message_id = b.id
           AND p.consumer = ''
         WHERE b.state IN ('processed', 'dropped', 'expired', 'cancelled') AND p.seq IS NULL
           AND b.id > coalesce((SELECT horizon_id
                                  FROM _onceward_sender_streams
                                 WHERE sender = b.sender), '')
        """,
    ),
    "R2": FileRule(
        "no waiting message has a dedup record",
        """
        SELECT b.id FROM _onceward_inbox AS b
          JOIN _onceward_processed_messages AS p ON p.sender = b.sender AND p.message_id = b.id
         WHERE b.state = 'pending' AND b.mailbox IS NULL
        """,
    ),
    "R3": FileRule(
        "the number of 'pending' inbox rows matches the counters",
        """
        SELECT 'pending ' || n || ', counted ' || expected FROM (
            SELECT (SELECT count(*) FROM _onceward_inbox WHERE state = 'pending') AS n,
                   coalesce((SELECT seq FROM sqlite_sequence WHERE name = '_onceward_inbox'), 0)
                   - (SELECT value FROM _onceward_counters WHERE name = 'ended') AS expected)
         WHERE n <> expected
        """,
    ),
    "R4": FileRule(
        "a lane's head is its oldest waiting message",
        """
        SELECT coalesce(l.sender, '') || '/' || l.name FROM _onceward_lanes AS l
         WHERE l.head_seq IS NOT (SELECT min(seq)
                                    FROM _onceward_inbox
                                   WHERE lane_id = l.lane_id AND state = 'pending')
        """,
    ),
    "R5": FileRule(
        "every waiting message has a lane that will deliver it",
        """
        SELECT b.id
          FROM _onceward_inbox AS b
          LEFT JOIN _onceward_lanes AS l ON l.lane_id = b.lane_id
         WHERE b.state = 'pending' AND b.mailbox IS NULL AND l.lane_id IS NULL
        """,
    ),
    "R6": FileRule(
        "every dead letter of the inbox has a dedup record, so its frame is not accepted again",
        """
        SELECT d.id FROM _onceward_dead_letters AS d
          LEFT JOIN _onceward_processed_messages AS p ON p.sender = d.peer AND p.message_id = d.id
         WHERE d.origin = 'inbox' AND p.seq IS NULL
           AND d.id > coalesce((SELECT horizon_id
                                  FROM _onceward_sender_streams
                                 WHERE sender = d.peer), '')
        """,
    ),
    "R7": FileRule(
        "a message is in the inbox or in its dead letters, never in both",
        """
        SELECT b.id
          FROM _onceward_inbox AS b
          JOIN _onceward_dead_letters AS d ON d.origin = 'inbox' AND d.peer = b.sender
           AND d.id = b.id
        """,
    ),
    "M1": FileRule(
        "a mailbox's message is in no lane, and its sender knows that it was stored",
        """
        SELECT b.id FROM _onceward_inbox AS b
          LEFT JOIN _onceward_processed_messages AS p ON p.sender = b.sender
           AND p.message_id = b.id
           AND p.consumer = ''
         WHERE b.mailbox IS NOT NULL
           AND b.state = 'pending'
           AND (b.lane_id IS NOT NULL OR p.seq IS NULL)
           AND b.id > coalesce((SELECT horizon_id
                                  FROM _onceward_sender_streams
                                 WHERE sender = b.sender), '')
        """,
    ),
    "T1": FileRule(
        "an answered ticket names its reply",
        """
        SELECT id
          FROM _onceward_pending_replies
         WHERE state IN ('answered', 'late') AND reply_id IS NULL
        """,
    ),
    "D1": FileRule(
        "SQLite finds no damage in the file",
        """
        SELECT substr(integrity_check, 1, 400)
          FROM pragma_integrity_check
         WHERE integrity_check <> 'ok'
        """,
    ),
}
FRAMES: Final = {
    "S8": FileRule(
        "every frame of the outbox is unchanged since it was written",
        """
        SELECT id, frame, digest
          FROM _onceward_outbox
         WHERE digest IS NOT NULL AND body_id IS NULL
        """,
    ),
    "S9": FileRule(
        "every shared body is unchanged since it was written",
        "SELECT 'body ' || body_id, text, digest FROM _onceward_bodies",
    ),
    "R8": FileRule(
        "every frame of the inbox is unchanged since it was accepted",
        "SELECT id, frame, digest FROM _onceward_inbox",
    ),
    "R9": FileRule(
        "every dead letter is unchanged",
        "SELECT id, frame, digest FROM _onceward_dead_letters WHERE digest IS NOT NULL",
    ),
}


USERS: Final = "SELECT id FROM _onceward_outbox WHERE body_id = :body"
DAMAGED: Final = frozenset({"S8", "S9", "S10", "S12", "R8", "R9"})
"""Rules whose offenders are altered messages, or messages without a body."""
HEADS: Final = f"""
SELECT id, frame, digest, {body_digest_of("o")}
  FROM _onceward_outbox AS o
 WHERE digest IS NOT NULL AND body_id IS NOT NULL
"""


class ReadableFile(Protocol):
    """The parts of an agent's file that checks use; an open database has them."""

    @property
    def agent(self) -> str:
        """The agent whose file it is."""
        ...

    def ask(self, sql: str, bindings: Any = None) -> list[tuple[Any, ...]]:
        """Run a reading statement and return all of its rows."""
        ...


@dataclass(frozen=True, slots=True)
class Violation:
    """One invariant that does not hold, and the row that breaks it."""

    invariant: str
    rule: str
    offender: str


def rules() -> Mapping[str, FileRule]:
    """Return what must hold in a file without features."""
    return INVARIANTS


def check(db: ReadableFile, rules: Mapping[str, FileRule]) -> list[Violation]:
    """Return the violations of *rules* and of the frames in a file; empty if there are none."""
    found: list[Violation] = []
    for name, (rule, sql) in rules.items():
        found += [Violation(name, rule, str(row[0])) for row in _ask(db, sql)]
    for name, (rule, sql) in FRAMES.items():
        found += [
            Violation(name, rule, offender)
            for i, text, seen, *_ in _ask(db, sql)
            if digest(str(text)) != seen
            for offender in (_users(db, str(i)) if name == "S9" else [str(i)])
        ]
    heads = [
        i
        for i, head, seen, body in _ask(db, HEADS)
        if body is not None and split_digest(str(head), cast("bytes", body)) != seen
    ]
    return found + [Violation("S8", FRAMES["S8"][0], str(i)) for i in heads]


def look(db: ReadableFile, rules: Mapping[str, FileRule]) -> list[tuple[str, str]]:
    """Return (invariant, offender) of the violations in a file's rows, by one statement."""
    found = db.ask(_at_once(tuple(rules.items())))
    return [(str(name), str(offender)) for name, offender in found]


@cache
def _at_once(rules: tuple[tuple[str, FileRule], ...]) -> str:
    """Return all rules as one statement, except SQLite's own check."""
    asked = [(name, rule.offenders) for name, rule in rules if name != "D1"]
    return " UNION ALL ".join(f"SELECT '{name}', one.* FROM ({sql}) AS one" for name, sql in asked)


def _users(db: ReadableFile, body: str) -> list[str]:
    """Return the ids of the messages that share a body, or the body's name if there is none."""
    number = body.removeprefix("body ")
    users = _ask(db, USERS, {"body": int(number)}) if number.isdecimal() else []
    return [str(user) for user, *_ in users] or [body]


def _ask(
    db: ReadableFile, sql: str, named: dict[str, int] | None = None
) -> list[tuple[object, ...]]:
    try:
        return db.ask(sql, named)
    except StoreClosed:
        raise
    except StoreError as error:
        return [(f"unreadable: {error}", "", b"", b"")]


# -- between two files --------------------------------------------------------------------

PAIR_RULES: Final = {
    "X1": "the recipient keeps, or has a dedup record of, each message that the sender counts as "
    "stored",
    "X2": "the recipient's stream is not before the parcels that the sender has settled",
    "X3": "the recipient's stream is not after the parcels that the sender has packed",
    "X4": "the same id is the same message on both sides, apart from its time",
}
SLICE: Final = 1000
TOLD: Final = f"""
SELECT seq, id, digest, state IN ('sent', 'acked'),
       CASE WHEN body_id IS NOT NULL THEN {frame_of("o")} END
  FROM _onceward_outbox AS o
 WHERE seq > ? AND recipient = ? AND state IN ('sent', 'acked', 'pending') ORDER BY seq LIMIT ?
"""
KEPT: Final = """
SELECT j.value,
       CASE WHEN instr(b.frame, '"bodyedits"') = 0 THEN b.digest END,
       b.seq IS NOT NULL
       OR EXISTS (SELECT 1
                    FROM _onceward_processed_messages
                   WHERE sender = :sender AND message_id = j.value)
       OR EXISTS (SELECT 1
                    FROM _onceward_dead_letters
                   WHERE origin = 'inbox' AND peer = :sender AND id = j.value)
  FROM json_each(:ids) AS j LEFT JOIN _onceward_inbox AS b ON b.sender = :sender AND b.id = j.value
"""
SENT_AS: Final = f"""
SELECT {frame_of("o")} FROM _onceward_outbox AS o WHERE id = ? AND recipient = ?
"""
KEPT_AS: Final = "SELECT frame FROM _onceward_inbox WHERE sender = ? AND id = ?"
HORIZON: Final = "SELECT horizon_id FROM _onceward_sender_streams WHERE sender = ?"
PACKED: Final = (
    "SELECT epoch, number, in_flight_seqs IS NOT NULL FROM _onceward_peers WHERE name = ?"
)
TAKEN: Final = "SELECT epoch, number FROM _onceward_sender_streams WHERE sender = ?"


class _Row(NamedTuple):
    id: str
    digest: bytes | None
    stored: bool


def check_pair(sender: ReadableFile, recipient: ReadableFile) -> list[Violation]:
    """
    Return the violations by messages from one open file to another; empty if there are none.

    Both may be in use, because the sender's stored messages are read first. A recipient that was
    restored from a backup violates X1 or X2 until the sender has sent its retained messages again.
    """
    return [*_streams(sender, recipient), *_messages(sender, recipient)]


def _streams(sender: ReadableFile, recipient: ReadableFile) -> Iterator[Violation]:
    settled = sender.ask(PACKED, (recipient.agent,))
    taken = recipient.ask(TAKEN, (sender.agent,))
    packed = sender.ask(PACKED, (recipient.agent,))
    epoch, number = taken[0] if taken else ("", 0)
    if settled and settled[0][1] and settled[0][0] == epoch and number < settled[0][1]:
        yield _violation(
            "X2",
            f"{sender.agent}: parcel {settled[0][1]} settled, {number} taken by {recipient.agent}",
        )
    if taken and packed and packed[0][0] == epoch and number > packed[0][1] + packed[0][2]:
        yield _violation(
            "X3",
            f"{sender.agent}: parcel {packed[0][1]} packed, {number} taken by {recipient.agent}",
        )


def _messages(sender: ReadableFile, recipient: ReadableFile) -> Iterator[Violation]:
    for rows in _slices(sender, recipient.agent):
        named = {"sender": sender.agent, "ids": json.dumps([row.id for row in rows])}
        kept = {str(i): (seen, bool(known)) for i, seen, known in recipient.ask(KEPT, named)}
        horizon = recipient.ask(HORIZON, (sender.agent,))
        for row in rows:
            seen, known = kept[row.id]
            if (
                row.stored
                and not known
                and not (horizon and OWN_ID.fullmatch(row.id) and row.id <= horizon[0][0])
            ):
                yield _violation("X1", row.id)
            if (
                seen is not None
                and row.digest is not None
                and seen != row.digest
                and not _is_redone(sender, recipient, row, seen)
            ):
                yield _violation("X4", row.id)


def _is_redone(sender: ReadableFile, recipient: ReadableFile, row: _Row, kept: bytes) -> bool:
    """Return whether a handler of a restored sender has sent a message again, with its contents."""
    ours = sender.ask(SENT_AS, (row.id, recipient.agent))
    theirs = recipient.ask(KEPT_AS, (sender.agent, row.id))
    if not (ours and theirs):  # pruned since
        return True
    texts = str(ours[0][0]), str(theirs[0][0])
    if tuple(map(digest, texts)) != (row.digest, kept):
        return False
    return same_contents(*texts)


def _slices(sender: ReadableFile, recipient: str) -> Iterator[list[_Row]]:
    after = 0
    while found := sender.ask(TOLD, (after, recipient, SLICE)):
        after = found[-1][0]
        yield [
            _Row(str(i), seen if whole is None else digest(whole), bool(stored))
            for _, i, seen, stored, whole in found
        ]


def _violation(name: str, offender: str) -> Violation:
    return Violation(name, PAIR_RULES[name], offender)
