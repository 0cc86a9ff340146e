"""
End messages at their sender; ask again about those without an end.

A peer's receipts end a message (``settle``), or a failure (``bury``), a policy (``drop``), a newer
message (``supersede``) or the sender (``cancel``) does. A receipt may come early, late or twice:
each change is one statement that names the state before. Row, counters, the wait of a request, and
the report to a session that dispatched a task change in one transaction.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter
from typing import Any, Final, NamedTuple
from zlib import crc32

from onceward.core.rows import dead_letters, outbox, tickets
from onceward.core.rows.outbox import OwnRow
from onceward.file.transaction import StoreTransaction, bump
from onceward.message.clock import Millis
from onceward.message.parcel import OTHER_CONTENTS, UNANSWERED, Receipt
from onceward.message.vocabulary import Reason, reason_of

ASK_PAUSES: Final = (1, 2, 4, 8, 16)
"""
Pauses before a peer is asked about a message, as multiples of the first one.

Each is prolonged by up to a quarter, to a moment that all messages of the peer share: one push asks
about messages that were sent at about the same time.
"""
States = tuple[tuple[str, str, int], ...]
"""States of messages, each with the counter that it changes, and by how much."""
SENT_FIRST: Final[States] = (
    ("sent", "sent", -1),
    ("pending", "ended_pending", 1),
    ("failed", "failed", -1),
)
PENDING_FIRST: Final[States] = (SENT_FIRST[1], SENT_FIRST[0], SENT_FIRST[2])
FEW: Final = 8
"""States of messages that may be handled before the answer to their parcel is settled here."""
ID: Final = attrgetter("id")
STALE: Final[Reason] = "stale"
"""The refusal of a peer that cannot find out whether it knows the message."""


def take_own(tx: StoreTransaction, agent: str, rows: Sequence[OwnRow], done: list[str]) -> Moved:
    """Mark messages that entered the agent's own inbox; end those of *done*, handled ones."""
    count = outbox.take_own(tx, [each.row.seq for each in rows])
    bump(tx, ended_pending=count, sent=count)
    acked = _ack(tx, agent, done, None)[0] if done else ()
    return Moved(tuple(each.row.id for each in rows), tuple(acked))


NONE_AGAIN: Final[frozenset[str]] = frozenset()


class Moved(NamedTuple):
    """The messages whose state a batch of receipts changed."""

    sent: tuple[str, ...] = ()
    acked: tuple[str, ...] = ()
    failed: tuple[tuple[str, str], ...] = ()
    unanswered: tuple[str, ...] = ()
    """Requests that ended without a reply."""
    dropped: tuple[tuple[str, str], ...] = ()
    """(id, reason) of messages that a policy of the peer dropped."""
    cancelled: tuple[tuple[str, str], ...] = ()
    """(id, reason) of messages that the peer cancelled."""
    sent_again: frozenset[str] = NONE_AGAIN
    """Those of ``sent`` that the peer was known to have: it was asked for their outcome."""
    at_once: tuple[str, ...] = ()
    """Those of ``acked`` that the peer was not known to have."""
    differing: tuple[str, ...] = ()
    """Messages whose first copy at the peer has other contents."""

    @property
    def ended(self) -> bool:
        """Return whether a message has ended, or a request without a reply."""
        return bool(self.acked or self.failed or self.unanswered or self.dropped or self.cancelled)

    @property
    def any(self) -> bool:
        """Return whether a message has changed its state."""
        return bool(self.sent or self.acked or self.failed or self.dropped or self.cancelled)


NOTHING_MOVED: Final = Moved()


def settle(
    tx: StoreTransaction,
    peer: str,
    receipts: Iterable[Receipt],
    *,
    ask_at: Millis,
    stored_ends: bool,
    parcel: int | None = None,
) -> Moved:
    """
    Apply a peer's receipts, in a constant number of statements.

    A receipt may come early, late or twice: states only ever move forward.
    """
    by_state: dict[str, list[Receipt]] = {}
    told: list[Receipt] = []
    for receipt in receipts:
        by_state.setdefault(receipt.state, []).append(receipt)
        if receipt.reason is not None:
            told.append(receipt)
    done = list(map(ID, by_state.pop("processed", ())))
    if done and not (by_state or told):  # most parcels and all messages to oneself
        acked, at_once = _ack(tx, peer, done, parcel)
        return Moved(acked=tuple(acked), at_once=tuple(at_once))
    stored = list(map(ID, by_state.get("stored", ())))
    held = list(map(ID, by_state.get("duplicate", ())))
    if stored_ends:
        done, stored, held = done + stored + held, [], []
    if stored and tx.ended:  # by receipts that came before this answer was settled
        ended = set(tx.ended)
        stored = [message_id for message_id in stored if message_id not in ended]
    acked, at_once = _ack(tx, peer, done, parcel) if done else ([], [])
    moved = _sent(tx, peer, stored, ask_at, parcel, held=False) if stored else []
    again = NONE_AGAIN
    if held:
        again = outbox.sent_before(tx, peer, held)
        moved += _sent(tx, peer, held, ask_at, parcel, held=True)
    failed: list[tuple[str, str]] = []
    for receipt in by_state.get("dead", ()):
        if _fail(tx, peer, receipt, parcel):
            failed += ((receipt.id, receipt.reason or "dead"),)
    return Moved(
        tuple(moved),
        tuple(acked),
        tuple(failed),
        _fail_requests(tx, peer, told) if told else (),
        _end_there(tx, peer, by_state["dropped"], parcel) if "dropped" in by_state else (),
        _end_there(tx, peer, by_state["cancelled"], parcel) if "cancelled" in by_state else (),
        again,
        tuple(at_once),
        _note_differing(tx, peer, told) if told else (),
    )


COUNTERS: Final = {"dropped": "outbox_dropped", "cancelled": "cancelled"}
"""Counter of the messages that a peer ended in a state."""


def _end_there(
    tx: StoreTransaction, peer: str, receipts: Sequence[Receipt], parcel: int | None
) -> tuple[tuple[str, str], ...]:
    """End messages that the peer dropped or cancelled, known to be stored or not."""
    ended: list[tuple[str, str]] = []
    for receipt in receipts:
        to, reason = receipt.state, receipt.reason or receipt.state
        named = {"id": receipt.id, "peer": peer, "now": tx.now, "reason": reason, "parcel": parcel}
        named |= {"to": to}
        for was, deltas in (
            ("sent", {"sent": -1}),
            ("pending", {"ended_pending": 1}),
            ("acked", {"acked": -1}),
        ):
            if outbox.end_there(tx, named | {"was": was}):
                bump(tx, **{COUNTERS[to]: 1}, **deltas)
                told = reason if reason.startswith(to) else f"{to}: {reason}"
                tickets.fail(tx, receipt.id, told)
                ended.append((receipt.id, reason))
                break
    if ended and receipts[0].state == "cancelled":
        outbox.tell_cancelled(tx, [message_id for message_id, _ in ended])
    return tuple(ended)


def _note_differing(tx: StoreTransaction, peer: str, told: Sequence[Receipt]) -> tuple[str, ...]:
    """Record messages whose first copy at the peer has other contents."""
    other = [each.id for each in told if str(each.reason).endswith(OTHER_CONTENTS)]
    if not other:
        return ()
    from onceward.core.rows import differing  # noqa: PLC0415 - rarely needed

    return differing.note(tx, "outbox", peer, other)


def _fail_requests(tx: StoreTransaction, peer: str, told: Sequence[Receipt]) -> tuple[str, ...]:
    """End the wait for replies to requests that their recipient ended without one."""
    return tuple(
        receipt.id
        for receipt in told
        if str(receipt.reason).startswith(UNANSWERED)
        and tickets.fail_at(tx, peer, receipt.id, receipt.reason)
    )


def _sent(
    tx: StoreTransaction,
    peer: str,
    ids: list[str],
    ask_at: Millis,
    parcel: int | None,
    *,
    held: bool,
) -> list[str]:
    """
    Mark messages that the peer stored; those it *held* before show it busy and spend no budget.

    The pause before it is asked about doubles each time.
    """
    pause, offset = ask_at - tx.now, crc32(peer.encode())
    named: dict[str, Any] = {
        "peer": peer,
        "now": tx.now,
        "pause": pause,
        "parcel": parcel,
        "held": held,
    }
    for times in ASK_PAUSES:
        due = tx.now + times * pause
        named[f"ask_{times}"] = due + (offset - due) % max(1, times * pause // 4)
    moved = outbox.set_sent(tx, ids, named)
    bump(tx, ended_pending=len(moved), sent=len(moved))
    return moved


def _ack(
    tx: StoreTransaction, peer: str, ids: list[str], parcel: int | None
) -> tuple[list[str], list[str]]:
    """End messages that the peer processed; return their ids, and those stored until now."""
    moved: list[str] = []
    at_once: list[str] = []
    named = {"peer": peer, "now": tx.now, "parcel": parcel}
    counts: dict[str, int] = {}
    for was, counter, by in _states_before(tx, peer, len(ids)):
        if len(moved) < len(ids):
            found = outbox.set_acked(tx, ids, named | {"was": was})
            moved += [str(i) for i, _ in found]
            if was == "pending":
                at_once = [str(i) for i, is_new in found if is_new]
            counts[counter] = by * len(found)
    bump(tx, acked=len(moved), **counts)
    tx.ended += moved
    if len(moved) < len(ids):
        dead_letters.note_late(tx, peer, ids, "processed")
    return moved, at_once


def _states_before(tx: StoreTransaction, peer: str, count: int) -> States:
    """Return the states that messages may have had before they were acked, likely ones first."""
    to_oneself = tx.own is not None and tx.own.agent == peer
    return SENT_FIRST if to_oneself or count > FEW else PENDING_FIRST


def _fail(tx: StoreTransaction, peer: str, receipt: Receipt, parcel: int | None) -> bool:
    reason = receipt.reason or "dead"
    named = {"id": receipt.id, "peer": peer, "now": tx.now, "reason": reason, "parcel": parcel}
    for was, deltas in (("sent", {"sent": -1}), ("pending", {"ended_pending": 1})):
        if outbox.set_failed(tx, named | {"was": was}):
            bump(tx, failed=1, **deltas)
            tickets.fail(tx, receipt.id, reason)
            return True
    return False


def requeue_due(
    tx: StoreTransaction, limit: int, exhausted: Callable[[int], bool]
) -> tuple[int, list[int]]:
    """
    Make due rows ready: delayed ones, and sent ones whose outcome is unknown.

    Pushing a sent row again asks for its outcome.

    Return how many are ready now, and the sequences of those that were repeatedly stored but never
    processed: the peer is not asked about them again. It is always asked about a message that was
    stored once.
    """
    due = outbox.due(tx, limit)
    parked = [seq for seq, state, _ in due if state == "pending"]
    stored = [
        (seq, attempts > 1 and exhausted(attempts)) for seq, s, attempts in due if s == "sent"
    ]
    unanswered = [seq for seq, spent in stored if spent]
    again = [seq for seq, spent in stored if not spent]
    woken = outbox.unpark(tx, parked) if parked else 0
    if again:
        moved = outbox.ask_again(tx, again)
        bump(tx, ended_pending=-moved, sent=-moved, retries=moved)
        woken += moved
    return woken, unanswered


def resend(tx: StoreTransaction, peer: str, *, after: int) -> int:
    """Make all messages pending again that left in a parcel later than *after*; return how many."""
    total = 0
    for was, deltas in (
        ("sent", {"sent": -1}),
        ("acked", {"acked": -1}),
        ("failed", {"failed": -1}),
    ):
        count = outbox.set_pending(tx, peer, was, after=after)
        bump(tx, ended_pending=-count, **{name: by * count for name, by in deltas.items()})
        total += count
    return total


UNFOUND: Final = {
    "pending": {"ended_pending": 1},
    "sent": {"sent": -1},
    "acked": {"acked": -1},
    "failed": {"failed": -1},
    "dropped": {"outbox_dropped": -1},
    "cancelled": {"cancelled": -1},
}
"""How counters change if a message that was found again is replaced, by its state."""


def forget_found(tx: StoreTransaction, message_id: str) -> bool:
    """Remove a message that was found again, because it is sent again; False if there is none."""
    state = outbox.remove_found(tx, message_id)
    if state is not None:
        bump(tx, **UNFOUND[state])
    return state is not None


def cancel(tx: StoreTransaction, message_id: str) -> bool:
    """Withdraw a message that has not left yet; return whether that was possible."""
    if not outbox.set_cancelled(tx, message_id):
        # called twice, or repeated after a COMMIT whose outcome was lost
        return outbox.is_cancelled(tx, message_id)
    bump(tx, ended_pending=1, cancelled=1)
    tickets.fail(tx, message_id, "cancelled")
    return True


def bury(
    tx: StoreTransaction,
    seqs: Iterable[int],
    *,
    reason: Reason,
    error: str = "",
    unknown: bool = False,
    tried: bool = False,
) -> list[tuple[str, str]]:
    """
    Move messages to the dead letters; return (id, peer) of each.

    *unknown*: their peer has just answered that it does not know them. *tried*: the push that ended
    them is not counted yet. The session that dispatched one of them as a task gets a result in the
    same transaction.
    """
    numbers = list(seqs)
    states = outbox.states(tx, numbers)
    moved = dead_letters.add_from_outbox(
        tx, numbers, reason=reason, error=error, unknown=unknown, tried=tried
    )
    outbox.remove_unended(tx, numbers)
    bump(tx, ended_pending=states.get("pending", 0), sent=-states.get("sent", 0), dead=len(moved))
    ids = [message_id for message_id, _ in moved]
    tickets.fail_all(tx, ids, reason)
    outbox.tell_dead(tx, ids)
    tx.has_news = True
    return moved


def reject(
    tx: StoreTransaction, peer: str, told: Sequence[Receipt]
) -> tuple[tuple[str, Reason], ...]:
    """Make dead letters of refused messages; keep the peer's own reason as details."""
    done: list[tuple[str, Reason]] = []
    for receipt in told:
        if receipt.state != "rejected":
            continue
        said = receipt.reason or "rejected"
        reason = reason_of(said)
        detail = said.partition(": ")[2] if reason else said
        seqs = tx.rows(
            "SELECT seq FROM _onceward_outbox WHERE id = ? AND recipient = ?", (receipt.id, peer)
        )
        if seqs and bury(
            tx,
            [s for (s,) in seqs],
            reason=reason or "rejected",
            error=detail,
            unknown=reason != STALE,
            tried=True,
        ):
            done.append((receipt.id, reason or "rejected"))
    return tuple(done)


def drop(tx: StoreTransaction, seq: int, message_id: str, reason: str) -> None:
    """End a waiting message by a policy, which counts it by ``count_dropped``."""
    outbox.drop(tx, seq, reason)
    tickets.fail(tx, message_id, f"dropped: {reason}")


def count_dropped(tx: StoreTransaction, dropped: int) -> None:
    """Count messages that a policy has dropped before they left."""
    bump(tx, ended_pending=dropped, outbox_dropped=dropped, dropped_by_policy=dropped)


def supersede(tx: StoreTransaction, message_ids: Iterable[str]) -> None:
    """End waiting messages that a newer one replaces."""
    gone = sum(outbox.supersede(tx, message_id) for message_id in message_ids)
    bump(tx, ended_pending=gone, cancelled=gone)
