"""Send to the channels of a home: check a message, then commit all its copies together."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from onceward.core.rows.outbox import insert_body
from onceward.core.send.add import Outbox
from onceward.core.send.fanout import Fanout, SendResult, compose_fanout
from onceward.errors import ChannelRefused, refuse
from onceward.features.channels import channel_posts
from onceward.features.channels import directory as channels
from onceward.features.channels.channel_posts import Asked
from onceward.features.channels.channel_tasks import ChannelTasks
from onceward.features.channels.directory import ChannelInfo
from onceward.file.database import Database
from onceward.file.directory import DirectoryCache
from onceward.file.transaction import StoreTransaction
from onceward.message.options import MessageOptions, split_prefix
from onceward.message.topics import check_topic
from onceward.message.vocabulary import CHANNEL_ROLES, KINDS

ANSWERS = {"response": "query"}
"""Kinds that answer another kind, and which."""


class ChannelMessage(NamedTuple):
    """A message to a channel that only needs to be stored."""

    channel: ChannelInfo
    fanout: Fanout
    newest: int
    options: MessageOptions


class ChannelSender:
    """Sends to the channels of a home, from one agent's file."""

    def __init__(self, db: Database, outbox: Outbox, tasks: ChannelTasks) -> None:
        self._db, self._outbox, self.tasks = db, outbox, tasks
        self.directory: DirectoryCache = tasks.directory

    def info(self, name: str) -> ChannelInfo:
        """Return the current state of a channel; raise UnknownChannel."""
        return channels.info(self.directory.channel(name), name)

    def role(self, name: str) -> str | None:
        """Return this agent's role in a channel; None if it is not a member."""
        return channels.role_of(self.directory.members(name), self._db.agent)

    def prepare(
        self, session: str, name: str, body: object, options: MessageOptions
    ) -> Callable[[StoreTransaction], SendResult]:
        """
        Check a message to a channel and build its copies; return the work that writes them.

        Raises:
            ChannelError, ValidationFailed, InvalidMessage: nothing was written.

        """
        found = self.info(name)
        self._check_state(found)
        self._check(found, body, options)
        if options.get("kind") in ANSWERS:
            asked = self._asked(name, options)
            recipients = [asked.sender or self._db.agent]
            options = {**options, "answer_by": asked.expires_at}
        else:
            recipients = self._recipients(found, options)
        # A held channel delays only its own messages.
        lane = options.get("ordering_key")
        lane = name if lane is None else lane
        options = {**options, "ordering_key": lane, "channel": name}
        options["max_size"] = found.config.max_message_size
        composer, since = self._outbox.composer, found.created_at
        copies = compose_fanout(composer, session, recipients, body, options, since=since)
        message = ChannelMessage(found, copies, self.directory.newest(name), options)
        return partial(self._add, message=message)

    # -- checking ---------------------------------------------------------------------------

    def _check_state(self, found: ChannelInfo) -> None:
        if found.state in ("draining", "closed") or (found.state == "paused" and not found.holds):
            raise ChannelRefused(
                f"channel {found.name} is {found.state}: it accepts no messages; nothing was "
                "written"
            )

    def _check(self, found: ChannelInfo, body: object, options: MessageOptions) -> None:
        if options.get("kind") == channel_posts.ACKNOWLEDGMENT:
            refuse("kind", "must be sent with acknowledge(), which knows the answered message")
        if options.get("kind") not in KINDS:
            refuse("kind", f"is not one of {', '.join(KINDS)}", len(str(options.get("kind"))))
        answer = options.get("kind") in ANSWERS
        allowed = ("owner",) if found.type == "broadcast" and not answer else ("owner", "member")
        channels.require(self.role(found.name), allowed, found.name, self._db.agent, "send")
        if body is None or body in ("", b""):
            refuse("content", "is empty")
        topic = options.get("topic")
        if found.type == "pubsub" and topic is None and not answer:
            refuse("topic", "is missing: messages of a pubsub channel need one")
        if topic is not None:
            check_topic(topic)
            found.config.policy.check(topic)

    def _recipients(self, found: ChannelInfo, options: MessageOptions) -> list[str]:
        me = self._db.agent
        if found.type == "pubsub":
            names = self.directory.subscribers(str(options.get("topic")), channel=found.name)
        else:
            names = [member.agent for member in self.directory.members(found.name)]
        return sorted(
            name for name in names if name != me or found.config.echo
        )  # in index order: half the cost for many

    def _asked(self, name: str, options: MessageOptions) -> Asked:
        """Return the message that is answered; raise ValidationFailed if it is unknown."""
        wanted = ANSWERS[str(options.get("kind"))]
        correlation_id = options.get("correlation_id") or ""
        asked = channel_posts.asked(self._db.read, correlation_id, name, wanted)
        if asked is None:
            refuse("correlation_id", f"is not a {wanted} of channel {name}", len(correlation_id))
        return asked

    # -- writing ----------------------------------------------------------------------------

    def _add(self, tx: StoreTransaction, message: ChannelMessage) -> SendResult:
        """Store the copies of a message and, in a sticky channel, the retained post."""
        found, config = message.channel, message.channel.config
        if config.sticky:
            channel_posts.start(tx, "channel", found.name, message.newest)
            self.tasks.serve(tx, found)
        fanout = self._held(tx, found, message.fanout)
        keeps = config.sticky and message.options.get("kind") not in ANSWERS
        body_id = self._retain(tx, message) if keeps else None
        result = self._outbox.add_fanout(tx, fanout, body_id)
        if body_id is not None:
            channel_posts.trim(tx, found)
        return result

    def _held(self, tx: StoreTransaction, found: ChannelInfo, fanout: Fanout) -> Fanout:
        """Return the copies, held if the channel is paused or has max_pending of ours."""
        most, count = found.config.max_pending, len(fanout.messages)
        behind = channel_posts.task(tx, "channel", found.name)
        if behind is not None and behind.held and not found.holds:  # or this one overtakes them
            self.tasks.release(tx, found)
            behind = channel_posts.task(tx, "channel", found.name)
        full = most is not None and channel_posts.under_way(tx, found.name) + count > most
        if not (found.holds or full or (behind is not None and behind.held)):
            return fanout
        channel_posts.start(tx, "channel", found.name, self.directory.newest(found.name))
        channel_posts.hold(tx, found.name)
        holder = channel_posts.held_by(found.name)
        held = tuple(each._replace(held_by=holder) for each in fanout.messages)
        return fanout._replace(messages=held)

    def _retain(self, tx: StoreTransaction, message: ChannelMessage) -> int | None:
        """Retain a message for later members; return its body's number, or None if known."""
        fanout, name = message.fanout, message.channel.name
        e, key = fanout.headers, message.options.get("key")
        if key is not None and channel_posts.is_retained(tx, name, e.correlation_id):
            return None
        body_id = insert_body(tx, fanout.body)
        before, after = split_prefix(e)
        facts = (name, e.session, e.lane, e.type, e.topic, e.kind, e.rank, e.expires_at)
        size = fanout.size, fanout.created_at
        channel_posts.keep(tx, (*facts, e.correlation_id, before, after, body_id, *size))
        return body_id

    def acknowledging(
        self, session: str, name: str, to: str, ids: tuple[str, str], said: tuple[str, str | None]
    ) -> Callable[[StoreTransaction], str]:
        """Compose the acknowledgment of a message (id, conversation); return the storing work."""
        channels.require(self.role(name), CHANNEL_ROLES, name, self._db.agent, "acknowledge")
        status, detail = said
        channel_posts.stage(status)
        options = MessageOptions(
            type=channel_posts.ACKNOWLEDGMENT, kind=channel_posts.ACKNOWLEDGMENT, channel=name,
            ordering_key=name, causation_id=ids[0], correlation_id=ids[1], priority="urgent",
        )  # fmt: skip
        message = self._outbox.compose(session, to, {"status": status, "detail": detail}, options)
        return partial(self._outbox.add, message=message)
