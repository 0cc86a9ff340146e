"""Define the SQL that gives each message one verdict, for both SQLite and Spark."""

from __future__ import annotations

from typing import Final

from onceward.fleet.states import IN_STATES, OUT_STATES, OUTCOMES, spelt
from onceward.message import ids

KEY: Final = ("sender", "recipient", "id")
OPEN_VERDICTS: Final = ("no_sender_row", "no_recipient_row")
"""Verdicts that a message's own records leave open: no sender, or no recipient, knows it."""
PRUNABLE: Final = (
    "(length(id) = 36 AND substr(id, 9, 1) = '-' AND substr(id, 15, 1) = '7'"
    " AND substr(id, 20, 1) IN ('8', '9', 'a', 'b'))"
)
"""Ids whose dedup records are pruned."""
KEYED: Final = f"substr(id, 1, {len(ids.KEYED)}) = '{ids.KEYED}'"
"""Ids of messages with a key, which have no time: the key's owner may use it again."""
MINTED: Final = f"({PRUNABLE} AND NOT {KEYED})"
"""
Ids that sort by time. All others were chosen by a sender, or are those of a key: two tenants may
have chosen the same.
"""
KEPT: Final = "(in_state = 6)"
"""
It ended on arrival, because a wait of a handler may take it; none has, in any copy. A processed
message that no wait need take, or one has, is of state 7.
"""
WAITING: Final = "waits_until_at > {cutoff}"
"""Its handler, or its lane, waits until then; after that moment a worker must have gone on."""
PROCESSED: Final = "(in_state = 7 OR mark = 5)"
NONE_OUT: Final = "(out_state = 0 AND out_dead = 0)"
NONE_IN: Final = "(in_state = 0 AND mark = 0 AND in_dead = 0)"
# One line per verdict, the first that holds counts; {cutoff} and {late} come from the rules.
TWICE: Final = """
WHEN effect_at > 0 AND effect_first_at < effect_last_at     THEN 'double_processed'
WHEN effect_at > 0 AND effect_first_seq < effect_last_seq   THEN 'double_processed'
WHEN received_at > 0 AND received_first_at < received_last_at THEN 'duplicated'
"""
TOOK_EFFECT: Final = """CASE
WHEN differing > 0                                          THEN 'other_contents'
WHEN effect_at > expires_at                                 THEN 'overdue'
WHEN out_dead > 0                                           THEN 'late'
WHEN effect_at - created_at > {late}                        THEN 'late'
ELSE 'delivered_once' END"""
ONCE: Final = f"""
WHEN {PROCESSED} AND NOT {NONE_OUT} AND NOT {KEPT} THEN {TOOK_EFFECT}
WHEN {NONE_IN} AND {NONE_OUT} AND (created_at > {{cutoff}} OR logged_in_at > {{cutoff}})
                                                            THEN 'in_flight'
WHEN {NONE_IN} AND ({NONE_OUT} OR logged_in_at <= {{cutoff}}) THEN 'no_recipient_row'
WHEN {NONE_OUT}                                              THEN 'no_sender_row'
WHEN {KEPT}                                                 THEN 'kept'
WHEN mark = 4 OR in_dead > 0                                THEN 'dead_lettered'
WHEN in_state = 5 OR mark = 3                               THEN 'cancelled'
WHEN in_state = 4 OR mark = 2                               THEN 'dropped'
WHEN in_state = 3 OR mark = 1                               THEN 'expired'
WHEN in_state > 0 AND received_at > {{cutoff}}              THEN 'in_flight'
WHEN in_state > 0 AND {WAITING}                THEN 'waiting'
WHEN in_state > 0                                           THEN 'unprocessed'
WHEN out_state = 7                                          THEN 'no_recipient_row'
WHEN out_state = 6                                          THEN 'dead_lettered'
WHEN out_state = 5                                          THEN 'dropped'
WHEN out_state = 4                                          THEN 'cancelled'
WHEN out_dead = 2                                           THEN 'expired'
WHEN out_dead = 1                                           THEN 'dead_lettered'
ELSE 'in_flight' END"""
PROVISIONAL_VERDICT: Final = f"CASE {TWICE}{ONCE}"
PLAIN_VERDICT: Final = f"CASE {ONCE}"
"""Of a message with at most one row of each side: nothing of it can have happened twice."""
SEEN_AT: Final = "coalesce(marked_at, received_at)"
UNENDED: Final = "recipient_says IN ('pending', 'processing', 'waiting', 'kept')"
ENDED_THERE: Final = f"(recipient_says <> 'kept' AND (mark_seq IS NOT NULL OR NOT {UNENDED}))"
PRUNED: Final = f"(CASE WHEN {MINTED} THEN id < pruned_id ELSE {SEEN_AT} < pruned_at END)"
# Of a message with its coverage: known is 1 where a file of the side without a row was read.
FINAL_VERDICT: Final = f"""CASE verdict
WHEN 'no_sender_row' THEN CASE
    WHEN known = 0                                          THEN 'unwitnessed'
    WHEN {SEEN_AT} > {{cutoff}}                             THEN 'in_flight'
    WHEN {SEEN_AT} > upto_at - {{grace}}                    THEN 'unwitnessed'
    WHEN {PRUNED} AND {ENDED_THERE}                         THEN 'forgotten'
    WHEN {PRUNED} AND recipient_says = 'kept'               THEN 'kept'
    WHEN {PRUNED} AND {WAITING}                THEN 'waiting'
    WHEN {PRUNED}                                           THEN 'unprocessed'
    ELSE 'orphan' END
WHEN 'no_recipient_row' THEN CASE
    WHEN ended_at > {{cutoff}}                              THEN 'in_flight'
    WHEN ended_at > upto_at - {{grace}}                     THEN 'unwitnessed'
    WHEN known = 0                                          THEN 'unwitnessed'
    WHEN {KEYED} AND created_at > horizon_at                THEN 'lost'
    WHEN {PRUNABLE} AND id <= horizon_id                    THEN 'forgotten'
    ELSE 'lost' END
ELSE verdict END"""
DELETED: Final = "nothing, deleted"
"""Said of a side of which the log has a row, and the file none."""
SENDER_SAYS: Final = (
    "CASE WHEN out_state = 0 AND out_dead > 0 THEN 'dead letter'"
    f" WHEN {NONE_OUT} AND created_at IS NOT NULL THEN '{DELETED}'"
    f" ELSE {spelt('out_state', OUT_STATES, 'nothing')} END"
)
RECIPIENT_SAYS: Final = (
    "CASE WHEN in_dead > 0 THEN 'dead letter'"
    f" WHEN {KEPT} THEN 'kept'"
    f" WHEN {NONE_IN} AND logged_in_at IS NOT NULL THEN '{DELETED}'"
    " WHEN in_state = 1 AND waits_until_at > 0 THEN 'waiting'"
    f" WHEN in_state > 0 THEN {spelt('in_state', (*IN_STATES, 'processed'), 'nothing')}"
    f" WHEN mark > 0 THEN {spelt('mark', OUTCOMES, 'nothing')} || ', marked'"
    " ELSE 'nothing' END"
)
ASKING_FILE: Final = (
    "coalesce(CASE WHEN out_state > 0 THEN out_file"  # spares finding the verdict once more
    " WHEN verdict = 'no_sender_row' THEN in_file ELSE out_file END, 0)"
)
"""The file that has a row of the message, the sender's if both have."""
TEXTS: Final = (
    "sender", "recipient", "id", "verdict", "sender_says", "recipient_says", "waits_for",
)  # fmt: skip
MOMENTS: Final = (
    "created_at", "sent_at", "ended_at", "received_at", "marked_at", "processed_at",
    "waits_until_at",
)  # fmt: skip
SEQUENCES: Final = ("out_seq", "in_seq", "mark_seq")
FRAME: Final = (*TEXTS, *MOMENTS, "lane", *SEQUENCES)
"""The columns of a judged message; moments are milliseconds in SQLite, timestamps in Spark."""
