"""Use channels: create, join, post, receive with leases, acknowledge, read the history."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, TypedDict, TypeVar, Unpack, cast

from typing_extensions import TypeForm

from onceward.core.contract import Opening
from onceward.core.handle import claim
from onceward.core.handle.consumer import Consumer, LaneLeases, Taken
from onceward.core.handle.message import Message, ReceivedMessage
from onceward.core.handle.readers import InboxConsumer
from onceward.core.rows import claimable
from onceward.core.rows.lanes import LeasedMessage
from onceward.core.run import recovery
from onceward.core.run.engine_loop import RuntimeDeps, until_found
from onceward.core.send.fanout import SendResult
from onceward.errors import ChannelRefused, NotParticipant
from onceward.features.channels import channel_posts, channel_tasks
from onceward.features.channels import directory as channels
from onceward.features.channels.channel_sender import ChannelSender
from onceward.features.channels.directory import ChannelInfo
from onceward.file.database import Database
from onceward.file.environment import disabled_by_environment
from onceward.file.transaction import StoreTransaction
from onceward.message.arguments import check_given, checks_arguments
from onceward.message.body import Body
from onceward.message.clock import Millis
from onceward.message.frame import Frame, body_size
from onceward.message.handler_work import Acknowledgment
from onceward.message.names import DEFAULT_SESSION, Member, plain_text
from onceward.message.options import SendOptions, parse_options
from onceward.message.record import ChannelHistoryFilters, Page
from onceward.message.retry import After, Doubling, RetryPolicy
from onceward.message.times import Span
from onceward.message.topics import check_pattern, matches_any
from onceward.message.vocabulary import (
    CHANNEL_ROLES,
    AckStatus,
    ChannelRole,
    ChannelType,
    Dead,
    DeliveryMode,
    Kind,
    PauseMode,
    Settlement,
)


class ChannelLeases(LaneLeases):
    """Lease one channel's messages, searched by topic patterns; None for any topic."""

    def __init__(self, deps: RuntimeDeps, channel: ChannelInfo) -> None:
        super().__init__(deps, channel_policy(channel))
        self._channel = channel
        self.at_most_once = channel.config.delivery == "at_most_once"

    def claim(
        self,
        wanted: Any,  # noqa: ARG002 - it has no types
        search: tuple[str, ...],
        taken: Taken[LeasedMessage],
    ) -> Sequence[LeasedMessage]:
        """Lease the next message whose topic matches."""
        if disabled_by_environment() or claimable.agenda(self._db.read).paused_at is not None:
            return ()
        self.enter()
        while (seq := self._find(search)) is not None:
            with self._db.outside_handler():
                leased = self._db.write(partial(self._claim, seq=seq, taken=taken))
            if leased:
                return leased
        return ()

    def _claim(
        self, tx: StoreTransaction, seq: int, taken: Taken[LeasedMessage]
    ) -> Sequence[LeasedMessage]:
        found = claim.claim_one(tx, seq, owner=self._owner, lease_for=self.time_for)
        return taken.keep_one(tx, found)

    def _find(self, patterns: tuple[str, ...]) -> int | None:
        fits = partial(matches_any, patterns or None)
        by_rank = self._channel.config.priority_ordering
        return claim.find_in(
            self._db.read, self._channel.name, fits, by_rank=by_rank, now=self._db.now()
        )

    def time_for(self, attempt: int) -> Millis:
        """Return the ack timeout of an attempt, and the delay before the next one, if any."""
        timeout = round(1000 * self._channel.config.ack_timeout)
        if self.policy.exhausted(attempt):
            return timeout
        return timeout + self.policy.delay(attempt, self._deps.rng)

    def problem(self, leased: LeasedMessage) -> Settlement | None:
        """Return the settlement of a message that no reader may see; None for others."""
        problem = super().problem(leased)
        if problem is not None:
            return problem
        size, limit = body_size(Frame.parse(leased.frame)), self._channel.config.max_message_size
        if size > limit:
            error = f"content of {size} bytes exceeds max_message_size {limit}"
            return Dead("invalid", error, tried=False)
        return None


ChannelConsumer = Consumer[LeasedMessage, tuple[str, ...]]


def channel_policy(channel: ChannelInfo) -> RetryPolicy:
    """Return the retry policy of a channel: its backoff, doubled each time, without jitter."""
    return RetryPolicy(Doubling(channel.config.retry_backoff), After(channel.config.attempts))


T = TypeVar("T")
Topics = str | Iterable[str] | None
"""Topics to read: one, or patterns of which one must match; None for all."""


class ChannelOptions(TypedDict, total=False):
    """The keyword arguments that configure a channel; ``ChannelConfig`` explains each."""

    delivery: DeliveryMode
    max_message_size: int
    max_participants: int | None
    ack_timeout: Span
    attempts: int
    retry_backoff: Span
    echo: bool
    sticky: bool
    priority_ordering: bool
    max_pending: int | None
    retain_for: Span | None
    retain_count: int | None
    retain_bytes: int | None
    bound_history: bool
    topics: frozenset[str] | None


FindMessages = Callable[..., Page]
"""Finds past messages of the file by filters; see ``Postbox.history``."""


@checks_arguments(but=("send", "receive"))
class Channel:
    """
    One channel, from the view of this agent.

    The home's directory holds the participants. A send writes one copy for each into the outbox, in
    one commit; received messages are read from the inbox like any other, or here by channel.
    """

    def __init__(
        self,
        name: str,
        *,
        db: Database,
        channel_sender: ChannelSender,
        consumer: InboxConsumer,
        find: FindMessages,
        session: str = DEFAULT_SESSION,
        created: bool = False,
    ) -> None:
        self.name = name
        """Name of the channel."""
        self.session = plain_text("session", session)
        """Conversation in which messages are sent."""
        self.created = created
        """Whether the call that returned this created the channel."""
        self._db, self._channel_sender, self._consumer = db, channel_sender, consumer
        self._directory, self._find = channel_sender.directory, find
        self._leases = ChannelLeases(consumer.deps, channel_sender.info(name))
        self._own_consumer: ChannelConsumer = Consumer(consumer.deps, self._leases)

    def __repr__(self) -> str:
        """Return the repr with the channel and this agent."""
        return f"<Channel {self.name} for {self._db.agent}>"

    def info(self) -> ChannelInfo:
        """Return the channel as it is now; raises UnknownChannel."""
        return self._channel_sender.info(self.name)

    def members(self) -> list[Member]:
        """Return the participants, in the order of joining."""
        return list(self._directory.members(self.name))

    # -- taking part ------------------------------------------------------------------------

    def join(self, role: ChannelRole = "member") -> bool:
        """
        Join the channel; return whether this agent is new in it.

        Raises:
            ValidationFailed: the channel is full.

        """
        return self.add(self._db.agent, role)

    def add(self, agent: str, role: ChannelRole = "member") -> bool:
        """Add a participant; return whether it is new; only the owner may add other agents."""
        if agent != self._db.agent:
            self._only_owner("add others")
        return self._change(
            lambda: channels.join(
                self._directory.database, self.info(), agent, role, self._db.agent
            )
        )

    def add_many(self, agents: Iterable[str], role: ChannelRole = "member") -> int:
        """Add participants, all or none; return how many are new; only the owner may do so."""
        self._only_owner("add others")
        info, directory, me = self.info(), self._directory.database, self._db.agent
        return self._change(
            lambda: directory.write(
                lambda _: sum([channels.join(directory, info, each, role, me) for each in agents])
            )
        )

    def leave(self) -> bool:
        """Leave the channel and end subscriptions; return whether this agent was in it."""
        return self.remove(self._db.agent)

    def remove(self, agent: str) -> bool:
        """Remove a participant; return whether it was one; only the owner removes others."""
        if agent != self._db.agent:
            self._only_owner("remove others")
        return self._change(
            lambda: channels.leave(self._directory.database, self.name, agent, self._db.agent)
        )

    def subscribe(self, pattern: str) -> bool:
        """
        Subscribe to messages that match *pattern*; return whether the subscription is new.

        An agent that is not a participant joins as an observer.
        """
        check_pattern(pattern)
        info = self.info()
        info.config.policy.check_filter(pattern)
        if self._channel_sender.role(self.name) is None:
            self.join("observer")
        return self._change(
            lambda: self._directory.subscribe(self._db.agent, pattern, channel=self.name)
        )

    def unsubscribe(self, pattern: str) -> bool:
        """End a subscription; return whether there was one."""
        return self._directory.unsubscribe(self._db.agent, pattern, channel=self.name)

    # -- states -----------------------------------------------------------------------------

    def pause(self, mode: PauseMode = "hold") -> None:
        """
        Hold (``hold``) or refuse (``reject``) later messages.

        Raises:
            ChannelRefused: its state does not allow it; NotParticipant.

        """
        self._move("paused", mode)

    def resume(self) -> None:
        """Continue: messages that are held at their senders are sent."""
        self._move("active")

    def drain(self) -> None:
        """Refuse new messages; sent ones are still delivered and read."""
        self._move("draining")

    def close(self) -> None:
        """
        End a drained channel: no message can be sent or read any more.

        Messages that still wait for it, at their senders or unread, become dead letters; what a
        reader or handler has begun goes on.

        Raises:
            ChannelRefused: it was not drained; NotParticipant.

        """
        self._move("closed")

    def _move(self, state: str, mode: PauseMode | None = None) -> None:
        self._change(
            lambda: channels.change_state(
                self._directory.database, self.name, state, self._db.agent, mode
            )
        )

    def _only_owner(self, to_do: str) -> None:
        channels.require(
            self._channel_sender.role(self.name), ("owner",), self.name, self._db.agent, to_do
        )

    def _change(self, work: Callable[[], T]) -> T:
        return changed(self._channel_sender, work)

    # -- sending ----------------------------------------------------------------------------

    def send(
        self, body: object, *, kind: Kind = "text", **options: Unpack[SendOptions]
    ) -> SendResult:
        """
        Send one copy to each recipient, in one commit; joins this thread's open transaction.

        Raises:
            ChannelError: see its subclasses; nothing was written.
            ValidationFailed, InvalidMessage, TopicError: nothing was written.

        """
        work = self._channel_sender.prepare(
            self.session, self.name, body, {**parse_options(options), "kind": kind}
        )
        return self._db.write(work)

    def respond(
        self, message: ReceivedMessage[Any], body: object, **options: Unpack[SendOptions]
    ) -> SendResult:
        """Answer a query of this channel, to its sender and in its conversation."""
        options.setdefault("correlation_id", message.correlation_id or message.id)
        options.setdefault("causation_id", message.id)
        options.setdefault("hops", message.frame.hops + 1)
        return self.send(body, kind="response", **options)

    def acknowledge(
        self,
        message: ReceivedMessage[Any],
        status: AckStatus = "completed",
        detail: str | None = None,
    ) -> str:
        """
        Report the progress of this agent to a message's sender; return the acknowledgment's id.

        ``received`` and ``in_progress`` give it another ack timeout, ``completed`` ends it,
        ``failed`` retries it or makes it a dead letter, by the channel's attempts. Both happen in
        one commit.

        Raises:
            LeaseLost: the lease has ended; nothing was written.
            NotParticipant: this agent is not a participant, or the message is the copy of another
            member; nothing was written.

        """
        if (message.frame.recipient, message.channel) != (self._db.agent, self.name):
            raise NotParticipant(
                f"message {message.id} is the copy of {message.frame.recipient} in channel"
                f" {message.channel}: only that member acknowledges it"
            )
        ids = message.id, message.correlation_id or message.id
        tell = self._channel_sender.acknowledging(
            message.session, self.name, message.sender, ids, (status, detail)
        )
        with self._db.transaction() as tx:
            self._settle(message._message, status, detail)
            return tell(tx)

    def _settle(self, message: Message[Any], status: AckStatus, detail: str | None) -> None:
        if message.settled:
            return  # repeated, or after its end: only the sender learns of it
        match status:
            case "completed":
                message.ack()
            case "failed":
                message.retry(reason=detail or "failed")
            case _:
                message.extend(self._leases.time_for(message.attempt) / 1000)

    def detach(self, message: ReceivedMessage[Any]) -> str:
        """
        Keep a message leased beyond this process, and return the handle that ``attach`` takes.

        The lease lasts until the ack timeout. The holder of the handle may settle the message;
        settling it here then raises LeaseLost.
        """
        return self._leases.detach(message._message._lease)

    def attach(self, handle: str, type: TypeForm[Body] | str | None = None) -> Message[Body]:
        """
        Return a message that was detached, in any process of this agent.

        Raises:
            LeaseLost: its lease ran out.

        """
        return self._own_consumer.message(self._leases.attach(handle), type)

    def acknowledgments(self, message_id: str) -> list[Acknowledgment]:
        """Return the recipients' progress with a message that we sent, by its or its copies' id."""
        return channel_posts.acknowledgments_of(self._db, message_id)

    # -- reading ----------------------------------------------------------------------------

    def receive(
        self,
        type: TypeForm[Body] | str | None = None,
        timeout: Span = 0.0,
        *,
        topics: Topics = None,
    ) -> Message[Body] | None:
        """
        Lease this agent's next message of the channel; return None if there is none.

        Waits up to *timeout* seconds. Urgent ones come first, then in order of arrival; *topics*
        selects messages.

        Raises:
            TopicError: no message can ever match; ChannelRefused: it is closed; NotParticipant.

        """
        check_given(Channel.receive, {"type": type, "timeout": timeout, "topics": topics})
        taken = Taken[LeasedMessage]()
        try:
            found = self._receive(type, timeout, topics, taken)
        except BaseException:
            self._own_consumer.give_back(taken)
            raise
        return found

    def _receive(
        self,
        type: TypeForm[Body] | str | None,
        timeout: Span,
        topics: Topics,
        taken: Taken[LeasedMessage],
    ) -> Message[Body] | None:
        patterns = self._readable(topics)
        return until_found(
            self._db,
            lambda: self._own_consumer.take(type, patterns, taken),
            timeout,
            poll=self._consumer.deps.settings.tuning.poll_interval,
            due=lambda left: recovery.next_wakeup(self._db, left),
        )

    def receive_each(
        self, type: TypeForm[Body] | str | None = None, timeout: Span | None = None
    ) -> Iterator[Message[Body]]:
        """
        Yield messages as they arrive.

        Ends when none arrived for *timeout* seconds (None: never).
        """
        while True:
            taken = Taken[LeasedMessage]()
            try:
                message = self._receive(type, 3600.0 if timeout is None else timeout, None, taken)
            except BaseException:
                self._own_consumer.give_back(taken)
                raise
            if message is not None:
                yield message
            elif timeout is not None:
                return

    def _readable(self, topics: Topics) -> tuple[str, ...]:
        info = self.info()
        if info.state == "closed":
            raise ChannelRefused(f"channel {self.name} is closed: it can no longer be read")
        channels.require(
            self._channel_sender.role(self.name), CHANNEL_ROLES, self.name, self._db.agent, "read"
        )
        return info.config.policy.check_filter(topics)

    def history(self, **filters: Unpack[ChannelHistoryFilters]) -> Page:
        """Return past messages of the channel, newest first, without consuming any."""
        return self._find(channel=self.name, **filters)


@checks_arguments(but=("create", "ensure"))  # their errors name the field of a channel
class Channels:
    """The channels of the home."""

    def __init__(
        self,
        db: Database,
        channel_sender: ChannelSender,
        consumer: InboxConsumer,
        find: FindMessages,
    ) -> None:
        self._db, self._channel_sender, self._consumer = db, channel_sender, consumer
        self._directory, self._find = channel_sender.directory, find

    def create(
        self,
        name: str,
        type: ChannelType = "group",
        *,
        description: str = "",
        **config: Unpack[ChannelOptions],
    ) -> Channel:
        """
        Create a channel that this agent owns, configured as in ``ChannelConfig``.

        Raises:
            DuplicateChannel: there is one of that name.
            ValidationFailed: the name or an option breaks its rule.

        """
        made = self.ensure(name, type, description=description, **config)
        channels.refuse_duplicate(name, created=made.created)
        return made

    def ensure(
        self,
        name: str,
        type: ChannelType = "group",
        *,
        description: str = "",
        **config: Unpack[ChannelOptions],
    ) -> Channel:
        """
        Return the channel of that name unchanged; create it if there is none.

        Its ``created`` says whether this call created it.
        """
        checked = channels.checked_config(dict(config))
        created = changed(
            self._channel_sender,
            lambda: channels.create(
                self._directory.database,
                name,
                type,
                self._db.agent,
                config=checked,
                description=description,
            ),
        )
        return self._channel(name, created=created)

    def get(self, name: str, *, session: str = DEFAULT_SESSION) -> Channel:
        """Return a channel, sending in *session*; raises UnknownChannel."""
        return self._channel(name, session=session)

    def delete(self, name: str) -> None:
        """
        Remove a closed channel; its name may be used again.

        Raises:
            ChannelRefused: it is not closed; UnknownChannel, NotParticipant.

        """
        changed(
            self._channel_sender,
            lambda: channels.delete(self._directory.database, name, self._db.agent),
        )

    def _channel(
        self, name: str, *, session: str = DEFAULT_SESSION, created: bool = False
    ) -> Channel:
        return Channel(
            name,
            db=self._db,
            channel_sender=self._channel_sender,
            consumer=self._consumer,
            find=self._find,
            session=session,
            created=created,
        )

    def list(self) -> list[ChannelInfo]:
        """Return all channels by name."""
        return [channels.info(row, row[0]) for row in self._directory.channels()]


def changed(channel_sender: ChannelSender, work: Callable[[], T]) -> T:
    """Change the directory and run the resulting tasks: notices, held messages, late joiners."""
    channel_sender.tasks.begin()
    found = work()
    channel_sender.tasks.run()
    return found


def channels_of(opening: Opening) -> Channels:
    """Return the channels of an opening."""
    deps = opening.deps
    sender = ChannelSender(deps.db, deps.outbox, channel_tasks.of(opening))
    return Channels(deps.db, sender, opening.consumer, partial(_find, opening))


def _find(opening: Opening, **named: Any) -> Page:
    """Find messages by the feature of history, if it is there."""
    return cast("Page", opening.offers["find"](**named))
