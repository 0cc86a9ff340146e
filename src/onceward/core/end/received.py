"""
End messages at their recipient: row, dedup record, lane, receipt and counter, in one transaction.

A message that a worker holds ends by its settlement (``settle``); one that waits ends from outside
(``end_unclaimed``, ``bury_unclaimed``), which fences a holder off in the same transaction. A
settlement proves its lease first, because that proves the statements that follow; receipts come
last.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Final, NamedTuple

from onceward.core.rows import dead_letters, inbox, lanes, senders
from onceward.core.rows.lanes import LeasedMessage
from onceward.errors import StoreCorrupt
from onceward.file.transaction import StoreTransaction, bump
from onceward.message.error_text import Raised
from onceward.message.parcel import UNANSWERED, Receipt
from onceward.message.vocabulary import (
    Dead,
    Done,
    Outcome,
    Reason,
    RetryAt,
    Settlement,
    reason_text,
)

UNENDED: Final = "a leased message could not be ended: its index is damaged, recover a copy"
BY_HANDLER: Final[Reason] = "dropped"
"""Reason of a message that its handler, not a policy, dropped."""
DEFAULTS: Final[dict[Outcome, Reason | None]] = {
    "processed": None,
    "dropped": BY_HANDLER,
    "expired": "expired",
    "cancelled": "cancelled",
}
"""The default reason of each outcome of a message."""
COUNTERS: Final[dict[Outcome, str]] = {"cancelled": "inbox_cancelled"}
"""The counter of messages with an outcome, where it is not called after it."""
ASKS: Final = '"replyto"'
"""Text in every frame that asks for a reply; a body may also have it, which costs one query."""
WITHOUT_REPLY: Final = """
SELECT j.key
  FROM json_each(?) AS j
 WHERE NOT EXISTS (SELECT 1 FROM _onceward_outbox AS o WHERE o.in_reply_to = j.value)
"""


class SettledMessage(NamedTuple):
    """One message and how its lease ends."""

    leased: LeasedMessage
    settlement: Settlement


def settle(
    tx: StoreTransaction, ended: Sequence[SettledMessage], rest: dict[int, list[int]]
) -> None:
    """
    End leases with their settlements, in a constant number of statements.

    *rest* maps lanes to the messages that stay leased because the caller is still working on them.

    Raises:
        LeaseLost: another owner has one of the lanes; roll the transaction back.
        StoreCorrupt: a leased message is not pending; roll the transaction back.

    """
    lasts: dict[int, SettledMessage] = {}
    gone: list[int] = []
    for each in ended:
        lasts[each.leased.lane.lane_id] = each
        if not isinstance(each.settlement, RetryAt):
            gone.append(each.leased.seq)
    for lane_id, last in lasts.items():  # first: the lease proves the following statements
        again = last.settlement if isinstance(last.settlement, RetryAt) else None
        due_at = None if again is None else again.due_at
        if due_at is not None and last.leased.expires_at is not None:
            # then the message ends, and its lane continues
            due_at = min(due_at, last.leased.expires_at)
        left = [] if again else rest.get(lane_id, [])
        lanes.settle(tx, last.leased.lane, ended=gone, rest=left, due_at=due_at)
    if not apply_settlements(tx, ended):
        raise StoreCorrupt(UNENDED)


def settle_handled(tx: StoreTransaction, leased: LeasedMessage) -> None:
    """
    End the lease of one message that was handled and asks for no reply, as ``settle`` does.

    Raises:
        LeaseLost: another owner has the lane; roll the transaction back.
        StoreCorrupt: the message is not pending; roll the transaction back.

    """
    lanes.settle(tx, leased.lane, ended=(leased.seq,), rest=[], due_at=None)
    ended = inbox.end_handled(tx, leased.seq, leased.attempt)
    senders.mark_one(tx, leased.sender, leased.id, leased.session, "processed")
    own = tx.own
    if own is not None and own.agent == leased.sender and own.acknowledge(tx, leased.id):
        bump(tx, ended=1, processed=1, acked=1, sent=-1)
    else:
        bump(tx, ended=1, processed=1)
        senders.add_receipts(tx, [(leased.sender, Receipt(leased.id, "processed"))])
    if not ended:
        raise StoreCorrupt(UNENDED)


def apply_settlements(tx: StoreTransaction, ended: Sequence[SettledMessage]) -> bool:
    """
    Settle messages and enqueue their receipts; return whether all of them were pending.

    The caller has proved its leases.

    The sender of a request that ends without a reply is notified, which ends its wait: replies must
    be in the outbox by now, from this transaction or earlier.
    """
    done: dict[tuple[Outcome, str | None, int], list[int]] = {}
    others: list[SettledMessage] = []
    owed: list[tuple[str, Receipt]] = []
    for each in ended:
        if ASKS in each.leased.frame:
            ended = _without_reply(tx, ended)
            break
    for each in ended:
        leased = each.leased
        match each.settlement:
            case Done(outcome=outcome, reason=reason):
                attempt = 0 if outcome == "expired" else leased.attempt
                done.setdefault((outcome, reason, attempt), []).append(leased.seq)
                plain = outcome == "processed" and reason is None
                told = (
                    Receipt(leased.id, "processed")
                    if plain
                    else receipt(leased.id, outcome, reason)
                )
                owed.append((leased.sender, told))
            case Dead(reason=reason):
                others.append(each)
                owed.append((leased.sender, Receipt(leased.id, "dead", reason)))
            case _:
                others.append(each)
    whole = True
    for (outcome, reason, attempt), seqs in done.items():
        whole &= _end(tx, seqs, outcome, reason, attempt=attempt) == len(seqs)
    for each in others:
        _bury_or_retry(tx, each)
    senders.add_receipts(tx, owed)
    return whole


def receipt(message_id: str, outcome: str, reason: str | None) -> Receipt:
    """
    Return the receipt of a processed, dropped, cancelled or expired message.

    A message that its handler dropped is reported as processed; one that a policy dropped, which
    *reason* names, as dropped.
    """
    if outcome == "expired":
        return Receipt(message_id, "dead", "expired")
    if outcome == "cancelled":
        return Receipt(message_id, "cancelled", reason)
    told = reason if reason is not None and reason.startswith(UNANSWERED) else None
    if outcome == "dropped" and told is None and reason not in {None, BY_HANDLER}:
        return Receipt(message_id, "dropped", reason)
    return Receipt(message_id, "processed", told)


def _without_reply(
    tx: StoreTransaction, ended: Sequence[SettledMessage]
) -> Sequence[SettledMessage]:
    """Return the settlements, with a reason for requests that end without a reply."""
    asked: dict[int, str] = {}
    for index, each in enumerate(ended):
        if ASKS in each.leased.frame and isinstance(each.settlement, Done):
            asked[index] = each.leased.id
    found = [index for (index,) in tx.rows(WITHOUT_REPLY, (json.dumps(asked),))]
    settled = list(ended)
    for index in map(int, found):
        leased, settlement = settled[index]
        if isinstance(settlement, Done) and _by_handler(settlement):
            reason = ": ".join(filter(None, (UNANSWERED, settlement.reason)))
            settled[index] = SettledMessage(leased, replace(settlement, reason=reason))
    return settled


def _by_handler(settlement: Done) -> bool:
    """Return whether a handler ended the message, not its expiry or a policy."""
    if settlement.outcome == "dropped":
        return settlement.reason is None
    return settlement.outcome == "processed"


def _bury_or_retry(tx: StoreTransaction, ended: SettledMessage) -> None:
    leased, settlement = ended
    match settlement:
        case RetryAt(error=error, counted=counted):
            inbox.set_attempts(tx, leased.seq, leased.attempt - (not counted), error[:500])
        case Dead() as dead:
            _dead_letter(tx, leased, dead)
    if isinstance(settlement, RetryAt | Dead) and settlement.raised is not None:
        _keep_attempt(tx, leased, settlement.error, settlement.raised)


def _keep_attempt(tx: StoreTransaction, leased: LeasedMessage, error: str, failed: Raised) -> None:
    """Store a failed attempt; forget those beyond the last ones of its message and the file."""
    named = {
        "sender": leased.sender,
        "id": leased.id,
        "attempt": leased.attempt,
        "worker": leased.lane.owner,
        "error": error[:500],
        "trace": failed.trace,
        "took": failed.took,
        "now": tx.now,
    }
    inbox.keep_attempt(tx, named)


def _end(
    tx: StoreTransaction, seqs: list[int], outcome: Outcome, reason: str | None, *, attempt: int
) -> int:
    """End leased messages by the attempt of that number, 0 without one; return how many."""
    changed = inbox.end(tx, seqs, outcome, reason or DEFAULTS[outcome], attempt)
    senders.mark(tx, seqs, outcome)
    bump(tx, ended=changed, **{outcome: changed})
    return changed


def _dead_letter(tx: StoreTransaction, leased: LeasedMessage, dead: Dead) -> None:
    attempts = leased.attempt - (not dead.tried)
    bury(tx, leased.seq, reason=dead.reason, error=dead.error[:2000], attempts=attempts)
    senders.mark_one(tx, leased.sender, leased.id, leased.session, "dead")


def bury(tx: StoreTransaction, seq: int, *, reason: Reason, error: str, attempts: int) -> None:
    """Move a message to the dead letters; the caller has proved its lease."""
    if not dead_letters.add_from_inbox(tx, seq, reason=reason, error=error, attempts=attempts):
        return  # a mailbox's message that was deleted or superseded while it was leased
    inbox.ENDED.remove(tx, [(seq,)])
    bump(tx, dead=1, ended=1)
    tx.has_news = True


def expire(tx: StoreTransaction, limit: int, session: str | None = None) -> int:
    """End messages (of a session) that expired before a claim; return how many."""
    seqs = inbox.expired(tx, limit, session)
    end_unclaimed(tx, seqs, "expired")
    return len(seqs)


def present(message_id: str, state: str | None, outcome: str | None, reason: str | None) -> Receipt:
    """Return the receipt of a message that came, by its row's state and its recorded outcome."""
    if outcome == "dead":
        return Receipt(message_id, "dead", reason_text("dead", "kept in the peer's dead letters"))
    if outcome is None and state == "pending":
        return Receipt(message_id, "duplicate")
    if state is None and outcome == "dropped":
        reason = reason_text("dropped", "its row and its reason were pruned")
    return receipt(message_id, outcome or str(state), reason)


def end_unclaimed(
    tx: StoreTransaction, seqs: Sequence[int], outcome: Outcome, reason: str | None = None
) -> list[tuple[int, str, str]]:
    """
    End waiting messages from outside, and store receipts for their senders.

    A lease on one of them is over, and its holder commits no more. Return (sequence, sender, id) of
    each that was waiting.
    """
    ended = inbox.end_waiting(tx, seqs, outcome, reason or DEFAULTS[outcome]) if seqs else []
    if ended:
        gone = [seq for seq, _, _ in ended]
        senders.mark(tx, gone, outcome)
        lanes.fence(tx, gone)
        bump(tx, ended=len(ended), **{COUNTERS.get(outcome, outcome): len(ended)})
        senders.add_receipts(tx, [(s, receipt(i, outcome, reason)) for _, s, i in ended])
    return ended


def bury_unclaimed(
    tx: StoreTransaction, seqs: Sequence[int], reason: Reason, error: str
) -> list[tuple[str, str]]:
    """
    Make dead letters of waiting messages without a lease, and store receipts for their senders.

    Return (id, sender) of each.
    """
    if not seqs:
        return []
    rows = inbox.attempts_of(tx, seqs)
    lanes.fence(tx, seqs)
    senders.mark(tx, seqs, "dead")
    for seq, _, _, attempts in rows:
        bury(tx, seq, reason=reason, error=error, attempts=attempts)
    senders.add_receipts(tx, [(sender, Receipt(i, "dead", reason)) for _, sender, i, _ in rows])
    return [(i, sender) for _, sender, i, _ in rows]
