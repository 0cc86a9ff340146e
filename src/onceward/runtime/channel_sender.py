"""Sending to a channel: what must hold is checked before anything is written, then all copies are one commit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

from onceward.db.database import Database
from onceward.db.transaction import StoreTransaction
from onceward.errors import ChannelRefused, refuse
from onceward.model.frame import split_prefix
from onceward.model.send_options import ParsedOptions
from onceward.model.topics import check_topic
from onceward.runtime.channel_tasks import ChannelTasks
from onceward.runtime.fanout import Fanout, Publisher, SendResult
from onceward.store import acknowledgments, bodies, channel_posts
from onceward.store.directory import channels
from onceward.store.directory.cache import DirectoryCache
from onceward.store.directory.channels import KINDS, ChannelInfo

ANSWERS = {"response": "query"}
"""Kinds that answer something, and what they answer."""


class ChannelMessage(NamedTuple):
    """A message to a channel that only needs to be written down."""

    channel: ChannelInfo
    fan: Fanout
    newest: int
    options: ParsedOptions


class ChannelSender:
    """Sends to the channels of a home, from one agent's file."""

    def __init__(self, db: Database, publisher: Publisher, errands: ChannelTasks) -> None:
        self._db, self._publisher, self.errands = db, publisher, errands
        self.roster: DirectoryCache = publisher.roster

    def info(self, name: str) -> ChannelInfo:
        """Return a channel as it is now; raises UnknownChannel."""
        return channels.info(self.roster.channel(name), name)

    def role(self, name: str) -> str | None:
        """Return this agent's role in a channel, None where it takes no part."""
        return channels.role_of(self.roster.members(name), self._db.agent)

    def prepare(
        self, session: str, name: str, body: object, options: ParsedOptions
    ) -> Callable[[StoreTransaction], SendResult]:
        """
        Check a message to a channel and build its copies; return the work that writes them.

        Raises:
            ChannelError, ValidationFailed, InvalidMessage: nothing was written.

        """
        found = self.info(name)
        self._check_state(found)
        self._check(found, body, options)
        recipients = self._recipients(found, options)
        if options.ordering_key is None:
            options = replace(
                options, ordering_key=name
            )  # a channel that waits holds back its own messages only
        fan = self._publisher.fan_out(
            session,
            recipients,
            body,
            replace(options, channel=name),
            limit=found.config.max_message_size,
        )
        plan = ChannelMessage(found, fan, self.roster.newest(name), options)
        return lambda tx: self._put(tx, plan)

    # -- checking ---------------------------------------------------------------------------

    def _check_state(self, found: ChannelInfo) -> None:
        if found.state in ("draining", "closed") or (found.state == "paused" and not found.holds):
            msg = (
                f"channel {found.name} is {found.state}: it takes no messages; nothing was written"
            )
            raise ChannelRefused(msg)

    def _check(self, found: ChannelInfo, body: object, options: ParsedOptions) -> None:
        if options.kind == acknowledgments.KIND:
            refuse("kind", "is said with acknowledge(), which knows what is answered")
        if options.kind not in KINDS:
            refuse("kind", f"is none of {', '.join(KINDS)}", len(str(options.kind)))
        answer = options.kind in ANSWERS
        allowed = ("owner",) if found.type == "broadcast" and not answer else ("owner", "member")
        channels.require(self.role(found.name), allowed, found.name, self._db.agent, "send")
        if body is None or body in ("", b""):
            refuse("content", "is empty")
        if found.type == "pubsub" and options.topic is None and not answer:
            refuse("topic", "is missing: messages of a pubsub channel have one")
        if options.topic is not None:
            check_topic(options.topic)
            found.config.policy.check(options.topic)

    def _recipients(self, found: ChannelInfo, options: ParsedOptions) -> list[str]:
        me, kind = self._db.agent, str(options.kind)
        if kind in ANSWERS:
            asker = self._asker(found.name, kind, options.correlation_id)
            return [me if asker is None else asker]
        if found.type == "pubsub":
            names = self.roster.subscribers(str(options.topic), channel=found.name)
        else:
            names = [member.agent for member in self.roster.members(found.name)]
        return sorted(
            name for name in names if name != me or found.config.echo
        )  # as the index has them: half the cost of many

    def _asker(self, name: str, kind: str, correlation_id: str | None) -> str | None:
        """Return who sent what is answered, None for ourselves; raises ValidationFailed where nothing is known of it."""
        wanted = ANSWERS[kind]
        known, sender = channel_posts.asked(self._db.read, correlation_id or "", name, wanted)
        if not known:
            refuse(
                "correlation_id", f"names no {wanted} of channel {name}", len(correlation_id or "")
            )
        return sender

    # -- writing ----------------------------------------------------------------------------

    def _put(self, tx: StoreTransaction, plan: ChannelMessage) -> SendResult:
        found, fan = plan.channel, plan.fan
        config = found.config
        if config.sticky:
            channel_posts.start(tx, "channel", found.name, plan.newest)
            self.errands.serve(tx, found)
        fan = self._held(tx, found, fan)
        body_id = (
            self._retain(tx, plan) if config.sticky and plan.options.kind not in ANSWERS else None
        )
        posted = self._publisher.add_fanout(tx, fan, body_id)
        if body_id is not None:
            channel_posts.trim(tx, found.name, config)
        return posted

    def _held(self, tx: StoreTransaction, found: ChannelInfo, fan: Fanout) -> Fanout:
        """Let the copies wait where the channel is paused, or as many of ours are on their way as may be."""
        most = found.config.max_pending
        full = most is not None and channel_posts.under_way(tx, found.name) + len(fan.drafts) > most
        behind = (
            channel_posts.next_task(tx, "channel", found.name)
            if most is not None or found.holds
            else None
        )
        if not (found.holds or full or (behind is not None and behind[1])):
            return fan
        channel_posts.start(tx, "channel", found.name, self.roster.newest(found.name))
        tx.run(channel_posts.HOLD, (found.name,))
        drafts = tuple(
            draft._replace(values=(*draft.values[:7], channel_posts.HELD, *draft.values[8:]))
            for draft in fan.drafts
        )
        return fan._replace(drafts=drafts)

    def _retain(self, tx: StoreTransaction, plan: ChannelMessage) -> int | None:
        e, name = plan.fan.envelope, plan.channel.name
        if plan.options.key is not None and tx.rows(channel_posts.KNOWN, (name, e.correlation_id)):
            return None
        body_id = bodies.insert_body(tx, plan.fan.body)
        before, after = split_prefix(e)
        lane = e.ordering_key or e.session
        facts = (
            name,
            e.session,
            lane,
            e.type,
            e.topic,
            e.kind,
            e.rank,
            e.expires_at,
            e.correlation_id,
        )
        channel_posts.keep(tx, (*facts, before, after, body_id, plan.fan.size, plan.fan.created_at))
        return body_id

    def acknowledging(
        self, session: str, name: str, to: str, ids: tuple[str, str], said: tuple[str, str | None]
    ) -> Callable[[StoreTransaction], str]:
        """Build the acknowledgment of a message (its id, its conversation) to whom sent it; return the work that writes it."""
        status, detail = said
        acknowledgments.stage(status)
        options = ParsedOptions(
            type=acknowledgments.KIND, kind=acknowledgments.KIND, channel=name, ordering_key=name,
            causation_id=ids[0], correlation_id=ids[1], priority="urgent",
        )  # fmt: skip
        draft = self._publisher.compose(session, to, {"status": status, "detail": detail}, options)
        return lambda tx: self._publisher.add(tx, draft)
