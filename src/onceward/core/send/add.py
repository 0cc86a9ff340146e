"""
Keep the outbox: add messages in the caller's transaction, each once; read and settle them.

A separately stored body exists once, for all messages that share it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, Final, NamedTuple, cast

from onceward.core.end import sent
from onceward.core.end.sent import ID
from onceward.core.rows import outbox, tickets
from onceward.core.rows.outbox import OutgoingMessage
from onceward.core.send import limits
from onceward.core.send.compose import Composer
from onceward.core.send.limits import AdmissionControl, DropCandidate, DropNew, Hold
from onceward.errors import Conflict, InvalidMessage
from onceward.file.connection import ConstraintError, raise_meant, schema_damage
from onceward.file.database import Database
from onceward.file.transaction import StoreTransaction, bump
from onceward.hooks import Hooks
from onceward.message.clock import Millis
from onceward.message.events import Enqueued
from onceward.message.frame import Frame
from onceward.message.ids import KEYED
from onceward.message.names import quoted
from onceward.message.options import PLAIN, MessageOptions
from onceward.message.record import Ticket
from onceward.message.times import Span, millis
from onceward.message.vocabulary import reason_text

if TYPE_CHECKING:
    from onceward.core.send.fanout import Fanout, SendResult
    from onceward.observed import ObservedSend

CHOSEN: Final = attrgetter("headers.chosen_id")
KEY: Final = attrgetter("headers.key")
COMPARED: Final = {
    "address": "recipient",
    "type": "type",
    "session": "session",
    "topic": "topic",
    "priority": "priority",
    "partitionkey": "ordering_key",
    "inreplyto": "in_reply_to",
    "replyto": "reply_to",
    "idempotencykey": "key",
    "channel": "channel",
    "kind": "kind",
    "mailbox": "mailbox",
    "own_headers": "headers",
}
"""Attributes of a frame that the recipient acts on, and the options that set them."""


class Asker(NamedTuple):
    """The handler that made a request: the request's index, and a digest of its contents."""

    seq: int
    number: int
    digest: bytes
    kept: bool = False
    """Whether the request stays if the handler's message is cancelled."""


NO_ASKER: Final = (None, None, None, 0)
"""The asker of a request that no handler made."""


class _IdTaken(Exception):
    """
    The file has sent a message under the id that a handler's message gets each time.

    A restored file has not, or has found it again. So the handler was called again on purpose, such
    as by a replay.
    """


class Outbox:
    """The outbox of one file: composes messages, and adds them in a transaction."""

    def __init__(self, db: Database, composer: Composer, hooks: Hooks) -> None:
        self.db = db
        """The file whose outbox this is."""
        self.composer = composer
        """Composes the messages to add."""
        self.compose = composer.compose
        """Checks and serialises one message."""
        self.admission = AdmissionControl(db, hooks)
        """Applies the limits of the file to a message."""
        self.audited: Callable[[Sequence[OutgoingMessage], Millis], None] | None = None
        """Called after the commit with the stored messages, for the audit."""
        self._hooks = hooks
        self._notify_due = partial(db.notifier.notify, "out")

    def add(self, tx: StoreTransaction, message: OutgoingMessage) -> str:
        """
        Store a message in the caller's transaction; return its id, new or known.

        A handler's message gets a new id if the file has used its id.

        Raises:
            Conflict: the id or key belongs to another message.
            OutboxLimit, FileLimit, RateLimited, Paused: nothing was written.

        """
        try:
            of = message.headers
            if of.key is not None or of.chosen_id:
                _refuse_dead(tx, message)
            if self.admission.unlimited or self._unlimited(tx):
                try:
                    known = _store(tx, message)
                except ConstraintError as error:
                    if not self.admission.is_limit_error(error):
                        raise
                else:
                    if known is None:
                        self._announce(tx, (message,))
                        return message.id
                    if message.sending is not None:
                        message.sending.known()
                    return known
            with tx.nested():
                return self._add_within_limits(tx, message)
        except Exception as error:
            if isinstance(error, _IdTaken):
                replaced = sent.forget_found(tx, str(error))
                return self.add(tx, message if replaced else self.composer.renamed(message))
            self._tell_failed(message, error)
            raise

    def _tell_failed(self, message: OutgoingMessage, error: Exception) -> None:
        """Tell observers that a message was not stored."""
        if message.sending is not None:
            message.sending.failed(self.db.translate_error(error))

    def add_own(self, tx: StoreTransaction, message: OutgoingMessage) -> str:
        """
        Store a message to the agent itself, in outbox and inbox if it may be there at once.

        After an error the transaction or savepoint must be undone.
        """
        if tx.own is None or not self._unlimited(tx) or not tx.own.store(tx, message):
            return self.add(tx, message)
        self._announce(tx, (message,))
        del tx.outgoing[message.recipient]  # nothing is left to be moved
        tx.own.tell_stored(tx, message.id)
        return message.id

    def _unlimited(self, tx: StoreTransaction) -> bool:
        """Return whether the file has no limits, without opening a reader's connection."""
        known = self.admission.unlimited
        return self.admission.reload(tx.rows) if known is None else known

    def _add_within_limits(self, tx: StoreTransaction, message: OutgoingMessage) -> str:
        """Store, hold or drop a message as the limits of the file decide; return its id."""
        if _is_known(tx, message):
            message_id = self._announced(tx, message)  # sent before: it is stored, or it conflicts
            if message.sending is not None:
                message.sending.known()
            return message_id
        match decision := self.admission.admit(tx, message):
            case DropNew(limit):
                _store_dropped(tx, message, reason_text("drop_new", limit.reached))
                limits.record_drop(tx, message, limit)
                limits.tell_callers(tx, [message.id])
                return message.id
            case Hold(limit, evicted):
                message_id = self._announced(tx, message._replace(held_by=limit.held))
            case _:
                message_id, evicted = self._announced(tx, message), decision.evicted
        limits.tell_callers(tx, [each.id for each in evicted])
        self._summarize(tx, evicted)
        return message_id

    def _announced(self, tx: StoreTransaction, message: OutgoingMessage) -> str:
        """Store a message and announce it if it is new; return its id, or that of the first one."""
        known = _store(tx, message)
        if known is None:
            self._announce(tx, (message,))
        return known or message.id

    def _summarize(self, tx: StoreTransaction, evicted: Sequence[DropCandidate]) -> None:
        """Send each session a summary of the messages that a limit with ``summarize`` dropped."""
        told = [(v.recipient, v.session) for v in evicted if v.full.overflow == "summarize"]
        for recipient, session in dict.fromkeys(told):
            drops, lines, replaced = limits.unsummarized_drops(tx, recipient, session)
            body = {"dropped": len(drops), "lines": lines}
            options = MessageOptions(type=limits.SUMMARY, priority="urgent")
            summary = self.composer.compose_at(session, recipient, body, options, tx.now)
            limits.mark_summarized(tx, _store(tx, summary) or summary.id, drops, replaced)

    def commit(self, session: str, to: str, body: object, options: MessageOptions = PLAIN) -> str:
        """Commit one message, in this thread's open transaction if it has one; return its id."""
        message = self.compose(session, to, body, options)
        add = self.add_own if to == self.db.agent else self.add
        return self.db.write(partial(add, message=message))

    def add_many(self, tx: StoreTransaction, messages: Sequence[OutgoingMessage]) -> list[str]:
        """Store many messages in the caller's transaction, in order; return their ids."""
        if self._unlimited(tx) and not _any_may_be_known(messages):
            stored = [each if each.body is None else _with_body(tx, each) for each in messages]
            if self._insert(tx, stored):
                return [each.id for each in messages]
            beside = [each.body_id for each in stored if each.body_id is not None]
            outbox.release_unused_bodies(tx, beside)
        return [self.add(tx, each) for each in messages]

    def add_sharing(
        self, tx: StoreTransaction, messages: Sequence[OutgoingMessage], body_id: int | None
    ) -> list[str]:
        """Store messages that share a stored body; return their ids, new or known."""
        shared = [
            each if each.body is None else each._replace(body_id=body_id) for each in messages
        ]
        plain = self._unlimited(tx) and not _any_may_be_known(shared)
        if plain and self._insert(tx, shared):
            return [each.id for each in shared]
        return [self.add(tx, each) for each in shared]

    def _insert(self, tx: StoreTransaction, messages: Sequence[OutgoingMessage]) -> bool:
        """Insert many rows at once; return False if each must be added alone, as under limits."""
        repeatable = any(each.repeatable for each in messages[:1])
        try:
            with tx.nested() if repeatable else nullcontext():
                outbox.insert_all(tx, messages)
        except ConstraintError as error:
            if repeatable or self.admission.is_limit_error(error):
                return False
            raise_meant(self.db.translate_error(error), error)
            raise
        self._announce(tx, messages)
        return True

    def _announce(self, tx: StoreTransaction, messages: Sequence[OutgoingMessage]) -> None:
        """Wake the dispatcher and report stored messages to hooks and audit after the commit."""
        tx.message_ids += map(ID, messages)
        for each in messages:
            if each.due_at is None:
                tx.outgoing[each.recipient] = None
            else:
                tx.wakeups[self._notify_due] = None
        if self.audited is not None:
            tx.after_commit(partial(self.audited, messages, tx.now))
        if self._hooks.observers:
            for sending in {each.sending for each in messages} - {None}:
                tx.after_commit(cast("ObservedSend", sending).committed)
        if self._hooks._hooks and self._hooks.wanted(Enqueued):
            agent, at = self.db.agent, tx.now
            events = [
                Enqueued(
                    agent=agent,
                    at=at,
                    message_id=each.id,
                    peer=each.recipient,
                    session=each.session,
                    type=each.type,
                )
                for each in messages
            ]
            tx.after_commit(partial(self._hooks.emit, events))

    def known_id(self, message: OutgoingMessage) -> str | None:
        """
        Return the id of the same message stored before; None if there is none.

        Raises:
            Conflict: another message has its id or key.

        """
        return self.db.snapshot(
            lambda tx: _duplicate(tx, message) if _is_known(tx, message) else None
        )

    def add_fanout(
        self, tx: StoreTransaction, fanout: Fanout, body_id: int | None = None
    ) -> SendResult:
        """
        Store all copies of a message or none; its body may already be stored.

        With a key, a recipient that already got it is skipped.
        """
        if not fanout.messages:
            return fanout.result
        try:
            with tx.nested():
                new = body_id is None and any(each.body is not None for each in fanout.messages)
                kept = outbox.insert_body(tx, fanout.body) if new else body_id
                ids = self.add_sharing(tx, fanout.messages, kept)
                if new:
                    outbox.release_unused_bodies(tx, [cast("int", kept)])
        except Exception as error:
            raise_meant(self.db.translate_error(error), error)
            raise
        return fanout.stored(ids)


def _store(tx: StoreTransaction, message: OutgoingMessage) -> str | None:
    """
    Store a message; return the id of the same message if one was stored before.

    A separate body is also stored, unless ``body_id`` names a stored one.

    Raises:
        Conflict: the id or key belongs to another message.
        OutboxLimit, Paused: from the admission trigger; nothing was written.

    """
    beside = message.body is not None and message.body_id is None
    stored = _with_body(tx, message) if beside else message
    may_be_known = stored.headers.chosen_id or stored.headers.key is not None
    if tx.batching and stored.body_id is None and not may_be_known:
        outbox.gather(tx, stored)
        return None
    try:
        outbox.insert(tx, stored)
    except ConstraintError as error:
        if beside:
            outbox.release_body(tx, cast("int", stored.body_id))
        if "UNIQUE" not in str(error):
            raise schema_damage(error) from error.__cause__
        if message.repeatable or message.headers.reply_to or message.headers.kind:
            _refuse_found(tx, message)
        known = _duplicate(tx, message)
        # A write that is repeated, because its commit may have happened, meets its own message.
        return None if tx.may_be_durable and known == message.id else known
    return None


def _refuse_found(tx: StoreTransaction, message: OutgoingMessage) -> None:
    """Raise _IdTaken if the message was found again: its wait, or a feature's, begins again."""
    found = outbox.find_found(tx, message.id, message.recipient, message.headers.key)
    if found is not None:
        raise _IdTaken(found)


def add_if_possible(tx: StoreTransaction, message: OutgoingMessage) -> bool:
    """Store one of the library's own messages; return False if it is known or refused."""
    try:
        with tx.nested():
            outbox.insert(tx, message)
    except ConstraintError:
        return False
    tx.outgoing[message.recipient] = None
    return True


def add_found(tx: StoreTransaction, message: OutgoingMessage) -> bool:
    """Store a message that was found again; return False if it is known, or the file is full."""
    try:
        with tx.nested():
            outbox.insert_found(tx, message)
    except ConstraintError:
        return False
    return True


def _store_dropped(tx: StoreTransaction, message: OutgoingMessage, reason: str) -> None:
    """Store a message as dropped: it has an id, a reason and a time, and never leaves."""
    beside = message.body is not None and message.body_id is None
    stored = _with_body(tx, message) if beside else message
    gone = stored._replace(due_at=None, held_by=None)
    outbox.insert_dropped(tx, gone, reason)


def _with_body(tx: StoreTransaction, message: OutgoingMessage) -> OutgoingMessage:
    """Store the separate body of a message; return the message with its number."""
    return message._replace(body_id=outbox.insert_body(tx, cast("str", message.body)))


def _any_may_be_known(messages: Sequence[OutgoingMessage]) -> bool:
    """Return whether the caller chose the id or a key of one of *messages*."""
    return any(map(CHOSEN, messages)) or any(map(KEY, messages))


def _is_known(tx: StoreTransaction, message: OutgoingMessage) -> bool:
    """Return whether a message of this id or key was stored before."""
    return bool(outbox.of_id_or_key(tx, message.id, message.recipient, message.headers.key))


def _duplicate(tx: StoreTransaction, message: OutgoingMessage) -> str:
    """Return the id of the same message stored before; raise Conflict if it is another one."""
    known = outbox.of_id_or_key(tx, message.id, message.recipient, message.headers.key)
    if len(known) > 1:
        two = sorted((str(row[0]) for row in known), key=lambda each: each != message.id)
        msg = f"id {two[0]} and {_key_of(message)} belong to two messages: choose another id or key"
        raise Conflict(
            msg,
            message_id=two[0],
            key=message.headers.key,
            differs=("message_id",),
            reason="sent before",
        )
    [(known_id, frame)] = known
    if message.repeatable and known_id == message.id:
        raise _IdTaken(message.id)
    differs = tuple(_differences(Frame.parse(frame), message))
    if not differs:
        return str(known_id)
    raise _conflict(message, str(known_id), differs)


def _key_of(message: OutgoingMessage) -> str:
    return f"key {quoted(message.headers.key)} to {message.recipient}"


def _is_same_id(message: OutgoingMessage, known_id: str) -> bool:
    """Return whether a message collides with a known one by its id, not by its key."""
    return known_id == message.id and not message.id.startswith(KEYED)


def _conflict(message: OutgoingMessage, known_id: str, differs: tuple[str, ...]) -> Conflict:
    """Return the error that names the id or key of another message."""
    by_id = _is_same_id(message, known_id)
    name = "id" if by_id else "key"
    said = f"id {message.id}" if by_id else _key_of(message)
    msg = (
        f"{said} already belongs to message {known_id} with another {', '.join(differs)}:"
        f" choose another {name}, or send the same message"
    )
    return Conflict(
        msg,
        message_id=known_id,
        key=None if by_id else message.headers.key,
        differs=differs,
        reason="sent before",
    )


def _differences(known: Frame, message: OutgoingMessage) -> Iterator[str]:
    """
    Yield the options in which a message differs from the one with the same id or key.

    Spans, moments and ids of the conversation are not compared.
    """
    sent = Frame.parse(message.text)
    if message.headers.chosen_id and known.id != sent.id:
        yield "message_id"
    if known.content != sent.content:
        yield "body"
    for attribute, option in COMPARED.items():
        if getattr(known, attribute) != getattr(sent, attribute):
            yield option


def _refuse_dead(tx: StoreTransaction, message: OutgoingMessage) -> None:
    """Raise Conflict if the id or key is a dead letter: it is replayed, not sent again."""
    for (dead,) in outbox.dead_of_id_or_key(tx, message.id, message.recipient, message.headers.key):
        by_id = _is_same_id(message, dead)
        what = f"id {dead}" if by_id else _key_of(message)
        name = "id" if by_id else "key"
        msg = f"{what} is dead letter {dead}: replay it, or choose another {name}"
        key = None if by_id else message.headers.key
        raise Conflict(msg, message_id=dead, key=key, reason="dead letter")


def add_sent(tx: StoreTransaction, message: OutgoingMessage) -> None:
    """Store a message that enters the agent's own inbox in the same commit."""
    outbox.insert_sent(tx, message)
    bump(tx, ended_pending=1, sent=1)


def add_request(
    tx: StoreTransaction,
    outbox: Outbox,
    message: OutgoingMessage,
    timeout: Span | None,
    asker: Asker | None = None,
) -> Ticket:
    """Store a request and the ticket that waits for its reply."""
    message_id = outbox.add(tx, message)
    if message_id == message.id or message.repeatable:  # another message's id is that of its key
        wait = None if timeout is None else millis("timeout", timeout, error=InvalidMessage)
        deadline_at = None if wait is None else tx.now + wait
        opened = message_id, message.session, message.recipient, tx.now, deadline_at
        tickets.open_one(tx, *opened, *(asker or NO_ASKER))
        if not outbox.admission.unlimited:
            tickets.end_dropped(tx, message_id)
    return Ticket(message_id, message.recipient)
