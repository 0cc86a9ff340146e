"""Read the messages of one sender in the order of their arrival, dead letters included."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final

from onceward.file.transaction import StoreTransaction
from onceward.message.frame import EDITS

SEQ_OF: Final = "SELECT seq FROM _onceward_inbox WHERE sender = ? AND id = ?"
NEWEST: Final = "SELECT seq FROM sqlite_sequence WHERE name = '_onceward_inbox'"
END_OF_SLICE: Final = """
SELECT max(seq), count(*)
  FROM (SELECT seq FROM _onceward_inbox WHERE seq > ? AND seq <= ? ORDER BY seq LIMIT ?)
"""
# A message that was changed here is not as its sender sent it.
SIZES_OF: Final = f"""
SELECT seq, length(CAST(frame AS BLOB))
  FROM (SELECT seq, sender, frame
          FROM _onceward_inbox WHERE seq > :after AND seq <= :upto ORDER BY seq LIMIT :slice)
 WHERE sender = :sender AND NOT instr(frame, '"{EDITS}"')
 ORDER BY seq
 LIMIT :limit
"""
DEAD_SIZES_OF: Final = f"""
SELECT inbox_seq, length(CAST(frame AS BLOB))
  FROM _onceward_dead_letters
 WHERE origin = 'inbox' AND peer = :sender AND inbox_seq > :after AND inbox_seq <= :upto
   AND NOT instr(frame, '"{EDITS}"')
 ORDER BY inbox_seq
 LIMIT :limit
"""
OUTCOMES_OF: Final = """
SELECT b.seq, b.frame, b.id, b.state,
       (SELECT outcome FROM _onceward_processed_messages
         WHERE sender = b.sender AND message_id = b.id AND consumer = ''), b.reason
  FROM json_each(:seqs) AS j JOIN _onceward_inbox AS b ON b.seq = j.value
 UNION ALL
SELECT inbox_seq, frame, id, NULL, 'dead', NULL
  FROM _onceward_dead_letters
 WHERE origin = 'inbox' AND peer = :sender AND inbox_seq IN (SELECT value FROM json_each(:seqs))
 ORDER BY 1
"""


def seq_of(tx: StoreTransaction, sender: str, message_id: str) -> int:
    """Return the sequence of a message; 0 if it is unknown or pruned."""
    found = tx.rows(SEQ_OF, (sender, message_id))
    return int(found[0][0]) if found else 0


def newest(tx: StoreTransaction) -> int:
    """Return the sequence of the last message; 0 if none came."""
    found = tx.rows(NEWEST)
    return int(found[0][0]) if found else 0


def sizes_of(
    tx: StoreTransaction, sender: str, within: tuple[int, int], *, slice_: int, limit: int
) -> tuple[int, list[tuple[int, int]]]:
    """
    Return sequence and bytes of a sender's first messages after a sequence, up to another one.

    They are at most *limit*, dead letters included, among the first *slice_* messages of all
    senders. The first value is the sequence up to which there are no others.
    """
    named = {"sender": sender, "after": within[0], "upto": within[1], "limit": limit}
    found: list[tuple[int, int]] = tx.rows(SIZES_OF, named | {"slice": slice_})
    end = within[1]
    if len(found) == limit:
        end = found[-1][0]
    else:
        [(last, count)] = tx.rows(END_OF_SLICE, (*within, slice_))
        end = last if count == slice_ else end
    both = sorted([*found, *tx.rows(DEAD_SIZES_OF, named | {"upto": end})])
    return (end if len(both) <= limit else both[limit - 1][0]), both[:limit]


def outcomes_of(tx: StoreTransaction, sender: str, seqs: Sequence[int]) -> list[tuple[Any, ...]]:
    """Return frame, id, state, recorded outcome and reason of a sender's messages, in order."""
    rows = tx.rows(OUTCOMES_OF, {"sender": sender, "seqs": json.dumps(seqs)})
    return [row[1:] for row in rows]
