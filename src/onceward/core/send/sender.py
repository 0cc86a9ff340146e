"""
From the arguments of a send to rows in the outbox.

A message is checked and serialised once, before any lock is taken (compose);
the finished value is then stored in a transaction (add).
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from hashlib import sha256
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, cast

from onceward.core.home.cache import DirectoryCache
from onceward.core.requests import stored as requests
from onceward.core.requests.stored import Asker
from onceward.core.send import bodies, limits, outbox
from onceward.core.send.admission import AdmissionControl
from onceward.core.send.bodies import split_digest
from onceward.core.send.fanout import Fanout, SendResult
from onceward.core.send.limits import DropCandidate, DropNew, Hold
from onceward.core.send.outbox import OutgoingMessage
from onceward.errors import InvalidMessage, Paused, TooLarge, UnknownRecipient, refuse
from onceward.file.connection import ConstraintError
from onceward.file.database import Database
from onceward.file.environment import SWITCH, disabled_by_environment
from onceward.file.transaction import StoreTransaction
from onceward.hooks import Hooks, SendFacts
from onceward.message.body import BYTES, TEXT, Payload, encode
from onceward.message.clock import Millis
from onceward.message.events import Enqueued
from onceward.message.frame import (
    EPHEMERAL,
    INT32,
    RESERVED_ATTRIBUTES,
    FrameHeaders,
    check_extension,
    digest,
    frame_prefix,
    json_string,
    render_frame,
    render_head,
    split_prefix,
)
from onceward.message.ids import IdSource
from onceward.message.names import agent_name, plain_text, rank
from onceward.message.quoting import quoted
from onceward.message.send_options import (
    PLAIN,
    MessageOptions,
    PublishOptions,
    parse_options,
)
from onceward.message.settings import Settings
from onceward.message.ticket import Ticket
from onceward.message.times import Span, millis, point
from onceward.message.topics import TopicPolicies, check_topic

if TYPE_CHECKING:
    from onceward.observed import ObservedSend

ID: Final = re.compile(r"[A-Za-z0-9._:-]{1,128}")
TEMPLATES_MAX: Final = 4096
"""Most templates of one generation; two are kept."""
MESSAGE_ID: Final = attrgetter("id")
PLACEHOLDER: Final = "placeholder"
"""Placeholder recipient for the headers that all copies of a message share."""


class Sender:
    """Composes messages and adds them to the outbox of one file."""

    def __init__(
        self,
        db: Database,
        *,
        directory: DirectoryCache,
        settings: Settings,
        ids: IdSource,
        hooks: Hooks,
        known: Callable[[str], bool],
    ) -> None:
        self._db, self._settings, self._hooks, self._known = db, settings, hooks, known
        self.directory = directory
        """The agents and subscriptions of the home."""
        self.mint = ids
        """Mints one new id at each call."""
        self._cut = min(settings.body_threshold, settings.max_body)
        self.topics = TopicPolicies(settings.topics, settings.session_topics)
        self.audited: Callable[[Sequence[OutgoingMessage], Millis], None] | None = None
        """Called after the commit with what was stored, where an audit is kept."""
        self._notify_due = partial(db.notifier.notify, "out")
        self._good: set[str] = set()
        self.admission = AdmissionControl(db, hooks)
        """Decides by the limits of the file what becomes of a message."""
        self._templates: dict[tuple[str, str, str, str], tuple[FrameHeaders, str]] = {}
        self._older_templates = self._templates
        """Those that were made before the last ``TEMPLATES_MAX``; the ones in use move over."""

    @property
    def db(self) -> Database:
        """The file whose outbox this is."""
        return self._db

    # -- composing: no lock is taken, nothing is written ----------------------------------------

    def compose(
        self, session: str, to: str, body: object, options: MessageOptions = PLAIN
    ) -> OutgoingMessage:
        """Check, mint and serialise a message; nothing is written, any SendError may be raised."""
        if self._hooks.observers:
            return self._compose_observed(session, [(to, body)], options)[0]
        return self._compose(session, to, body, options, self._start())

    def check(self, session: str, to: str, body: object, options: MessageOptions) -> None:
        """Raise what ``compose`` would raise; nothing is sent, so no observer sees it."""
        self._compose(session, to, body, options, self._start())

    def compose_many(
        self,
        session: str,
        messages: Iterable[tuple[str, object]],
        options: MessageOptions = PLAIN,
    ) -> list[OutgoingMessage]:
        """Check, mint and serialise many messages of one moment; see ``compose``."""
        if self._hooks.observers:
            return self._compose_observed(session, list(messages), options)
        now = self._start()
        return [self._compose(session, to, body, options, now) for to, body in messages]

    def _compose_observed(
        self, session: str, messages: Sequence[tuple[str, object]], options: MessageOptions
    ) -> list[OutgoingMessage]:
        """Compose the messages of one send, which observers see."""
        send = self._observe(session, [to for to, _ in messages], options)
        with send.composing():
            now, named = self._start(), _with_headers(options, send)
            composed = [
                self._compose(session, to, body, named, now)._replace(sending=send)
                for to, body in messages
            ]
        send.composed(composed)
        return composed

    def _observe(
        self, session: str, recipients: Sequence[str], options: MessageOptions
    ) -> ObservedSend:
        from onceward.observed import ObservedSend  # noqa: PLC0415 - rarely needed

        facts = SendFacts(
            agent=self._db.agent,
            session=session,
            recipients=recipients,
            topic=options.get("topic"),
            channel=options.get("channel"),
            headers=options.get("headers") or {},
        )
        return ObservedSend(self._hooks.observers, facts)

    def _start(self) -> Millis:
        """Return the moment of a send; raises Paused where the environment forbids it."""
        if SWITCH in os.environ and disabled_by_environment():
            msg = "ONCEWARD_DISABLED is set: unset it to send again; nothing was written"
            raise Paused(msg)
        return self._db.time.now(self._db.clock)

    def _compose(
        self, session: str, to: str, body: object, options: MessageOptions, now: Millis
    ) -> OutgoingMessage:
        media, text, declared = payload = encode(body)
        beside = len(text) * 4 > self._cut and self._is_long(body, payload)
        kind = options.get("type") if options else None
        kind = declared if kind is None else kind
        template = None if options else self._templates.get((session, to, kind, media))
        headers, prefix = template or self._template(
            session, to, kind, media, options=options, now=now
        )
        chosen = options.get("message_id")
        message_id = self.mint() if chosen is None else _message_id(chosen)
        frame = (
            render_head(prefix, message_id, now)
            if beside
            else render_frame(prefix, message_id, now, text)
        )
        return OutgoingMessage(
            message_id,
            headers.recipient,
            headers.session,
            headers.ordering_key or session,
            headers.type,
            headers.topic,
            headers.rank,
            _due(options, now) if options else None,
            None,
            headers.expires_at,
            headers.key,
            frame,
            split_digest(frame, digest(text)) if beside else digest(frame),
            now,
            headers.channel,
            headers.kind,
            headers.correlation_id,
            headers.in_reply_to,
            None,
            text if beside else None,
            headers.chosen_id,
        )

    def _is_long(self, body: object, payload: Payload) -> bool:
        """Return whether a body is stored beside its message; raises TooLarge beyond max_body."""
        return self._check_size(body, payload) > self._settings.body_threshold

    def _check_size(self, body: object, payload: Payload) -> int:
        """Return the size of a body in bytes; raises TooLarge beyond max_body."""
        size, limit = size_of(body, payload), self._settings.max_body
        if size > limit:
            msg = (
                f"body of {size} bytes exceeds max_body {limit}: "
                "send a reference, or raise the limit on both sides"
            )
            raise TooLarge(msg)
        return size

    def _template(
        self, session: str, to: str, kind: str, media: str, *, options: MessageOptions, now: Millis
    ) -> tuple[FrameHeaders, str]:
        """Return the headers and the frame prefix that all plain messages of one type share."""
        key = session, to, kind, media
        template = None if options else self._older_templates.get(key)
        if template is None:
            self._check_recipient(to)
            headers = self._headers(session, to, kind, media, options=options, now=now)
            template = headers, frame_prefix(headers)
        if not options:
            if len(self._templates) >= TEMPLATES_MAX:
                self._older_templates, self._templates = self._templates, {}
            self._templates[key] = template
        return template

    def allow_recipient(self, name: str) -> None:
        """Accept messages to *name* without a known address: it wrote to us, and will be found."""
        self._good.add(agent_name(name))

    def _check_recipient(self, to: str) -> None:
        if isinstance(to, str) and to in self._good:
            return
        agent_name(to)
        if not (self._settings.hold_unknown or self._known(to)):
            msg = (
                f"no agent is called {to!r}: create {to}.db beside this file, tell where it is "
                "(onceward peers add), or open this one with hold_unknown=True"
            )
            raise UnknownRecipient(msg)
        self._good.add(to)

    def _headers(
        self, session: str, to: str, kind: str, media: str, *, options: MessageOptions, now: Millis
    ) -> FrameHeaders:
        """Return everything of a message but its id, time and body, checked."""
        topic, reply_to = options.get("topic"), options.get("reply_to")
        return FrameHeaders(
            sender=self._db.agent,
            recipient=to,
            type=plain_text("type", kind),
            media=media,
            session=plain_text("session", session),
            topic=None
            if topic is None
            else self.topics.of(session).checked(topic, system=options.get("system", False)),
            rank=rank(options.get("priority", "normal")),
            ordering_key=_text("ordering_key", options.get("ordering_key")),
            correlation_id=_text("correlation_id", options.get("correlation_id")),
            causation_id=_text("causation_id", options.get("causation_id")),
            in_reply_to=_text("in_reply_to", options.get("in_reply_to")),
            reply_to=None if reply_to is None else agent_name(reply_to),
            expires_at=_expiry(options, now),
            answer_by=options.get("answer_by"),
            key=_text("key", options.get("key")),
            channel=_text("channel", options.get("channel")),
            kind=_text("kind", options.get("kind")),
            mailbox=_text("mailbox", options.get("mailbox")),
            mailbox_key=_text("mailbox_key", options.get("mailbox_key")),
            hops=_hops(options.get("hops", 0)),
            chosen_id=options.get("message_id") is not None,
            headers=_extensions(options),
        )

    # -- composing for many -----------------------------------------------------------------------

    def to_everyone(self, session: str, body: object, options: MessageOptions) -> Fanout:
        """Compose a message to every other agent of the home; raises UnknownRecipient for none."""
        others = self.directory.other_agents()
        if not others:
            msg = (
                "a message to all reaches every registered agent of the home, and there is no"
                " other: opening a file under its agent's name registers it"
            )
            raise UnknownRecipient(msg)
        return self.compose_fanout(session, others, body, options)

    def to_subscribers(
        self, session: str, topic: str, body: object, options: PublishOptions
    ) -> Fanout:
        """Compose a message to every agent that subscribed to *topic*, each once."""
        named = parse_options(options) | MessageOptions(topic=topic)
        return self.compose_fanout(session, self.subscribers(topic), body, named, rooted=False)

    def subscribers(self, topic: str) -> list[str]:
        """Return the agents that subscribed to *topic*, each once."""
        return self.directory.subscribers(check_topic(topic))

    def compose_fanout(
        self,
        session: str,
        recipients: Sequence[str],
        body: object,
        options: MessageOptions,
        *,
        rooted: bool = True,
        limit: int | None = None,
    ) -> Fanout:
        """
        Check and serialise a message once and mint an id for each recipient; writes nothing.

        *rooted* gives it a correlation id where it has none, so that its copies
        can be found by what they share; *limit* is the largest content in bytes.

        Raises:
            ValidationFailed, InvalidMessage, TooLarge, Paused: nothing was written.

        """
        compose = partial(self._compose_fanout, session, recipients, body)
        if not self._hooks.observers:
            return compose(options, rooted=rooted, limit=limit)
        send = self._observe(session, recipients, options)
        with send.composing():
            fanout = compose(_with_headers(options, send), rooted=rooted, limit=limit)
        copies = tuple(each._replace(sending=send) for each in fanout.messages)
        send.composed(copies)
        return fanout._replace(messages=copies)

    def _compose_fanout(
        self,
        session: str,
        recipients: Sequence[str],
        body: object,
        options: MessageOptions,
        *,
        rooted: bool,
        limit: int | None,
    ) -> Fanout:
        if options.get("message_id") is not None:
            msg = "a message to many has an id for each recipient: use a key, not message_id"
            raise InvalidMessage(msg)
        now = self._start()
        payload = encode(body)
        if limit is not None and (size := size_of(body, payload)) > limit:
            refuse("content", f"{size} bytes exceed max_message_size {limit}", size)
        size = self._check_size(body, payload)
        root = options.get("correlation_id") or self._root(session, options)
        if rooted:
            options = {**options, "correlation_id": root}
        kind = options.get("type") or payload.type
        headers = self._headers(session, PLACEHOLDER, kind, payload.media, options=options, now=now)
        copies = self._copies(headers, recipients, payload.text, _due(options, now), now)
        return Fanout(root, payload.text, size, headers, copies, now)

    def _root(self, session: str, options: MessageOptions) -> str:
        """Return the id that copies share; the same key gives the same id."""
        key = options.get("key")
        if key is None:
            return self.mint()
        named = (session, options.get("channel") or "", options.get("topic") or "", key)
        return sha256("\0".join(named).encode()).hexdigest()[:32]

    def _copies(
        self,
        headers: FrameHeaders,
        recipients: Sequence[str],
        body: str,
        due_at: Millis | None,
        now: Millis,
    ) -> tuple[OutgoingMessage, ...]:
        before, after = split_prefix(headers)
        body_digest, mint, made = digest(body), self.mint, []
        for recipient in recipients:
            message_id = mint()
            head = render_head(f"{before}{json_string(recipient)}{after}", message_id, now)
            made.append(
                OutgoingMessage(
                    id=message_id,
                    recipient=recipient,
                    session=headers.session,
                    lane=headers.ordering_key or headers.session,
                    type=headers.type,
                    topic=headers.topic,
                    rank=headers.rank,
                    due_at=due_at,
                    held_by=None,
                    expires_at=headers.expires_at,
                    key=headers.key,
                    frame=head,
                    digest=split_digest(head, body_digest),
                    created_at=now,
                    channel=headers.channel,
                    kind=headers.kind,
                    correlation_id=headers.correlation_id,
                    in_reply_to=headers.in_reply_to,
                    body=body,
                )
            )
        return tuple(made)

    # -- adding: in the caller's transaction ------------------------------------------------------

    def add(self, tx: StoreTransaction, message: OutgoingMessage) -> str:
        """
        Store a message in the caller's transaction; return its id, new or known.

        Raises:
            Conflict: the id or key stands for another message.
            QueueFull, StoreFull, RateLimited, StoreCapacity, Paused: nothing was written.

        """
        try:
            if message.caller_chose_id:
                outbox.refuse_dead(tx, message)
            if self._unlimited(tx):
                try:
                    message_id = outbox.add(tx, message)
                except ConstraintError as error:
                    if not self.admission.is_limit_error(error):
                        raise
                else:
                    if message_id == message.id:
                        self._announce(tx, (message,))
                    elif message.sending is not None:
                        message.sending.known()
                    return message_id
            with tx.nested():
                return self._add_within_limits(tx, message)
        except Exception as error:
            if message.sending is not None:
                message.sending.failed(self.translate_error(error))
            raise

    def _unlimited(self, tx: StoreTransaction) -> bool:
        """Return whether the file has no limits; a reader's connection is not opened for it."""
        known = self.admission.unlimited
        return self.admission.reload(tx.rows) if known is None else known

    def _add_within_limits(self, tx: StoreTransaction, message: OutgoingMessage) -> str:
        """Store, hold or drop a message as the limits of the file decide; return its id."""
        if outbox.is_known(tx, message):
            message_id = self._store(tx, message)  # sent before: it is there, or it conflicts
            if message.sending is not None:
                message.sending.known()
            return message_id
        match decision := self.admission.admit(tx, message):
            case DropNew(limit):
                limits.drop(tx, message, limit)
                limits.tell_callers(tx, [message.id])
                return message.id
            case Hold(limit, evicted):
                message_id = self._store(tx, message._replace(held_by=limit.held))
            case _:
                message_id, evicted = self._store(tx, message), decision.evicted
        limits.tell_callers(tx, [each.id for each in evicted])
        self._summarize(tx, evicted)
        return message_id

    def _store(self, tx: StoreTransaction, message: OutgoingMessage) -> str:
        message_id = outbox.add(tx, message)
        if message_id == message.id:
            self._announce(tx, (message,))
        return message_id

    def _summarize(self, tx: StoreTransaction, evicted: Sequence[DropCandidate]) -> None:
        """Tell each session of the messages that a limit with ``summarize`` has dropped."""
        told = [(v.recipient, v.session) for v in evicted if v.full.overflow == "summarize"]
        for recipient, session in dict.fromkeys(told):
            drops, lines, replaced = limits.unsummarized_drops(tx, recipient, session)
            body = {"dropped": len(drops), "lines": lines}
            options = MessageOptions(type=limits.SUMMARY, priority="urgent")
            summary = self._compose(session, recipient, body, options, tx.now)
            limits.mark_summarized(tx, outbox.add(tx, summary), drops, replaced)

    def commit(self, session: str, to: str, body: object, options: MessageOptions = PLAIN) -> str:
        """Commit one message, in this thread's open transaction if it has one; return its id."""
        message = self.compose(session, to, body, options)
        return self._db.write(partial(self.add, message=message))

    def add_many(self, tx: StoreTransaction, messages: Sequence[OutgoingMessage]) -> list[str]:
        """Store many messages in the caller's transaction, in their order; return their ids."""
        if self._unlimited(tx) and not outbox.any_may_be_known(messages):
            stored = [
                each if each.body is None else outbox.with_body(tx, each) for each in messages
            ]
            if self._insert(tx, stored):
                return [each.id for each in messages]
            beside = [(each.body_id,) for each in stored if each.body_id is not None]
            tx.many(bodies.RELEASE_UNUSED, beside)
        return [self.add(tx, each) for each in messages]

    def add_sharing(
        self, tx: StoreTransaction, messages: Sequence[OutgoingMessage], body_id: int
    ) -> list[str]:
        """Store messages that share a stored body; return their ids, new or known."""
        shared = [each._replace(body_id=body_id) for each in messages]
        plain = self._unlimited(tx) and not outbox.any_may_be_known(shared)
        if plain and self._insert(tx, shared):
            return [each.id for each in shared]
        return [self.add(tx, each) for each in shared]

    def _insert(self, tx: StoreTransaction, messages: Sequence[OutgoingMessage]) -> bool:
        """Insert many rows at once; False where the file has limits by now, which must decide."""
        try:
            tx.insert(outbox.INSERT, list(map(outbox.ROW, messages)))
        except ConstraintError as error:
            if self.admission.is_limit_error(error):
                return False
            raise self._db.translate_error(error) from error
        self._announce(tx, messages)
        return True

    def _announce(self, tx: StoreTransaction, messages: Sequence[OutgoingMessage]) -> None:
        """Wake the dispatcher and tell hooks and audit of stored messages after the commit."""
        tx.message_ids += map(MESSAGE_ID, messages)
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
            agent, at = self._db.agent, tx.now
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

    def add_fanout(
        self, tx: StoreTransaction, fanout: Fanout, body_id: int | None = None
    ) -> SendResult:
        """
        Store all copies of a message, whose body may be stored already, or none of them.

        With a key, a recipient that was sent it before is not sent it again.
        """
        if not fanout.messages:
            return fanout.result
        try:
            with tx.nested():
                kept = bodies.insert_body(tx, fanout.body) if body_id is None else body_id
                ids = self.add_sharing(tx, fanout.messages, kept)
                if body_id is None:
                    tx.run(bodies.RELEASE_UNUSED, (kept,))
        except Exception as error:
            raise self.translate_error(error) from error
        copies = zip((each.recipient for each in fanout.messages), ids, strict=True)
        return SendResult(fanout.id, tuple(copies))

    def add_request(
        self,
        tx: StoreTransaction,
        message: OutgoingMessage,
        timeout: Span | None,
        asker: Asker | None = None,
    ) -> Ticket:
        """Store a request and the ticket that waits for its reply."""
        message_id = self.add(tx, message)
        if message_id == message.id:
            deadline_at = None if timeout is None else tx.now + _millis("timeout", timeout)
            requests.open_ticket(
                tx,
                message_id=message_id,
                session=message.session,
                recipient=message.recipient,
                deadline_at=deadline_at,
                asker=asker,
            )
            if not self.admission.unlimited:
                requests.end_dropped(tx, message_id)
        return Ticket(message_id, message.recipient)

    def translate_error(self, error: BaseException) -> BaseException:
        """Return what a foreign error means for the caller."""
        return self._db.translate_error(error)


def size_of(body: object, payload: Payload) -> int:
    """Return the size of a body in bytes: raw for bytes, UTF-8 for text, its JSON otherwise."""
    if payload.media == BYTES:
        return len(bytes(body))  # type: ignore[call-overload]  # encode took it for bytes
    if payload.media == TEXT:
        return len(str(body).encode())
    return len(payload.text.encode())


def _due(options: MessageOptions, now: Millis) -> Millis | None:
    """Return when a message may leave; None is at once."""
    delay, at = options.get("delay"), options.get("at")
    if at is not None:
        if delay is not None:
            msg = "at and delay both say when the message may leave: give one of them"
            raise InvalidMessage(msg)
        due_at = point("at", at, error=InvalidMessage)
        return due_at if due_at > now else None
    wait = 0 if delay is None else _millis("delay", delay)
    return now + wait if wait else None


def _millis(field: str, span: Span) -> Millis:
    return millis(field, span, error=InvalidMessage)


def _expiry(options: MessageOptions, now: Millis) -> Millis | None:
    """Return when a message expires: after its time to live, or earlier with its mailbox."""
    ttl, ends_at = options.get("ttl"), options.get("ends_at")
    expires_at = None if ttl is None else now + _millis("ttl", ttl)
    if ends_at is None or expires_at is None:
        return ends_at if expires_at is None else expires_at
    return min(expires_at, ends_at)


def _text(field: str, value: str | None) -> str | None:
    return None if value is None else plain_text(field, value)


def _message_id(value: str) -> str:
    if not isinstance(value, str) or ID.fullmatch(value) is None:
        msg = f"message id {quoted(value)} must match {ID.pattern}"
        raise InvalidMessage(msg)
    return value


def _hops(hops: object) -> int:
    if isinstance(hops, bool) or not isinstance(hops, int) or not 0 <= hops < INT32:
        msg = f"hops {quoted(hops)} must be a number of messages"
        raise InvalidMessage(msg)
    return hops


def _with_headers(options: MessageOptions, send: ObservedSend) -> MessageOptions:
    """Return *options* with the extension attributes of observers; those of the caller stay."""
    if not send.headers:
        return options
    return {**options, "headers": {**send.headers, **(options.get("headers") or {})}}


def _extensions(options: MessageOptions) -> dict[str, Any] | None:
    """Return the extension attributes of a message, checked; None where it has none."""
    ephemeral = {EPHEMERAL: True} if options.get("ephemeral") else {}
    headers: dict[str, Any] = {**(options.get("headers") or {}), **ephemeral}
    for name, value in headers.items():
        if name in RESERVED_ATTRIBUTES:
            msg = f"header {name!r} is an attribute of the frame: use the argument of send"
            raise InvalidMessage(msg)
        check_extension(name, value)
    return headers or None
