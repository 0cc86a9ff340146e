"""What two agents' files say of each other: the sender forgot only what the recipient keeps."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Final, NamedTuple

from onceward.db.database import Database
from onceward.model.frame import digest
from onceward.store.accept import OWN_ID
from onceward.store.bodies import FULL_FRAME
from onceward.store.invariants import Violation

RULES: Final = {
    "X1": "what the sender counts as stored, the recipient keeps or has marked",
    "X2": "the recipient's stream is not behind the parcels that the sender has settled",
    "X3": "the recipient's stream is not ahead of the parcels that the sender has packed",
    "X4": "the same id is the same message on both sides",
}
SLICE: Final = 1000
TOLD: Final = f"""
SELECT seq, id, digest, state IN ('sent', 'acked'), CASE WHEN body_id IS NOT NULL THEN {FULL_FRAME} END FROM outbox AS o
 WHERE seq > ? AND recipient = ? AND state IN ('sent', 'acked', 'pending') ORDER BY seq LIMIT ?
"""
KEPT: Final = """
SELECT j.value, b.digest,
       b.seq IS NOT NULL
       OR EXISTS (SELECT 1 FROM processed_messages WHERE sender = :sender AND message_id = j.value)
       OR EXISTS (SELECT 1 FROM dead_letters WHERE origin = 'inbox' AND peer = :sender AND id = j.value)
  FROM json_each(:ids) AS j LEFT JOIN inbox AS b ON b.sender = :sender AND b.id = j.value
"""
HORIZON: Final = "SELECT horizon_id FROM streams WHERE sender = ?"
PACKED: Final = "SELECT epoch, number, parcel IS NOT NULL FROM peers WHERE name = ?"
TAKEN: Final = "SELECT epoch, number FROM streams WHERE sender = ?"


class _Row(NamedTuple):
    id: str
    digest: bytes | None
    stored: bool


def check(sender: Database, recipient: Database) -> list[Violation]:
    """
    Return what breaks the custody of the mail from one open file to another; empty is good.

    Both may be in use: whatever proves custody is read from the sender first.
    A recipient that was restored from a backup breaks X1 or X2 until the
    sender has sent again what it retains.
    """
    return [*_streams(sender, recipient), *_messages(sender, recipient)]


def _streams(sender: Database, recipient: Database) -> Iterator[Violation]:
    settled = sender.read(PACKED, (recipient.agent,))
    taken = recipient.read(TAKEN, (sender.agent,))
    packed = sender.read(PACKED, (recipient.agent,))
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


def _messages(sender: Database, recipient: Database) -> Iterator[Violation]:
    for rows in _slices(sender, recipient.agent):
        named = {"sender": sender.agent, "ids": json.dumps([row.id for row in rows])}
        kept = {str(i): (seen, bool(known)) for i, seen, known in recipient.read(KEPT, named)}
        horizon = recipient.read(HORIZON, (sender.agent,))
        for row in rows:
            seen, known = kept[row.id]
            if (
                row.stored
                and not known
                and not (horizon and OWN_ID.fullmatch(row.id) and row.id <= horizon[0][0])
            ):
                yield _violation("X1", row.id)
            if seen is not None and row.digest is not None and seen != row.digest:
                yield _violation("X4", row.id)


def _slices(sender: Database, recipient: str) -> Iterator[list[_Row]]:
    after = 0
    while found := sender.read(TOLD, (after, recipient, SLICE)):
        after = found[-1][0]
        yield [
            _Row(str(i), seen if whole is None else digest(whole), bool(stored))
            for _, i, seen, stored, whole in found
        ]


def _violation(name: str, offender: str) -> Violation:
    return Violation(name, RULES[name], offender)
