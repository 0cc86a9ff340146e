"""Compose a message: check, serialise and mint its id; no I/O, except for a body's own file."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from hashlib import sha256
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, Protocol

from onceward.core.rows.outbox import OutgoingMessage
from onceward.errors import (
    InvalidArgument,
    InvalidMessage,
    Paused,
    TooLarge,
    UnknownRecipient,
)
from onceward.file.environment import SWITCH, VARIABLES, disabled_by_environment
from onceward.hooks import Hooks, SendFacts
from onceward.message.body import BYTES, TEXT, Payload, encode
from onceward.message.clock import Clock, Millis, MonotonicFileClock, iso
from onceward.message.error_text import Hint
from onceward.message.frame import DIGEST_BYTES, Frame, digest, split_digest
from onceward.message.ids import AHEAD, KEYED, OWN_ID, IdSource, RepeatableIds
from onceward.message.names import agent_name, byte_length, listed, meant, plain_text, quoted
from onceward.message.options import (
    BEFORE_ID,
    BEFORE_TIME,
    PLAIN,
    FrameHeaders,
    MessageOptions,
    frame_ends,
    given_headers,
    options_text,
    read_options,
    render_head,
)
from onceward.message.settings import Settings
from onceward.message.topics import TopicPolicies

if TYPE_CHECKING:
    from onceward.observed import ObservedSend

Known = Literal["here", "elsewhere", ""]
"""Where a recipient is: in this home, which stays so; in another home, now; or unknown."""
ID: Final = re.compile(r"[A-Za-z0-9._:-]{1,128}")
PAIR: Final = 2
REPEATABLE_FOR: Final = 86_400.0
"""Seconds after which handling a message again sends new ids; a shorter retention halves it."""
ORDER_BITS: Final = 12
"""Bits of a UUIDv7 after its moment that order ids of one millisecond."""
TEMPLATES_MAX: Final = 4096
"""Maximum templates of one generation; two are kept."""


class Template(NamedTuple):
    """The part shared by all messages without options from a session to an agent."""

    headers: FrameHeaders
    head: str
    """The text of its frame before its options, from the id."""
    tail: str
    """The text of its frame after its options, up to the body."""


class Sender(Protocol):
    """The file whose messages are composed: its agent and its time."""

    @property
    def agent(self) -> str:
        """Return the agent's name."""

    @property
    def clock(self) -> Clock:
        """Return the wall clock."""

    @property
    def time(self) -> MonotonicFileClock:
        """Return the file's time, which never runs backwards."""


class Recipients(Protocol):
    """Finds the recipients of a message to many in the home."""

    def other_agents(self) -> list[str]:
        """Return all other agents of the home, by name."""

    def known_agents(self) -> list[str]:
        """Return the same; none in a home without a directory."""

    def subscribers(self, topic: str, *, channel: str = "") -> list[str]:
        """Return the agents that subscribed to *topic*, each once."""


class BodyStore(Protocol):
    """Stores bodies outside their messages."""

    max_size: int
    """Maximum body in bytes."""

    def keep(self, payload: Payload, size: int, headers: FrameHeaders, message_id: str) -> str:
        """
        Store a body durably; return its reference, "" if the message must carry the body.

        Raises:
            TooLarge: the recipient cannot read the store.
            StoreError: it was not stored.

        """

    def rename(self, message: OutgoingMessage, message_id: str) -> None:
        """Store the body of a message for another id, too."""


class Composer:
    """Composes the messages of one agent."""

    bodies: BodyStore | None = None
    """Stores large bodies outside their messages; None if all messages carry them."""

    def __init__(
        self,
        sender: Sender,
        *,
        settings: Settings,
        ids: IdSource,
        hooks: Hooks,
        known: Callable[[str], Known],
        recipients: Recipients,
    ) -> None:
        self._sender, self._settings, self._known = sender, settings, known
        self.hooks = hooks
        """Their observers see each send."""
        self.mint = ids
        """Mints a new id on each call."""
        self.recipients = recipients
        """The agents and subscriptions of the home."""
        self.topics = TopicPolicies(settings.topics, settings.session_topics)
        self._cut = min(settings.tuning.body_threshold, settings.max_body)
        self._good: set[str] = set()
        self._templates: dict[tuple[str, str, str, str], Template] = {}
        self._older_templates = self._templates
        """The older generation of templates; used ones move to the new one."""

    def compose(
        self, session: str, to: str, body: object, options: MessageOptions = PLAIN
    ) -> OutgoingMessage:
        """Check, mint and serialise a message without writing; any SendError may be raised."""
        if self.hooks.observers:
            return self._compose_observed(session, [(to, body)], options)[0]
        return self.compose_at(session, to, body, options, self.begin())

    def check(self, session: str, to: str, body: object, options: MessageOptions) -> None:
        """Raise the errors of ``compose`` without sending; no observer sees it."""
        self.compose_at(session, to, body, options, self.begin())

    def compose_many(
        self,
        session: str,
        messages: Iterable[tuple[str, object]],
        options: MessageOptions = PLAIN,
    ) -> list[OutgoingMessage]:
        """Check, mint and serialise many messages of one moment; see ``compose``."""
        if self.hooks.observers:
            return self._compose_observed(session, _pairs(messages), options)
        now = self.begin()
        return [self.compose_at(session, to, body, options, now) for to, body in _pairs(messages)]

    def _compose_observed(
        self, session: str, messages: Sequence[tuple[str, object]], options: MessageOptions
    ) -> list[OutgoingMessage]:
        """Compose the messages of one send for observers."""
        send = self.observe(session, [to for to, _ in messages], options)
        with send.composing():
            now, named = self.begin(), with_headers(options, send)
            composed = [
                self.compose_at(session, to, body, named, now)._replace(sending=send)
                for to, body in messages
            ]
        send.composed(composed)
        return composed

    def observe(
        self, session: str, recipients: Sequence[str], options: MessageOptions
    ) -> ObservedSend:
        """Begin a send for observers."""
        from onceward.observed import ObservedSend  # noqa: PLC0415 - rarely needed

        facts = SendFacts(
            agent=self._sender.agent,
            session=session,
            recipients=recipients,
            topic=options.get("topic"),
            channel=options.get("channel"),
            headers=given_headers(options),
        )
        return ObservedSend(self.hooks.observers, facts)

    def begin(self) -> Millis:
        """Return the moment of a send; raise Paused if the environment forbids it."""
        if SWITCH in VARIABLES and disabled_by_environment():
            raise Paused("ONCEWARD_DISABLED is set: unset it to send again; nothing was written")
        return self._sender.time.now(self._sender.clock)

    def compose_at(
        self, session: str, to: str, body: object, options: MessageOptions, now: Millis
    ) -> OutgoingMessage:
        """Check, mint and serialise a message of one moment, without observers."""
        media, text, declared = payload = encode(body)
        beside = len(text) * 4 > self._cut and self._is_long(body, payload)
        kind = options.get("type") if options else None
        kind = declared if kind is None else kind
        try:
            template = self._templates.get((session, to, kind, media))
        except TypeError:  # a list of recipients, for example
            agent_name(to)
            plain_text("type", kind)
            raise
        plain, head, tail = template or self._template(session, to, kind, media)
        headers = self._changed(plain, options, now) if options else plain
        if headers is not plain:
            head += options_text(headers)
        chosen, ids = options.get("message_id"), options.get("ids")
        if chosen is None and headers.key is None:
            message_id = self.mint() if ids is None else ids(to, headers.type)
        else:
            message_id, ids = named_id(headers, to, chosen), None
        if beside and (reference := self.set_aside(body, payload, headers, message_id)):
            head, text, beside = head + reference, "null", False
        if beside:
            frame = render_head(head + tail, message_id, now)
            sealed = split_digest(frame, digest(text))
        else:
            frame = f"{BEFORE_TIME}{iso(now)}{BEFORE_ID}{message_id}{head}{tail}{text}}}"
            sealed = sha256(frame.encode()).digest()[:DIGEST_BYTES]  # digest, without its call
        return OutgoingMessage(
            headers=headers,
            id=message_id,
            recipient=headers.recipient,
            frame=frame,
            digest=sealed,
            created_at=now,
            due_at=headers.due_at,
            body=text if beside else None,
            repeatable=ids is not None,
        )

    def _is_long(self, body: object, payload: Payload) -> bool:
        """Return whether a body is stored separately; raise TooLarge for any recipient."""
        return self.check_to_send(body, payload) > self._settings.tuning.body_threshold

    def check_to_send(self, body: object, payload: Payload) -> int:
        """Return the size of a body in bytes; raise TooLarge if no recipient may get it."""
        if self.bodies is None:
            return self.check_size(body, payload)
        size, limit = size_of(body, payload), max(self._settings.max_body, self.bodies.max_size)
        if size > limit:
            raise TooLarge(f"body of {size} bytes exceeds max_large_body {limit}: raise the limit")
        return size

    def check_size(self, body: object, payload: Payload) -> int:
        """Return the size of a body in bytes; raise TooLarge above max_body."""
        size, limit = size_of(body, payload), self._settings.max_body
        if size > limit:
            raise TooLarge(
                f"body of {size} bytes exceeds max_body {limit}: "
                "set large_body, send a reference, or raise the limit on both sides"
            )
        return size

    def set_aside(
        self, body: object, payload: Payload, headers: FrameHeaders, message_id: str
    ) -> str:
        """
        Store a large body outside its message; return the attribute that refers to it.

        It is "" for a message that carries its body. Raises TooLarge if it must and cannot.
        """
        if self.bodies is not None:
            size = size_of(body, payload)
            if reference := self.bodies.keep(payload, size, headers, message_id):
                return f',"dataref":"{reference}"'
        return ""

    def _template(self, session: str, to: str, kind: str, media: str) -> Template:
        """Return the checked headers of a message without options, and its frame's prefix."""
        key = session, to, kind, media
        template = self._older_templates.get(key)
        if template is None:
            stays = self._check_recipient(to)
            headers = self._plain(session, to, kind, media)
            template = Template(headers, *frame_ends(headers))
            if not stays:
                return template
        if len(self._templates) >= TEMPLATES_MAX:
            self._older_templates, self._templates = self._templates, {}
        self._templates[key] = template
        return template

    def _changed(self, plain: FrameHeaders, options: MessageOptions, now: Millis) -> FrameHeaders:
        """Return headers with the fields that options set."""
        fields = read_options(options, now)
        if not fields:
            return plain
        if fields.get("topic") is not None:
            topics = self.topics.of(plain.session)
            topics.checked(fields["topic"], system=options.get("system", False))
        if "ordering_key" in fields:
            fields["lane"] = fields["ordering_key"] or plain.session
        return plain._replace(**fields)

    def ids_of(self, handled: Sequence[Frame], now: Millis) -> RepeatableIds | None:
        """
        Return the ids of what a handler of these messages sends; None for new ones.

        They sort after the last of the messages, or after its moment if its id does not tell it.
        Recipients forget ids after their retention, so an old message gets new ones.
        """
        after, last = 0, handled[-1]
        if OWN_ID.fullmatch(last.id) is not None and not last.id.startswith(KEYED):
            after = int(last.id[:8] + last.id[9:13] + last.id[15:18], 16)
        elif last.time is not None:
            after = round(1000 * last.time.timestamp()) << ORDER_BITS
        names = [part for each in handled for part in (each.sender, each.id)]
        return self._ids(after, now, names)

    def ids_at(self, at: Millis, now: Millis, *names: str) -> RepeatableIds | None:
        """Return the ids of what is sent for a planned moment, such as a date; see ``ids_of``."""
        return self._ids(at << ORDER_BITS, now, names)

    def _ids(self, after: int, now: Millis, names: Sequence[str]) -> RepeatableIds | None:
        oldest = now - round(1000 * min(REPEATABLE_FOR, self._settings.retention / 2))
        if not oldest <= after >> ORDER_BITS <= now + AHEAD:
            return None
        return RepeatableIds(after, self._sender.agent, *names)

    def renamed(self, message: OutgoingMessage) -> OutgoingMessage:
        """Return a message under a new id."""
        message_id = self.mint()
        if self.bodies is not None:
            self.bodies.rename(message, message_id)
        before, after = f"{BEFORE_ID}{message.id}", f"{BEFORE_ID}{message_id}"
        frame, body = message.frame.replace(before, after, 1), message.body
        sealed = digest(frame) if body is None else split_digest(frame, digest(body))
        return message._replace(id=message_id, frame=frame, digest=sealed, repeatable=False)

    def allow_recipient(self, name: str) -> None:
        """Accept messages to *name* without a known address: it wrote to us and can be found."""
        self._good.add(agent_name(name))

    def _check_recipient(self, to: str) -> bool:
        """Raise UnknownRecipient for a name that cannot be reached; return False to ask again."""
        if isinstance(to, str) and to in self._good:
            return True
        if to is None:
            msg = f"to=None names no agent: {Hint.BROADCAST} to every agent of the home"
            raise InvalidMessage(msg)
        agent_name(to)
        known = "here" if self._settings.hold_unknown else self._known(to)
        if not known:
            raise UnknownRecipient(
                f"there is no agent {to!r}: create {to}.db beside this file, register its "
                f"address (onceward peers add), or {Hint.HOLD_UNKNOWN}"
                f"{meant(to, self.recipients.known_agents())}"
            )
        if known == "elsewhere":
            return False
        self._good.add(to)
        return True

    def headers(
        self, session: str, to: str, kind: str, media: str, *, options: MessageOptions, now: Millis
    ) -> FrameHeaders:
        """Return all checked attributes of a message except its id, time and body."""
        return self._changed(self._plain(session, to, kind, media), options, now)

    def _plain(self, session: str, to: str, kind: str, media: str) -> FrameHeaders:
        """Return the headers of a message without options."""
        return FrameHeaders(
            sender=self._sender.agent,
            recipient=to,
            type=plain_text("type", kind),
            media=media,
            session=plain_text("session", session),
            lane=session,
        )


def _pairs(messages: Iterable[tuple[str, object]]) -> list[tuple[str, object]]:
    """Return recipient and body of each message; raise InvalidArgument for another form."""
    given = list(listed("messages", messages))
    for each in given:
        if not isinstance(each, tuple | list) or len(each) != PAIR:
            msg = f"messages: {quoted(each)} must be (recipient, body)"
            raise InvalidArgument(msg)
    return given


def size_of(body: object, payload: Payload) -> int:
    """Return the size of a body in bytes: raw for bytes, UTF-8 for text, its JSON otherwise."""
    if payload.media == BYTES:
        return len(bytes(body))  # type: ignore[call-overload]  # encode took it for bytes
    if payload.media == TEXT:
        return byte_length(str(body))
    return byte_length(payload.text)


def named_id(headers: FrameHeaders, to: str, chosen: str | None) -> str:
    """
    Return the id that the caller chose, or else that of its key: a UUIDv7 of the moment 0.

    The moment is that of no message, so that a restored file finds the id by the key alone.
    """
    if chosen is None:
        drawn = sha256(repr((headers.sender, to, headers.key)).encode()).hexdigest()
        return f"{KEYED}{drawn[:3]}-8{drawn[3:6]}-{drawn[6:18]}"
    if not isinstance(chosen, str) or ID.fullmatch(chosen) is None:
        raise InvalidMessage(f"message id {quoted(chosen)} must match {ID.pattern}")
    return chosen


def with_headers(options: MessageOptions, send: ObservedSend) -> MessageOptions:
    """Return *options* with the extension attributes of observers; the caller's take precedence."""
    if not send.headers:
        return options
    return {**options, "headers": {**send.headers, **given_headers(options)}}


EVERY_AGENT: Final = ("all", "broadcast")
"""Texts that mean every registered agent of the home but the sender, as SQL and the shell do."""
