"""A message to many: its body is stored once, with one outbox row for each recipient."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Final, NamedTuple

from onceward.core.send.compose import (
    Composer,
    OutgoingMessage,
    size_of,
    split_digest,
    with_headers,
)
from onceward.errors import InvalidMessage, UnknownRecipient, refuse
from onceward.message.body import encode
from onceward.message.clock import Millis
from onceward.message.frame import FrameHeaders, digest, json_string, render_head, split_prefix
from onceward.message.options import MessageOptions, PublishOptions, parse_options
from onceward.message.topics import check_topic

EVERY_AGENT: Final = (None, "all", "broadcast")
"""Recipients that stand for every registered agent of the home but the sender."""
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
        """Return what the caller is given once all copies are committed."""
        return SendResult(self.id, tuple((each.recipient, each.id) for each in self.messages))


def to_everyone(composer: Composer, session: str, body: object, options: MessageOptions) -> Fanout:
    """Compose a message to every other agent of the home; raises UnknownRecipient for none."""
    others = composer.recipients.other_agents()
    if not others:
        msg = (
            "a message to all reaches every registered agent of the home, and there is no"
            " other: opening a file under its agent's name registers it"
        )
        raise UnknownRecipient(msg)
    return compose_fanout(composer, session, others, body, options)


def to_subscribers(
    composer: Composer, session: str, topic: str, body: object, options: PublishOptions
) -> Fanout:
    """Compose a message to every agent that subscribed to *topic*, each once."""
    named = parse_options(options) | MessageOptions(topic=topic)
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
) -> Fanout:
    """
    Check and serialise a message once and mint an id for each recipient; writes nothing.

    *rooted* gives it a correlation id where it has none, so that its copies
    can be found by what they share.

    Raises:
        ValidationFailed, InvalidMessage, TooLarge, Paused: nothing was written.

    """
    if not composer.hooks.observers:
        return _compose(composer, session, recipients, body, options, rooted=rooted)
    send = composer.observe(session, recipients, options)
    with send.composing():
        named = with_headers(options, send)
        fanout = _compose(composer, session, recipients, body, named, rooted=rooted)
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
) -> Fanout:
    if options.get("message_id") is not None:
        msg = "a message to many has an id for each recipient: use a key, not message_id"
        raise InvalidMessage(msg)
    now = composer.begin()
    payload = encode(body)
    limit = options.get("max_size")
    if limit is not None and (size := size_of(body, payload)) > limit:
        refuse("content", f"{size} bytes exceed max_message_size {limit}", size)
    size = composer.check_size(body, payload)
    root = options.get("correlation_id") or _root(composer, session, options)
    if rooted:
        options = {**options, "correlation_id": root}
    kind = options.get("type") or payload.type
    headers = composer.headers(session, PLACEHOLDER, kind, payload.media, options=options, now=now)
    copies = _copies(composer, headers, recipients, payload.text, now)
    return Fanout(root, payload.text, size, headers, copies, now)


def _root(composer: Composer, session: str, options: MessageOptions) -> str:
    """Return the id that copies share; the same key gives the same id."""
    key = options.get("key")
    if key is None:
        return composer.mint()
    named = (session, options.get("channel") or "", options.get("topic") or "", key)
    return sha256("\0".join(named).encode()).hexdigest()[:32]


def _copies(
    composer: Composer,
    headers: FrameHeaders,
    recipients: Sequence[str],
    body: str,
    now: Millis,
) -> tuple[OutgoingMessage, ...]:
    before, after = split_prefix(headers)
    body_digest, mint, made = digest(body), composer.mint, list[OutgoingMessage]()
    for recipient in recipients:
        message_id = mint()
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
        )
        made.append(copy)
    return tuple(made)
