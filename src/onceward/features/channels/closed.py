"""
End what waits for closed channels: in the outbox, in the inbox, and on arrival.

A channel is over for a message if it is closed, if it was removed, or if it was created again
since: a message is never older than its channel, see ``ChannelSender.prepare``. Acknowledgments are
not ended, because they report about messages that were read before.

A message that its handler has begun goes on: under a lease, of a run, or with requests or steps.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from functools import partial
from typing import Any, Final

from onceward.core.accept.policy import ParsedFrame
from onceward.core.end import received, sent
from onceward.core.run.event_emitter import EventEmitter
from onceward.errors import ChannelRefused, InvalidMessage, OncewardError
from onceward.features.channels import channel_posts
from onceward.features.channels.directory import info
from onceward.file.database import Database
from onceward.file.directory import DirectoryCache, DirectoryDatabase, DirectoryHandle
from onceward.file.transaction import StoreTransaction
from onceward.message.clock import Millis, monotonic
from onceward.message.frame import Frame
from onceward.message.vocabulary import reason_text

OVER: Final[Millis] = (1 << 63) - 1
"""Every message is older."""
TURN: Final = 0.05
"""Seconds that a task of the dispatcher may take before the others have their turn."""
SLICE: Final = 200
"""Maximum messages that one commit ends."""


def _channels(table: str, where: str) -> str:
    """Return the statement that lists the channels of waiting rows, by one look for each."""
    return f"""
WITH RECURSIVE next(name) AS (
    SELECT min(channel) FROM {table} WHERE channel IS NOT NULL AND {where}
    UNION ALL
    SELECT (SELECT min(channel) FROM {table} WHERE channel > next.name AND {where})
      FROM next WHERE next.name IS NOT NULL
)
SELECT name FROM next WHERE name IS NOT NULL
"""


UNSENT: Final = "state = 'pending' AND sent_at IS NULL"
SENDING_TO: Final = _channels("_onceward_outbox", UNSENT)
RECEIVING_FROM: Final = _channels("_onceward_inbox", "state = 'pending'")
# Messages to an earlier channel of the name have lower sequences: only the first ones are read.
OLDEST_UNSENT: Final = f"""
SELECT seq
  FROM (SELECT seq, created_at
          FROM _onceward_outbox
         WHERE channel = :channel AND {UNSENT} AND kind IS NOT '{channel_posts.ACKNOWLEDGMENT}'
         ORDER BY seq LIMIT :limit)
 WHERE created_at < :before
"""
# Whether an unread message may be older than the channel; by the time of its arrival, which is
# read without its frame.
ANY_OLDER: Final = """
SELECT 1
  FROM (VALUES (0), (1), (2), (3), (4)) AS r
 WHERE (SELECT received_at
          FROM _onceward_inbox
         WHERE channel = :channel AND state = 'pending' AND rank = r.column1
         ORDER BY seq LIMIT 1) < :before
 LIMIT 1
"""
UNREAD: Final = """
SELECT b.seq,
       b.run_seq IS NULL AND b.received_at < :before
       AND (l.owner IS NULL OR l.sender IS NULL)
       AND (:senders IS NULL OR b.sender IN (SELECT value FROM json_each(:senders)))
       AND instr(b.frame, '"callersession"') = 0
       AND NOT EXISTS (SELECT 1 FROM _onceward_pending_replies AS r WHERE r.asker_seq = b.seq)
       AND NOT EXISTS (SELECT 1 FROM onceward_steps AS s
                        WHERE s.message_id = b.id AND s.sender = b.sender)
  FROM _onceward_inbox AS b JOIN _onceward_lanes AS l ON l.lane_id = b.lane_id
"""
NEXT_UNREAD: Final = f"""{UNREAD}
 WHERE b.channel = :channel AND b.state = 'pending' AND b.rank = :rank AND b.seq > :after
 ORDER BY b.seq LIMIT :limit
"""
STILL_UNREAD: Final = f"""{UNREAD}
 WHERE b.seq IN (SELECT value FROM json_each(:seqs)) AND b.state = 'pending'
"""
FRAMES: Final = """
SELECT seq, frame FROM _onceward_inbox WHERE seq IN (SELECT value FROM json_each(?))
"""
# In the directory.
STATES: Final = """
SELECT j.value, c.state, c.created_at
  FROM json_each(?) AS j LEFT JOIN channels AS c ON c.name = j.value
"""
REGISTERED: Final = "SELECT name FROM agents WHERE name IN (SELECT value FROM json_each(?))"


def reason_of(channel: str) -> str:
    """Return the explanation of a dead letter."""
    return f"channel {channel} was closed"


def over_before(row: Sequence[Any] | None) -> Millis:
    """Return the time before which messages to a channel are over, from its directory row."""
    if row is None or row[2] == "closed":
        return OVER
    created_at: Millis = row[-1]
    return created_at


def refuse(home: DirectoryHandle, agent: str, frames: list[ParsedFrame]) -> list[ParsedFrame]:
    """Return the frames of a parcel; refuse those of channels that are over."""
    del agent  # of any recipient
    posts = [each.frame for each in frames if each.frame is not None and _is_post(each.frame)]
    try:
        before = _over_in(home.directory, posts) if posts and home.known else {}
    except OncewardError:  # the directory fails: what has closed ends later, by ``ClosedChannels``
        return frames
    gone = {post.id for post in posts if _sent_at(post) < before.get(post.channel or "", 0)}
    return [
        each._replace(problem=reason_text("channel_closed", reason_of(each.frame.channel or "")))
        if each.frame is not None and each.frame.id in gone
        else each
        for each in frames
    ]


def _is_post(frame: Frame) -> bool:
    """Return whether a message belongs to a channel and can be read there."""
    return frame.channel is not None and frame.kind != channel_posts.ACKNOWLEDGMENT


def _over_in(directory: DirectoryDatabase, posts: list[Frame]) -> dict[str, Millis]:
    """Return the times before which messages to the channels of *posts* are over."""
    named = sorted({post.channel or "" for post in posts})
    found = directory.read(STATES, (json.dumps(named),))
    before = {
        name: OVER if state == "closed" else created_at
        for name, state, created_at in found
        if state is not None
    }
    if unknown := [name for name in named if name not in before]:
        senders = json.dumps(sorted({post.sender for post in posts}))
        ours = directory.read(REGISTERED, (senders,))
        before |= dict.fromkeys(unknown if ours else (), OVER)
    return before


def check_replay(directory: DirectoryCache, frame: Frame, *, as_new: bool) -> Millis:
    """
    Return the earliest time of a message that is sent again in the channel of *frame*.

    Raises:
        ChannelRefused: the channel is over for it or, *as_new*, accepts no messages.

    """
    name, row = frame.channel, None
    if name is None or not _is_post(frame) or not directory.home.known:
        return 0
    row = directory.channel(name)
    if row is None:
        said = "was removed"
        if frame.sender not in (directory.agent, *directory.other_agents()):
            return 0
    elif as_new:
        if row[2] in ("active", "paused"):
            return info(row, name).created_at
        said = f"is {row[2]}"
    elif _sent_at(frame) < over_before(row):
        said = "is closed" if row[2] == "closed" else "is another one of the name"
    else:
        return 0
    msg = f"channel {name} {said}: nothing was written; send to another channel, or discard"
    raise ChannelRefused(msg)


def _sent_at(frame: Frame) -> Millis:
    """Return when a message was sent; one without a time is as young as its channel."""
    return OVER - 1 if frame.time is None else round(frame.time.timestamp() * 1000)


def _is_older(text: str, before: Millis) -> bool:
    """Return whether a stored message was sent before a time; not if its frame is damaged."""
    try:
        return _sent_at(Frame.accepted(text)) < before
    except InvalidMessage:
        return False


class ClosedChannels:
    """Ends the messages of one file that wait for channels that are over."""

    def __init__(self, db: Database, directory: DirectoryCache, emitter: EventEmitter) -> None:
        self._db, self._directory, self._emitter = db, directory, emitter

    def end(self, within: float = math.inf) -> int:
        """
        End all that may end now, one slice per commit; return how many.

        It stops after *within* seconds: the dispatcher, which has other work, is notified of the
        last commit, and comes back.
        """
        if not self._directory.home.known:
            return 0
        until = monotonic() + within
        sending = [name for (name,) in self._db.read(SENDING_TO)]
        unread = [name for (name,) in self._db.read(RECEIVING_FROM)]
        count = sum(self._end_unsent(name, until) for name in sending)
        return count + sum(self._end_unread(name, until) for name in unread)

    def _end_unsent(self, name: str, until: float) -> int:
        before, count = over_before(self._directory.channel(name)), 0
        wanted = {"channel": name, "before": before, "limit": SLICE}
        while self._db.read(OLDEST_UNSENT, wanted):
            count += self._db.write(partial(self._bury_unsent, wanted=wanted))
            if monotonic() >= until:
                break
        return count

    def _bury_unsent(self, tx: StoreTransaction, wanted: dict[str, Any]) -> int:
        seqs = [seq for (seq,) in tx.rows(OLDEST_UNSENT, wanted)]
        error = reason_of(wanted["channel"])
        moved = sent.bury(tx, seqs, reason="channel_closed", error=error)
        self._emitter.dead_lettered(tx, [(i, peer, "channel_closed") for i, peer in moved])
        return len(seqs)

    def _end_unread(self, name: str, until: float) -> int:
        row = self._directory.channel(name)
        before, senders = over_before(row), None
        if row is None:  # a peer elsewhere may know a channel that never was in this home
            senders = json.dumps([self._db.agent, *self._directory.other_agents()])
        wanted = {"channel": name, "before": before, "senders": senders, "limit": SLICE}
        if before < OVER and not self._db.read(ANY_OLDER, wanted):
            return 0
        return sum(self._end_unread_of(wanted | {"rank": rank}, until) for rank in range(5))

    def _end_unread_of(self, wanted: dict[str, Any], until: float) -> int:
        """End a channel's unread messages of one rank."""
        count, after = 0, 0
        while rows := self._db.read(NEXT_UNREAD, wanted | {"after": after}):
            after = rows[-1][0]
            if seqs := self._older([seq for seq, ends in rows if ends], wanted["before"]):
                count += self._db.write(partial(self._bury_unread, wanted=wanted, seqs=seqs))
            elif wanted["before"] < OVER:
                break
            if monotonic() >= until:
                break
        return count

    def _older(self, seqs: list[int], before: Millis) -> list[int]:
        """Return those of some messages that were sent before a time."""
        if before == OVER or not seqs:
            return seqs
        frames = self._db.read(FRAMES, (json.dumps(seqs),))
        return [seq for seq, text in frames if _is_older(text, before)]

    def _bury_unread(
        self, tx: StoreTransaction, wanted: dict[str, Any], seqs: Sequence[int]
    ) -> int:
        rows = tx.rows(STILL_UNREAD, wanted | {"seqs": json.dumps(seqs)})
        left = [seq for seq, ends in rows if ends]
        moved = received.bury_unclaimed(tx, left, "channel_closed", reason_of(wanted["channel"]))
        self._emitter.dead_lettered(tx, [(i, peer, "channel_closed") for i, peer in moved])
        return len(left)
