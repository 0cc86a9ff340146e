"""Lease the messages of one channel in its order, with its ack timeout and its retries."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final

from onceward.core.engine.engine_loop import RuntimeDeps
from onceward.core.handle import inbox, lanes
from onceward.core.handle.inbox import LeasedMessage
from onceward.core.handle.lanes import Lease
from onceward.core.handle.message import Consumer, LaneLeases, lease_lost
from onceward.errors import InvalidArgument, LeaseLost
from onceward.features.channels.directory import ChannelInfo
from onceward.file.environment import disabled_by_environment
from onceward.message.clock import Millis
from onceward.message.frame import Frame, body_size
from onceward.message.ids import new_token
from onceward.message.retry import RetryPolicy, exponential
from onceward.message.topics import matches
from onceward.message.vocabulary import Dead, Settlement

HANDLE: Final = re.compile(r"(\d+)\.(\d+)\.(\d+)\.(\d+)\.([0-9a-f]+)")
DETACHED: Final = "handed"
"""Owner of leases that no process holds: they are never taken for a dead process's, only expire."""


class ChannelLeases(LaneLeases):
    """Lease one channel's messages; what is searched are topic patterns, any topic for none."""

    def __init__(self, deps: RuntimeDeps, channel: ChannelInfo) -> None:
        super().__init__(deps, channel_policy(channel))
        self._channel = channel
        self.at_most_once = channel.config.delivery == "at_most_once"

    def claim(self, wanted: Any, search: tuple[str, ...]) -> Sequence[LeasedMessage]:  # noqa: ARG002 - it has no types
        """Lease the next message whose topic matches."""
        if disabled_by_environment() or lanes.agenda(self._db.read).paused_at is not None:
            return ()
        while (seq := self._find(search)) is not None:
            with self._db.outside_handler():
                leased = self._db.write(
                    lambda tx, seq=seq: inbox.claim_one(  # type: ignore[misc]
                        tx, seq, owner=self._owner, lease_for=self.time_for
                    )
                )
            if leased is not None:
                return (leased,)
        return ()

    def _find(self, patterns: tuple[str, ...]) -> int | None:
        def fits(topic: str | None) -> bool:
            return not patterns or (
                topic is not None and any(matches(pattern, topic) for pattern in patterns)
            )

        by_rank = self._channel.config.priority_ordering
        return inbox.find_in(
            self._db.read, self._channel.name, fits, by_rank=by_rank, now=self._db.now()
        )

    def time_for(self, attempt: int) -> Millis:
        """Return the ack timeout of an attempt, and the delay before the next one if there is."""
        timeout = round(1000 * self._channel.config.ack_timeout)
        if self.policy.exhausted(attempt):
            return timeout
        return timeout + self.policy.delay(attempt, self._deps.rng)

    def problem(self, leased: LeasedMessage) -> Settlement | None:
        """Return how a message ends that no reader may see, None for all others."""
        problem = super().problem(leased)
        if problem is not None:
            return problem
        size, limit = body_size(Frame.parse(leased.frame)), self._channel.config.max_message_size
        if size > limit:
            error = f"content of {size} bytes exceeds max_message_size {limit}"
            return Dead("invalid", error, tried=False)
        return None

    # -- leases that outlive a process ------------------------------------------------------

    def detach(self, leased: LeasedMessage) -> str:
        """Take a lease from this process; return the handle that ``attach`` takes."""
        secret = new_token()
        if not self._db.write(lambda tx: lanes.transfer(tx, leased.lane, f"{DETACHED}/{secret}")):
            raise lease_lost(leased)
        return f"{leased.seq}.{leased.lane.lane_id}.{leased.lane.token}.{leased.attempt}.{secret}"

    def attach(self, handle: str) -> LeasedMessage:
        """
        Return the lease of a handle; settling it proves that it is still held.

        Raises:
            InvalidArgument: *handle* is not what ``detach`` returned.
            LeaseLost: the message was settled, or its time ran out.

        """
        parts = HANDLE.fullmatch(handle)
        if parts is None:
            msg = "that is no handle: give what detach returned"
            raise InvalidArgument(msg)
        seq, lane_id, token, attempt = map(int, parts.groups()[:4])
        lane = Lease(lane_id, token, f"{DETACHED}/{parts[5]}", isolate=False)
        found = inbox.find_held(self._db.read, seq, lane, attempt)
        if found is None:
            msg = (
                "that message is no longer held: it was settled, "
                "or its time ran out and another reader has it"
            )
            raise LeaseLost(msg)
        return found


ChannelConsumer = Consumer[LeasedMessage, tuple[str, ...]]


def channel_policy(channel: ChannelInfo) -> RetryPolicy:
    """Return the retries of a channel: its backoff, doubled each time, without jitter."""
    return exponential(channel.config.retry_backoff, channel.config.max_retries)
