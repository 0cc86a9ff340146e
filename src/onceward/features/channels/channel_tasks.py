"""Run the background tasks of channels: serve late joiners, release held messages, notify."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from typing import Any, Final

from onceward.core.contract import Opening
from onceward.core.rows.outbox import OutgoingMessage
from onceward.core.run.event_emitter import EventEmitter
from onceward.core.send.add import Outbox
from onceward.core.send.fanout import Fanout, compose_fanout
from onceward.errors import UnknownChannel
from onceward.features.channels import channel_posts, closed
from onceward.features.channels import directory as channels
from onceward.features.channels.closed import ClosedChannels
from onceward.features.channels.directory import ChannelInfo
from onceward.file import identity
from onceward.file.database import Database
from onceward.file.directory import DirectoryCache
from onceward.file.transaction import StoreTransaction
from onceward.hooks import Hooks
from onceward.message.clock import monotonic
from onceward.message.frame import split_digest
from onceward.message.options import FrameHeaders, MessageOptions, json_string, render_head
from onceward.message.topics import matches_any

DEAD: Final = "_system.message.deadletter"
DEAD_FACTS: Final = ("id", "origin", "peer", "session", "type", "reason", "error", "attempts")
SYSTEM_SESSION: Final = "_system"
"""Session of all notices."""


class ChannelTasks:
    """
    Does the follow-up work of changes in the directory or the file.

    Each task stores its position in the transaction of its work, so a crash neither repeats nor
    skips work.
    """

    def __init__(
        self,
        db: Database,
        outbox: Outbox,
        directory: DirectoryCache,
        *,
        hooks: Hooks,
        engines: Callable[[], bool],
    ) -> None:
        self._db, self._outbox, self.directory = db, outbox, directory
        self._engines = engines
        self._closed = ClosedChannels(db, directory, EventEmitter(hooks, db.agent))

    def run(self) -> None:
        """Run the due tasks; do nothing inside an open transaction, which may be undone."""
        if self._db.writer.held:
            return
        within = closed.TURN if self._engines() else math.inf
        until = monotonic() + within
        self.end_closed(within)
        if monotonic() >= until:  # more is left, which is neither released nor served
            return
        for kind, name, position, held in channel_posts.tasks(self._db.read):
            if kind == "channel":
                self._channel(name, position, held=bool(held))
            elif kind == "notices":
                self._notices(position)
            else:
                self._dead_letters(position)

    # -- channels ---------------------------------------------------------------------------

    def _channel(self, name: str, position: int, *, held: bool) -> None:
        try:
            found = channels.info(self.directory.channel(name), name)
        except UnknownChannel:
            found = None
        if found is None or found.state == "closed":
            self._db.write(lambda tx: channel_posts.end_tasks(tx, name))
            return
        if found.config.sticky and self.directory.newest(name) > position:
            self._db.write(lambda tx: self.serve(tx, found))
        if held and found.state in ("active", "draining"):
            self._db.write(lambda tx: self.release(tx, found))

    def end_closed(self, within: float = math.inf) -> int:
        """Make dead letters of what waits for closed channels; return how many."""
        if self._db.writer.held or identity.is_paused(self._db.read):
            return 0
        return self._closed.end(within)

    def release(self, tx: StoreTransaction, found: ChannelInfo) -> None:
        """Release the held messages that there is room for, the oldest first."""
        most = found.config.max_pending
        free = -1 if most is None else max(0, most - channel_posts.under_way(tx, found.name))
        if free and channel_posts.release(tx, found.name, free):
            tx.after_commit(lambda: self._db.notifier.notify("out"))

    def serve(self, tx: StoreTransaction, found: ChannelInfo) -> None:
        """
        Send the retained messages to newly joined agents, in order.

        The position moves in the same transaction.
        """
        task = channel_posts.task(tx, "channel", found.name)
        newest = self.directory.newest(found.name)
        if task is None or newest <= task.position:
            return
        channel_posts.trim(tx, found)
        for late, wanted, known in self._late(found, task.position):
            posts = channel_posts.retained(tx, found.name)
            for post in [post for post in posts if _wants(post.topic, wanted, known)]:
                message_id, agent = self._outbox.composer.mint(), self._db.agent
                copy = _copy(post, late, found.name, agent=agent, message_id=message_id)
                self._outbox.add(tx, copy)
        channel_posts.advance(tx, "channel", found.name, newest)

    def _late(
        self, found: ChannelInfo, after: int
    ) -> list[tuple[str, Sequence[str] | None, Sequence[str]]]:
        """
        Return the agents that joined or subscribed after a number, other than this one.

        Each with its new patterns (None: all topics) and those that it had before.
        """
        me = None if found.config.echo else self._db.agent
        if found.type != "pubsub":
            return [
                (m.agent, None, ())
                for m in self.directory.members(found.name)
                if m.number > after and m.agent != me
            ]
        late: dict[str, tuple[list[str], list[str]]] = {}
        for number, subscriber, pattern in self.directory.subscriptions(found.name):
            late.setdefault(subscriber, ([], []))[number <= after].append(pattern)
        return [
            (subscriber, new, known)
            for subscriber, (new, known) in late.items()
            if new and subscriber != me
        ]

    def prune_history(self, limit: int) -> int:
        """Delete a slice of history above the channels' bounds; return how many messages."""
        if not self.directory.home.known:
            return 0
        for row in self.directory.channels():
            config = channels.info(row, row[0]).config
            count = config.retain_count
            if config.bound_history and count is not None:
                gone = self._db.write(
                    lambda tx, name=row[0], count=count: channel_posts.prune_history(  # type: ignore[misc]
                        tx, name, count=count, limit=limit
                    )
                )
                if gone:
                    return gone
        return 0

    # -- notifying --------------------------------------------------------------------------

    def _notices(self, position: int) -> None:
        directory = self.directory.database
        found = channel_posts.notices(directory.read, self._db.agent, position)
        if found:
            fanouts = [self._fan(topic, json.loads(body)) for _, topic, body in found]
            self._db.write(lambda tx: self._publish(tx, fanouts, "notices", position, found[-1][0]))
            upto = found[-1][0]
            directory.write(lambda tx: channel_posts.forget_notices(tx, self._db.agent, upto))

    def _dead_letters(self, position: int) -> None:
        """Notify the home about new dead letters; the task ends with the last of them."""
        upto = channel_posts.last_dead_letter(self._db.read)  # before asking for listeners
        fanouts: list[Fanout] = []
        if self.directory.home.known and self.directory.subscribers(DEAD):
            found = channel_posts.next_dead_letters(self._db.read, position)
            fanouts = [
                self._fan(DEAD, dict(zip(DEAD_FACTS, row[1:], strict=True))) for row in found
            ]
            upto = found[-1][0] if found else upto
        self._db.write(lambda tx: self._tell_dead(tx, fanouts, position, upto))

    def _tell_dead(
        self, tx: StoreTransaction, fanouts: list[Fanout], position: int, upto: int
    ) -> None:
        self._publish(tx, fanouts, "dead_letters", position, upto)
        channel_posts.end_telling(tx)

    def _fan(self, topic: str, body: dict[str, Any]) -> Fanout:
        options = MessageOptions(topic=topic, type="notification", kind="notification", system=True)
        found, composer = self.directory.subscribers(topic), self._outbox.composer
        return compose_fanout(composer, SYSTEM_SESSION, found, body, options, rooted=False)

    def _publish(
        self, tx: StoreTransaction, fanouts: list[Fanout], kind: str, position: int, upto: int
    ) -> None:
        task = channel_posts.task(tx, kind, "")
        if task is None or task.position != position:
            return  # another process was faster
        for fanout in fanouts:
            self._outbox.add_fanout(tx, fanout)
        channel_posts.advance(tx, kind, "", upto)

    def begin(self) -> None:
        """Start sending notices about this agent's changes in the directory; idempotent."""
        if not channel_posts.is_telling(self._db.read):
            self._db.write(lambda tx: channel_posts.start(tx, "notices", "", 0))


def _wants(topic: str | None, wanted: Sequence[str] | None, known: Sequence[str]) -> bool:
    if wanted is None:
        return True
    return matches_any(wanted, topic) and not matches_any(known, topic)


def _copy(
    post: channel_posts.RetainedPost, late: str, channel: str, *, agent: str, message_id: str
) -> OutgoingMessage:
    """Return a retained post as a new message; only its id and recipient are new."""
    frame = render_head(f"{post.head}{json_string(late)}{post.tail}", message_id, post.created_at)
    headers = FrameHeaders(
        sender=agent,
        recipient=late,
        type=post.type,
        session=post.session,
        lane=post.lane,
        topic=post.topic,
        rank=post.rank,
        expires_at=post.expires_at,
        channel=channel,
        kind=post.kind,
        correlation_id=post.correlation_id,
    )
    return OutgoingMessage(
        headers=headers,
        id=message_id,
        recipient=late,
        frame=frame,
        digest=split_digest(frame, post.body_digest),
        created_at=post.created_at,
        body_id=post.body_id,
    )


def of(opening: Opening) -> ChannelTasks:
    """Return the tasks of an opening."""
    return opening.once(_made)


def _made(opening: Opening) -> ChannelTasks:
    deps = opening.deps
    return ChannelTasks(
        deps.db, deps.outbox, opening.directory, hooks=deps.hooks, engines=opening.started
    )


def run(opening: Opening) -> None:
    """Run the due tasks of an opening."""
    of(opening).run()


def maintain(opening: Opening, limit: int) -> int:
    """End what waits for closed channels, and prune a slice of history; return how many."""
    return of(opening).end_closed() or of(opening).prune_history(limit)
