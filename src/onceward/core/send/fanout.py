"""Compose a message to many: its body is checked and serialised once; each copy has its id."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Final, NamedTuple

from onceward.core.rows.outbox import OutgoingMessage
from onceward.core.send.compose import Composer, named_id, size_of, with_headers
from onceward.errors import InvalidMessage, UnknownRecipient, refuse
from onceward.message.body import Payload, encode
from onceward.message.clock import Millis
from onceward.message.frame import digest, split_digest
from onceward.message.names import plain_text
from onceward.message.options import (
    FrameHeaders,
    MessageOptions,
    json_string,
    render_head,
    split_prefix,
)
from onceward.message.topics import check_topic

PLACEHOLDER: Final = "placeholder"
"""Placeholder recipient for the headers that all copies of a message share."""


@dataclass(frozen=True, slots=True)
class SendResult:
    """A message to many: ``id`` is the correlation id of all copies (recipient, message id)."""

    id: str
    copies: tuple[tuple[str, str], ...]

    @property
    def recipients(self) -> tuple[str, ...]:
        """The agents that the copies go to."""
        return tuple(recipient for recipient, _ in self.copies)


class Fanout(NamedTuple):
    """A message to many that only needs to be stored."""

    id: str
    body: str
    size: int
    headers: FrameHeaders
    messages: tuple[OutgoingMessage, ...]
    created_at: Millis

    @property
    def result(self) -> SendResult:
        """Return the caller's result once all copies are committed."""
        return self.stored([each.id for each in self.messages])

    def stored(self, ids: Sequence[str]) -> SendResult:
        """Return the result with the ids that the copies are stored under, new or known."""
        copies = zip((each.recipient for each in self.messages), ids, strict=True)
        return SendResult(self.id, tuple(copies))


def to_everyone(composer: Composer, session: str, body: object, options: MessageOptions) -> Fanout:
    """Compose a message to every other agent of the home; raise UnknownRecipient for none."""
    others = composer.recipients.other_agents()
    if not others:
        raise UnknownRecipient(
            "a message to all reaches every other registered agent of the home, and there is "
            "none: opening a file under its agent's name registers it"
        )
    return compose_fanout(composer, session, others, body, options)


def to_subscribers(
    composer: Composer, session: str, topic: str, body: object, options: MessageOptions
) -> Fanout:
    """Compose a message to every agent that subscribed to *topic*, each once."""
    named = options | MessageOptions(topic=topic)
    return compose_fanout(
        composer, session, subscribers(composer, topic), body, named, rooted=False
    )


def subscribers(composer: Composer, topic: str) -> list[str]:
    """Return the agents that subscribed to *topic*, each once."""
    return composer.recipients.subscribers(check_topic(topic))


def compose_fanout(
    composer: Composer,
    session: str,
    recipients: Sequence[str],
    body: object,
    options: MessageOptions,
    *,
    rooted: bool = True,
    since: Millis = 0,
) -> Fanout:
    """
    Check and serialise a message once and mint an id for each recipient; writes nothing.

    *rooted* adds a correlation id if it has none, so that its copies can be found by it. *since* is
    the earliest time that the message may have.

    Raises:
        ValidationFailed, InvalidMessage, TooLarge, Paused: nothing was written.

    """
    if not composer.hooks.observers:
        return _compose(composer, session, recipients, body, options, rooted=rooted, since=since)
    send = composer.observe(session, recipients, options)
    with send.composing():
        named = with_headers(options, send)
        fanout = _compose(composer, session, recipients, body, named, rooted=rooted, since=since)
    copies = tuple(each._replace(sending=send) for each in fanout.messages)
    send.composed(copies)
    return fanout._replace(messages=copies)


def _compose(
    composer: Composer,
    session: str,
    recipients: Sequence[str],
    body: object,
    options: MessageOptions,
    *,
    rooted: bool,
    since: Millis,
) -> Fanout:
    if options.get("message_id") is not None:
        msg = "a message to many has one id per recipient: use a key instead of message_id"
        raise InvalidMessage(msg)
    now = composer.begin()
    payload = encode(body)
    limit = options.get("max_size")
    if limit is not None and (size := size_of(body, payload)) > limit:
        refuse("content", f"{size} bytes exceed max_message_size {limit}", size)
    size = composer.check_to_send(body, payload)
    root = options.get("correlation_id")
    root = _root(composer, session, options) if root is None else root
    if rooted:
        options = {**options, "correlation_id": root}
    kind = options.get("type")
    kind = payload.type if kind is None else kind
    headers = composer.headers(session, PLACEHOLDER, kind, payload.media, options=options, now=now)
    created_at = max(now, since)
    ids = options.get("ids")
    copies = _copies(composer, headers, recipients, payload, created_at, ids=ids)
    if composer.bodies is not None:
        copies = tuple(_set_aside(composer, each, body, payload) for each in copies)
    return Fanout(root, payload.text, size, headers, copies, created_at)


def _root(composer: Composer, session: str, options: MessageOptions) -> str:
    """Return the id that copies share; the same key gives the same id."""
    key = options.get("key")
    if key is None:
        ids = options.get("ids")
        return composer.mint() if ids is None else ids("", "")
    plain_text("key", key)
    named = (session, options.get("channel") or "", options.get("topic") or "", key)
    joined = "\0".join(map(str, named)).encode(errors="surrogatepass")  # checked with the headers
    return sha256(joined).hexdigest()[:32]


def _copies(
    composer: Composer,
    headers: FrameHeaders,
    recipients: Sequence[str],
    payload: Payload,
    now: Millis,
    *,
    ids: Callable[[str, str], str] | None,
) -> tuple[OutgoingMessage, ...]:
    before, after = split_prefix(headers)
    body = payload.text
    body_digest, mint, made = digest(body), composer.mint, list[OutgoingMessage]()
    ids = ids if headers.key is None else None
    for recipient in recipients:
        if headers.key is not None:
            message_id = named_id(headers, recipient, None)
        else:
            message_id = mint() if ids is None else ids(recipient, headers.type)
        head = render_head(f"{before}{json_string(recipient)}{after}", message_id, now)
        copy = OutgoingMessage(
            headers=headers,
            id=message_id,
            recipient=recipient,
            frame=head,
            digest=split_digest(head, body_digest),
            created_at=now,
            due_at=headers.due_at,
            body=body,
            repeatable=ids is not None,
        )
        made.append(copy)
    return tuple(made)


def _set_aside(
    composer: Composer, copy: OutgoingMessage, body: object, payload: Payload
) -> OutgoingMessage:
    """Return a copy whose body is stored outside of it, or the same if it carries its body."""
    headers = copy.headers._replace(recipient=copy.recipient)
    reference = composer.set_aside(body, payload, headers, copy.id)
    if not reference:
        return copy
    named = f'"recipient":{json_string(copy.recipient)}'
    frame = f"{copy.frame.replace(named, named + reference, 1)}null}}"
    return copy._replace(frame=frame, digest=digest(frame), body=None)
