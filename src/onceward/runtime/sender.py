"""From what a user says to a row in the outbox: checked and serialised once, before any lock is taken."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

from onceward.db.connection import ConstraintError
from onceward.db.database import Database
from onceward.db.environment import disabled_by_environment
from onceward.db.transaction import BatchedInsert, StoreTransaction
from onceward.errors import InvalidMessage, Paused, TooLarge, UnknownRecipient
from onceward.hooks import Hooks
from onceward.model.body import BYTES, TEXT, Payload, encode
from onceward.model.clock import Millis
from onceward.model.events import Enqueued
from onceward.model.frame import (
    EPHEMERAL,
    RESERVED_ATTRIBUTES,
    FrameHeaders,
    check_extension,
    digest,
    frame_prefix,
    render_frame,
    render_head,
)
from onceward.model.ids import IdSource
from onceward.model.names import agent_name, plain_text, rank
from onceward.model.send_options import PLAIN, ParsedOptions
from onceward.model.settings import Settings
from onceward.model.topics import TopicPolicies
from onceward.runtime.admission import AdmissionControl
from onceward.store import bodies, limits, outbox, requests
from onceward.store.bodies import split_digest

ID: Final = re.compile(r"[A-Za-z0-9._:-]{1,128}")


class OutgoingMessage(NamedTuple):
    """A message that only needs to be written down."""

    id: str
    recipient: str
    session: str
    values: tuple[Any, ...]
    caller_chose_id: bool
    """Whether the caller chose the id or a key, so that it may be known already."""
    body: str | None = None
    """A body that is stored beside its message, whose frame then ends before the data."""


class HeaderTemplate(NamedTuple):
    """What all messages of one kind to one recipient have in common, checked and quoted once."""

    shared: str
    lane: str
    topic: str | None
    rank: int
    expires_at: Millis | None
    given: int | None
    key: str | None
    channel: str | None
    kind: str | None
    correlation_id: str | None


TEMPLATES_MAX: Final = 4096


class Sender:
    """Builds drafts and puts them into the outbox of one file."""

    def __init__(
        self,
        db: Database,
        *,
        settings: Settings,
        ids: IdSource,
        hooks: Hooks,
        known: Callable[[str], bool],
    ) -> None:
        self._db, self._settings, self._ids, self._hooks, self._known = (
            db,
            settings,
            ids,
            hooks,
            known,
        )
        self.mint = ids
        """Mints one new id at each call."""
        self._cut = min(settings.body_threshold, settings.max_body)
        self.topics = TopicPolicies(settings.topics, settings.session_topics)
        self.audited: Callable[[Sequence[OutgoingMessage], Millis], None] | None = (
            None  # told of what was committed, where an audit is kept
        )
        self._notify = partial(db.notifier.notify, "out")
        self._good: set[str] = set()
        self.admission = AdmissionControl(db, hooks, self.summary)
        """What a message passes on its way in, where the file has limits."""
        self._templates: dict[tuple[str, str, str, str], HeaderTemplate] = {}

    @property
    def db(self) -> Database:
        """The file whose outbox this is."""
        return self._db

    def compose(
        self, session: str, to: str, body: object, options: ParsedOptions = PLAIN
    ) -> OutgoingMessage:
        """Check, mint and serialise a message; nothing is written, whatever is raised (every SendError), and no lock is taken."""
        return self._compose(session, to, body, options, self.start())

    def compose_many(
        self, session: str, messages: Iterable[tuple[str, object]], options: ParsedOptions = PLAIN
    ) -> list[OutgoingMessage]:
        """Check, mint and serialise many messages of one moment; see ``draft``."""
        now = self.start()
        return [self._compose(session, to, body, options, now) for to, body in messages]

    def start(self) -> Millis:
        """Return the moment of a send; raises Paused where the environment forbids it."""
        if disabled_by_environment():
            msg = "ONCEWARD_DISABLED is set: unset it to send again; nothing was written"
            raise Paused(msg)
        return self._db.now()

    @staticmethod
    def due(options: ParsedOptions, now: Millis) -> Millis | None:
        """Return when a message may leave; None is at once."""
        return (
            None
            if options.delay is None or options.delay == 0
            else now + _millis("delay", options.delay)
        )

    def _compose(
        self, session: str, to: str, body: object, options: ParsedOptions, now: Millis
    ) -> OutgoingMessage:
        media, body_text, declared = payload = encode(body)
        beside = len(body_text) * 4 > self._cut and self._long(body, payload)
        kind = declared if options.type is None else options.type
        made = self._templates.get((session, to, kind, media)) if options is PLAIN else None
        if made is None:
            made = self._template(session, to, kind, media, options=options, now=now)
        message_id = self._ids() if options.message_id is None else _message_id(options.message_id)
        text = (
            render_head(made.shared, message_id, now)
            if beside
            else render_frame(made.shared, message_id, now, body_text)
        )
        due_at = None if options.delay is None else self.due(options, now)
        values = (
            message_id, to, session, made.lane, kind, made.topic, made.rank, due_at, made.expires_at, made.given, made.key, text,
            split_digest(text, digest(body_text)) if beside else digest(text), now, made.channel, made.kind, made.correlation_id, None,
        )  # fmt: skip
        return OutgoingMessage(
            message_id,
            to,
            session,
            values,
            made.given is not None or made.key is not None,
            body_text if beside else None,
        )

    def _long(self, body: object, payload: Payload) -> bool:
        """Return whether a body is stored beside its message; raises TooLarge where it is not taken at all."""
        return self.check_size(body, payload) > self._settings.body_threshold

    def check_size(self, body: object, payload: Payload) -> int:
        """Return the size of a body; raises TooLarge where it is not taken."""
        size, limit = size_of(body, payload), self._settings.max_body
        if size > limit:
            msg = f"body of {size} bytes exceeds max_body {limit}: send a reference, or raise the limit on both sides"
            raise TooLarge(msg)
        return size

    def _template(
        self, session: str, to: str, kind: str, media: str, *, options: ParsedOptions, now: Millis
    ) -> HeaderTemplate:
        self._check_recipient(to)
        envelope = self.headers(session, to, kind, media, options=options, now=now)
        given = None if options.message_id is None else 0
        made = HeaderTemplate(
            shared=frame_prefix(envelope),
            lane=envelope.ordering_key or session,
            topic=envelope.topic,
            rank=envelope.rank,
            expires_at=envelope.expires_at,
            given=given,
            key=envelope.key,
            channel=envelope.channel,
            kind=envelope.kind,
            correlation_id=envelope.correlation_id,
        )
        if options is PLAIN and len(self._templates) < TEMPLATES_MAX:
            self._templates[session, to, kind, media] = made
        return made

    def allow_recipient(self, name: str) -> None:
        """Take mail for *name* although nobody knows where it lives: it wrote to us, and will be found."""
        self._good.add(agent_name(name))

    def _check_recipient(self, to: str) -> None:
        if isinstance(to, str) and to in self._good:
            return
        agent_name(to)
        if not (self._settings.hold_unknown or self._known(to)):
            cure = f"create {to}.db beside this file, tell where it is (onceward peers add), or open this one with hold_unknown=True"
            msg = f"nobody is called {to!r}: {cure}"
            raise UnknownRecipient(msg)
        self._good.add(to)

    def headers(
        self, session: str, to: str, kind: str, media: str, *, options: ParsedOptions, now: Millis
    ) -> FrameHeaders:
        """Return what all of a message but its id, time and body says, checked."""
        return FrameHeaders(
            sender=self._db.agent,
            recipient=to,
            type=plain_text("type", kind),
            media=media,
            session=plain_text("session", session),
            topic=None
            if options.topic is None
            else self.topics.of(session).checked(options.topic, system=options.system),
            rank=rank(options.priority),
            ordering_key=_text("ordering_key", options.ordering_key),
            correlation_id=_text("correlation_id", options.correlation_id),
            causation_id=_text("causation_id", options.causation_id),
            in_reply_to=_text("in_reply_to", options.in_reply_to),
            reply_to=None if options.reply_to is None else agent_name(options.reply_to),
            expires_at=_expiry(options, now),
            key=_text("key", options.key),
            channel=_text("channel", options.channel),
            kind=_text("kind", options.kind),
            mailbox=_text("mailbox", options.mailbox),
            headers=_headers(options),
        )

    def add(self, tx: StoreTransaction, draft: OutgoingMessage, *, shared: bool = False) -> str:
        """Write one draft, whose body may be stored already, into the caller's transaction; returns the id, new or known."""
        if draft.caller_chose_id:
            outbox.refuse_dead(tx, draft.id, draft.recipient, draft.values[10])
        return self.admission.admit(
            tx, draft.values, draft.body, lambda values: self._put(tx, draft, values, shared=shared)
        )

    def writing(self, draft: OutgoingMessage) -> Callable[[StoreTransaction], str]:
        """Return the work that writes a draft; where nobody has to look or to be told, rows of neighbours may join it."""
        alone = lambda tx: self.add(tx, draft)  # noqa: E731
        if (
            draft.caller_chose_id
            or draft.body is not None
            or not self.admission.unlimited
            or self.audited is not None
            or self._hooks.wanted(Enqueued)
        ):
            return alone
        return BatchedInsert(outbox.INSERT, draft.values, self._notify, alone)

    def _put(
        self, tx: StoreTransaction, draft: OutgoingMessage, values: tuple[Any, ...], *, shared: bool
    ) -> str:
        message_id = outbox.add(tx, values, draft.body, shared=shared)
        if message_id == draft.id:
            self.after_commit(tx, [draft])
        return message_id

    def commit(self, session: str, to: str, body: object, options: ParsedOptions = PLAIN) -> str:
        """Commit one message, in this thread's open transaction if there is one; returns its id."""
        draft = self.compose(session, to, body, options)
        return self._db.write_in_handler(self.writing(draft))

    def summary(
        self, recipient: str, session: str, lines: list[str], dropped: int, now: Millis
    ) -> OutgoingMessage:
        """Return a message that tells its recipient which messages were dropped on the way."""
        options = ParsedOptions(type=limits.SUMMARY, priority="urgent")
        return self._compose(session, recipient, {"dropped": dropped, "lines": lines}, options, now)

    def add_many(self, tx: StoreTransaction, drafts: Sequence[OutgoingMessage]) -> list[str]:
        """Write many drafts into the caller's transaction, in their order."""
        if self.admission.unlimited and not any(draft.caller_chose_id for draft in drafts):
            rows = [
                draft[3] if draft[5] is None else (*draft[3][:-1], bodies.insert_body(tx, draft[5]))
                for draft in drafts
            ]
            if self._insert(tx, drafts, rows):
                return [draft.id for draft in drafts]
            tx.many(bodies.RELEASE_UNUSED, [(row[-1],) for row in rows if row[-1] is not None])
        return [self.add(tx, draft) for draft in drafts]

    def add_sharing(
        self, tx: StoreTransaction, drafts: Sequence[OutgoingMessage], body_id: int
    ) -> None:
        """Write drafts whose body is stored already."""
        if not (
            self.admission.unlimited
            and self._insert(tx, drafts, [(*draft[3][:-1], body_id) for draft in drafts])
        ):
            for draft in drafts:
                self.add(tx, draft._replace(values=(*draft.values[:-1], body_id)), shared=True)

    def _insert(
        self, tx: StoreTransaction, drafts: Sequence[OutgoingMessage], rows: list[tuple[Any, ...]]
    ) -> bool:
        """Write rows at once; False where there are limits by now, by whose policies each is to be put, or known by its id."""
        try:
            tx.insert(outbox.INSERT, rows)
        except ConstraintError as error:
            if self.admission.is_limit_error(error):
                return False
            raise self._db.translate_error(error) from error
        self.after_commit(tx, drafts)
        return True

    def after_commit(self, tx: StoreTransaction, drafts: Sequence[OutgoingMessage]) -> None:
        """Let those who carry and those who listen know of what was written, once it is committed."""
        tx.message_ids += [draft.id for draft in drafts]
        tx.wake(self._notify)
        if self.audited is not None:
            told, at = self.audited, tx.now
            tx.after_commit(lambda: told(drafts, at))
        if self._hooks.wanted(Enqueued):
            events = [
                Enqueued(agent=self._db.agent, at=tx.now, message_id=d.id, peer=d.recipient)
                for d in drafts
            ]
            tx.after_commit(lambda: self._hooks.emit(events))

    def add_request(
        self, tx: StoreTransaction, draft: OutgoingMessage, timeout: float | None
    ) -> requests.Ticket:
        """Write a request and the ticket that waits for its reply."""
        message_id = self.add(tx, draft)
        if message_id == draft.id:
            deadline_at = None if timeout is None else tx.now + _millis("timeout", timeout)
            requests.open_ticket(
                tx,
                message_id=message_id,
                session=draft.session,
                recipient=draft.recipient,
                deadline_at=deadline_at,
            )
        return requests.Ticket(message_id, draft.recipient)

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


def _millis(field: str, seconds: float) -> Millis:
    if not isinstance(seconds, int | float) or not 0 <= seconds < 10**10:
        msg = f"{field} {seconds!r} must be seconds, not negative"
        raise InvalidMessage(msg)
    return round(seconds * 1000)


def _expiry(options: ParsedOptions, now: Millis) -> Millis | None:
    """Return when nobody wants the message any more: after its own time to live, or when the mailbox it is for ends."""
    ends_at = None if options.ttl is None else now + _millis("ttl", options.ttl)
    if options.ends_at is None or ends_at is None:
        return options.ends_at if ends_at is None else ends_at
    return min(ends_at, options.ends_at)


def _text(field: str, value: str | None) -> str | None:
    return None if value is None else plain_text(field, value)


def _message_id(value: str) -> str:
    if not isinstance(value, str) or ID.fullmatch(value) is None:
        msg = f"message id {value!r:.80} must match {ID.pattern}"
        raise InvalidMessage(msg)
    return value


def _headers(options: ParsedOptions) -> dict[str, Any] | None:
    headers = {**(options.headers or {}), **({EPHEMERAL: True} if options.ephemeral else {})}
    for name, value in headers.items():
        if name in RESERVED_ATTRIBUTES:
            msg = f"header {name!r} is an attribute of the frame: use the argument of send"
            raise InvalidMessage(msg)
        check_extension(name, value)
    return headers or None
