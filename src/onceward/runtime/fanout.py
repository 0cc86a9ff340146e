"""One message for many: its body serialised and stored once, one outbox row for each recipient, all in the sender's transaction."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Any, Final, NamedTuple

from onceward.db.database import Database
from onceward.db.transaction import StoreTransaction
from onceward.errors import InvalidMessage, UnknownRecipient, refuse
from onceward.model.body import encode
from onceward.model.clock import Millis
from onceward.model.frame import FrameHeaders, digest, json_string, render_head, split_prefix
from onceward.model.send_options import ParsedOptions, PublishOptions
from onceward.model.topics import check_topic
from onceward.runtime.sender import OutgoingMessage, Sender, size_of
from onceward.store import bodies
from onceward.store.directory.cache import DirectoryCache

PLACEHOLDER: Final = "nobody"
"""Stands for the recipient while the parts that do not depend on it are written."""


@dataclass(frozen=True, slots=True)
class SendResult:
    """A message to many: ``id`` is the correlation id that all copies carry, ``copies`` are (recipient, message id)."""

    id: str
    copies: tuple[tuple[str, str], ...]

    @property
    def recipients(self) -> tuple[str, ...]:
        """Who it goes to."""
        return tuple(recipient for recipient, _ in self.copies)


class Fanout(NamedTuple):
    """A message to many that only needs to be written down."""

    id: str
    body: str
    size: int
    envelope: FrameHeaders
    drafts: tuple[OutgoingMessage, ...]
    created_at: Millis

    @property
    def result(self) -> SendResult:
        """What it is once it is committed."""
        return SendResult(self.id, tuple((draft.recipient, draft.id) for draft in self.drafts))


def is_for_all(to: object) -> bool:
    """Return whether a recipient means everybody in the home."""
    return to is None or to in ("all", "broadcast")


class Publisher(Sender):
    """A sender that also reaches many: builds fans and puts them into the outbox of one file."""

    def __init__(self, db: Database, *, roster: DirectoryCache, **given: Any) -> None:
        super().__init__(db, **given)
        self.roster = roster

    def to_everyone(
        self, session: str, to: str | None, body: object, options: ParsedOptions
    ) -> Fanout:
        """Build a message to every registered agent of the home but this one; raises UnknownRecipient where there is none."""
        everybody = self.roster.other_agents()
        if not everybody:
            msg = f"to={to!r} reaches every registered agent of the home, and there is no other: let them register"
            raise UnknownRecipient(msg)
        return self.fan_out(session, everybody, body, options)

    def to_subscribers(
        self, session: str, topic: str, body: object, options: PublishOptions
    ) -> Fanout:
        """Build a message to every agent that subscribed to *topic*, each once."""
        return self.fan_out(
            session,
            self.subscribers(topic),
            body,
            ParsedOptions(topic=topic, **options),
            rooted=False,
        )

    def subscribers(self, topic: str) -> list[str]:
        """Return the agents that want *topic* of what is published here, each once."""
        return self.roster.subscribers(check_topic(topic))

    def fan_out(
        self,
        session: str,
        recipients: Sequence[str],
        body: object,
        options: ParsedOptions,
        *,
        rooted: bool = True,
        limit: int | None = None,
    ) -> Fanout:
        """
        Check and serialise a message once and mint an id for each recipient; nothing is written and no lock is taken.

        *rooted* gives it a correlation id where it has none, so that its copies
        can be found by what they share; *limit* is the largest content in bytes.

        Raises:
            ValidationFailed, InvalidMessage, TooLarge, Paused: nothing was written.

        """
        if options.message_id is not None:
            msg = "a message to many has an id for each recipient: give it a key instead of message_id"
            raise InvalidMessage(msg)
        now = self.start()
        payload = encode(body)
        if limit is not None and (size := size_of(body, payload)) > limit:
            refuse("content", f"{size} bytes exceed max_message_size {limit}", size)
        size = self.check_size(body, payload)
        root = options.correlation_id or self._root(session, options)
        if rooted:
            options = replace(options, correlation_id=root)
        envelope = self.headers(
            session,
            PLACEHOLDER,
            options.type or payload.type,
            payload.media,
            options=options,
            now=now,
        )
        drafts = self._drafts(envelope, recipients, payload.text, options, now)
        return Fanout(root, payload.text, size, envelope, drafts, now)

    def _root(self, session: str, options: ParsedOptions) -> str:
        """Mint the id that copies share; the same key gives the same id, so that sending again tells what is known."""
        if options.key is None:
            return self.mint()
        return sha256(
            "\0".join((session, options.channel or "", options.topic or "", options.key)).encode()
        ).hexdigest()[:32]

    def _drafts(
        self,
        e: FrameHeaders,
        recipients: Sequence[str],
        body: str,
        options: ParsedOptions,
        now: Millis,
    ) -> tuple[OutgoingMessage, ...]:
        before, after = split_prefix(e)
        body_digest, due_at = digest(body), self.due(options, now)
        lane, given, mint = e.ordering_key or e.session, e.key is not None, self.mint
        seal, drafts = bodies.split_digest, []
        for recipient in recipients:
            message_id = mint()
            text = render_head(f"{before}{json_string(recipient)}{after}", message_id, now)
            values: tuple[Any, ...] = (
                message_id, recipient, e.session, lane, e.type, e.topic, e.rank, due_at, e.expires_at, None, e.key, text,
                seal(text, body_digest), now, e.channel, e.kind, e.correlation_id, None,
            )  # fmt: skip
            drafts.append(OutgoingMessage(message_id, recipient, e.session, values, given, body))
        return tuple(drafts)

    def add_fanout(
        self, tx: StoreTransaction, fan: Fanout, body_id: int | None = None
    ) -> SendResult:
        """
        Write a fan, whose body may be stored already, into the caller's transaction, all of it or nothing.

        With a key, who was sent it before is not sent it again.
        """
        if not fan.drafts:
            return fan.result
        try:
            with tx.nested():
                kept_id = bodies.insert_body(tx, fan.body) if body_id is None else body_id
                posted = (
                    self._put_known(tx, fan, kept_id)
                    if fan.drafts[0].caller_chose_id
                    else self._put_new(tx, fan, kept_id)
                )
                if body_id is None:
                    tx.run(bodies.RELEASE_UNUSED, (kept_id,))
        except Exception as error:
            raise self.translate_error(error) from error
        return posted

    def _put_new(self, tx: StoreTransaction, fan: Fanout, body_id: int) -> SendResult:
        self.add_sharing(tx, fan.drafts, body_id)
        return fan.result

    def _put_known(self, tx: StoreTransaction, fan: Fanout, body_id: int) -> SendResult:
        shared = [draft._replace(values=(*draft.values[:-1], body_id)) for draft in fan.drafts]
        return SendResult(
            fan.id, tuple((draft.recipient, self.add(tx, draft, shared=True)) for draft in shared)
        )
