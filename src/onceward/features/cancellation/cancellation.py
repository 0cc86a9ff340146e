"""Cancel a message in the outbox, on its way, at its recipient, or in the inbox."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Final, NamedTuple

from onceward.core.accept.policy import Endings
from onceward.core.end import sent
from onceward.core.handle.call import CONTEXT
from onceward.core.rows import outbox
from onceward.core.run.engine_loop import RuntimeDeps, until_found
from onceward.core.send.add import add_request
from onceward.errors import InvalidArgument
from onceward.features.cancellation.arrived import TOO_LATE, Canceller, cancel_reason
from onceward.file.sql_parts import senders
from onceward.file.transaction import StoreTransaction
from onceward.message.names import plain_text
from onceward.message.options import MessageOptions
from onceward.message.parcel import UNANSWERED
from onceward.message.record import Cancellation, Cancellations
from onceward.message.times import Span, seconds
from onceward.message.vocabulary import CANCEL

SENT: Final = """
SELECT o.recipient, o.session, o.state, o.created_at,
       EXISTS (SELECT 1 FROM _onceward_peers WHERE name = o.recipient AND url = 'pool:')
  FROM _onceward_outbox AS o WHERE o.id = ?
"""
DEAD: Final = "SELECT 1 FROM _onceward_dead_letters WHERE id = ?"
DECIDED: Final = """
SELECT t.state, t.reason
  FROM _onceward_outbox AS o JOIN _onceward_pending_replies AS t ON t.id = o.id
 WHERE o.addressed_to = ? AND o.key = ?
"""
ARRIVED: Final = f"""{senders("_onceward_inbox")}
SELECT b.seq, coalesce((SELECT outcome
                          FROM _onceward_processed_messages
                         WHERE sender = b.sender AND message_id = b.id AND consumer = ''), b.state)
  FROM senders AS s JOIN _onceward_inbox AS b ON b.sender = s.name AND b.id = ?
"""
UNENDED_OUT: Final = """
SELECT seq, id
  FROM _onceward_outbox
 WHERE seq > :after AND ended_at IS NULL AND coalesce(kind, '') <> 'onceward.cancel'
   AND (:to IS NULL OR recipient = :to OR pool = :to) AND (:type IS NULL OR type = :type)
   AND (:session IS NULL OR session = :session) AND (:key IS NULL OR key = :key)
 ORDER BY seq LIMIT :limit
"""
UNENDED_IN: Final = """
SELECT seq, id
  FROM _onceward_inbox
 WHERE seq > :after AND state = 'pending' AND lane_id IS NOT NULL
   AND (:sender IS NULL OR sender = :sender) AND (:type IS NULL OR type = :type)
   AND (:session IS NULL OR session = :session)
   AND (:key IS NULL
        OR (instr(frame, '"idempotencykey"') AND json_extract(frame, '$.idempotencykey') = :key))
 ORDER BY seq LIMIT :limit
"""
SLICE: Final = 200
"""Messages that one transaction of a bulk cancellation cancels."""
ENDED: Final = frozenset({"failed", "dropped", "cancelled"})
"""States of the outbox in which a message can no longer be cancelled."""
YOURSELF: Final = (
    "a handler does not cancel the message that it handles: raise Drop() or Reject(reason) instead"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class CancelFilter:
    """Filter of messages to cancel: all given conditions must hold."""

    to: str | None = None
    sender: str | None = None
    type: str | None = None
    session: str | None = None
    key: str | None = None

    def named(self, after: int) -> dict[str, str | int | None]:
        """Return the parameters of the statement that finds them."""
        return asdict(self) | {"after": after, "limit": SLICE}


class SentMessage(NamedTuple):
    """A message of the outbox."""

    recipient: str
    session: str
    state: str
    created_at: int
    in_pool: int
    """Whether no member of its pool has it; one that cannot be withdrawn may be with any."""


class Cancelling:
    """Cancels messages of one postbox."""

    def __init__(self, deps: RuntimeDeps, endings: Endings) -> None:
        self._db, self._outbox, self._settings = deps.db, deps.outbox, deps.settings
        self._canceller, self._emitter = Canceller(endings), endings.emitter

    def cancel(self, message_id: str, reason: str, timeout: Span | None) -> Cancellation:
        """Cancel one message; wait up to *timeout* seconds for its recipient's decision."""
        plain_text("message_id", message_id)
        if timeout is not None:
            seconds("timeout", timeout)
        _refuse_own(message_id)
        found = self._db.write(partial(self._cancel, message_id=message_id, reason=reason))
        if found.outcome != "asked" or timeout == 0:
            return found
        decided = until_found(
            self._db,
            lambda: self._decision(message_id),
            timeout,
            poll=self._settings.tuning.poll_interval,
            due=lambda left: left,
        )
        return found if decided is None else decided  # a decision of too late is false

    def cancel_all(self, which: CancelFilter, reason: str) -> Cancellations:
        """Cancel the matching messages, one slice per transaction."""
        found = Cancellations()
        for box, left_out in (("outbox", which.sender), ("inbox", which.to)):
            after: int | None = 0 if left_out is None else None
            while after is not None:
                work = partial(self._slice, box=box, which=which, after=after, reason=reason)
                after, ended = self._db.write(work)
                for each in ended:
                    getattr(found, each.outcome).append(each.id)
        return found

    def _slice(
        self, tx: StoreTransaction, *, box: str, which: CancelFilter, after: int, reason: str
    ) -> tuple[int | None, list[Cancellation]]:
        statement = UNENDED_OUT if box == "outbox" else UNENDED_IN
        rows = tx.rows(statement, which.named(after))
        if box == "outbox":
            ended = [self._cancel(tx, message_id=each, reason=reason) for _, each in rows]
        else:
            ended = self._end_here(tx, rows, reason)
        return (rows[-1][0] if len(rows) == SLICE else None), ended

    def _end_here(
        self, tx: StoreTransaction, rows: Sequence[tuple[int, str]], reason: str
    ) -> list[Cancellation]:
        for _, message_id in rows:
            _refuse_own(message_id)
        done = self._canceller.end(tx, [seq for seq, _ in rows], cancel_reason(reason))
        self._notify(tx)
        return [_ended(each, "cancelled" if seq in done else "pending") for seq, each in rows]

    # -- one message ------------------------------------------------------------------------

    def _cancel(self, tx: StoreTransaction, *, message_id: str, reason: str) -> Cancellation:
        rows = tx.rows(SENT, (message_id,))
        if not rows:
            return self._received(tx, message_id, reason)
        row = SentMessage(*rows[0])
        if row.state != "cancelled" and sent.cancel(tx, message_id):
            outbox.tell_cancelled(tx, [message_id])
            self._emitter.cancelled(tx, [(message_id, row.recipient, "cancelled")])
            self._notify(tx)
        elif row.recipient == self._db.agent and row.state == "sent":
            return self._received(tx, message_id, reason)
        else:
            return self._elsewhere(tx, message_id, row, reason)
        return _ended(message_id, "cancelled")

    def _received(self, tx: StoreTransaction, message_id: str, reason: str) -> Cancellation:
        rows = tx.rows(ARRIVED, (message_id,))
        if not rows:
            return _ended(message_id, "dead" if tx.rows(DEAD, (message_id,)) else "absent")
        if self._canceller.end(tx, [seq for seq, _ in rows], cancel_reason(reason)):
            self._notify(tx)
            return _ended(message_id, "cancelled")
        return _ended(message_id, str(rows[-1][1]))

    def _elsewhere(
        self, tx: StoreTransaction, message_id: str, row: SentMessage, reason: str
    ) -> Cancellation:
        """Return the outcome of a message that has left; ask its recipient if it is open."""
        if self._has_ended(row):
            return _ended(message_id, row.state)
        decided = tx.rows(DECIDED, (row.recipient, _key(message_id)))
        if not decided:
            self._ask(tx, message_id, row, reason)
        return _read_decision(message_id, row.state, decided)

    def _ask(self, tx: StoreTransaction, message_id: str, row: SentMessage, reason: str) -> None:
        options = MessageOptions(
            type=CANCEL,
            kind=CANCEL,
            key=_key(message_id),
            causation_id=message_id,
            priority="critical",
            ordering_key=_key(message_id),
        )
        message = self._outbox.compose(row.session, row.recipient, reason or None, options)
        add_request(tx, self._outbox, message, None)

    def _decision(self, message_id: str) -> Cancellation | None:
        """Return the recipient's decision; None while it is awaited."""
        rows = self._db.read(SENT, (message_id,))
        if not rows:
            return _ended(message_id, "absent")
        row = SentMessage(*rows[0])
        if self._has_ended(row):
            return _ended(message_id, row.state)
        decided = self._db.read(DECIDED, (row.recipient, _key(message_id)))
        found = _read_decision(message_id, row.state, decided)
        return None if found.outcome == "asked" else found

    def _has_ended(self, row: SentMessage) -> bool:
        return (
            bool(row.in_pool)
            or row.state in ENDED
            or (row.state == "acked" and self._settings.ack != "stored")
        )

    def _notify(self, tx: StoreTransaction) -> None:
        notifier = self._db.notifier
        tx.after_commit(lambda: notifier.notify("in"))
        tx.after_commit(lambda: notifier.notify("out"))


def _refuse_own(message_id: str) -> None:
    """Raise InvalidArgument if the message's own handler is calling."""
    leased = getattr(CONTEXT.get(), "_leased", None)
    if leased is not None and leased.id == message_id:
        raise InvalidArgument(YOURSELF)


def _ended(message_id: str, state: str) -> Cancellation:
    """Return the outcome for a message that is in this state for good."""
    return Cancellation(message_id, "cancelled" if state == "cancelled" else "too_late", state)


def _key(message_id: str) -> str:
    return f"{CANCEL}:{message_id}"


def _read_decision(
    message_id: str, state: str, rows: Sequence[tuple[str, str | None]]
) -> Cancellation:
    """Return the recipient's answer, from the request that waits for it."""
    reason = rows[0][1] or "" if rows else ""
    decision = reason.removeprefix(f"{UNANSWERED}: ")
    if decision == "cancelled":
        return _ended(message_id, "cancelled")
    if decision.startswith(TOO_LATE):
        return Cancellation(message_id, "too_late", decision.removeprefix(f"{TOO_LATE}: "))
    return Cancellation(message_id, "asked", state)
