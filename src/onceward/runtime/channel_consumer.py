"""The reader's side of a channel: its messages in its order, with its own time to settle them and its own retries."""

from __future__ import annotations

import re
from typing import Any, Final

from onceward.db.environment import disabled_by_environment
from onceward.errors import InvalidArgument, LeaseLost
from onceward.model.body import decode
from onceward.model.clock import Millis
from onceward.model.frame import Frame
from onceward.model.ids import new_token
from onceward.model.retry import RetryPolicy, exponential
from onceward.model.states import Dead, Settlement
from onceward.model.topics import matches
from onceward.runtime.consumer import Consumer
from onceward.runtime.message import Message
from onceward.store import inbox, lanes
from onceward.store.accept import body_size
from onceward.store.directory.channels import ChannelInfo
from onceward.store.inbox import LeasedMessage
from onceward.store.lanes import Lease

HANDLE: Final = re.compile(r"(\d+)\.(\d+)\.(\d+)\.(\d+)\.([0-9a-f]+)")
HANDED: Final = "handed"
"""Owner of leases that no process holds: nobody finds it dead, so that only their end takes them back."""


def channel_policy(found: ChannelInfo) -> RetryPolicy:
    """Return the retries of a channel: doubling from its backoff, so many re-attempts, no jitter."""
    config = found.config
    return exponential(config.retry_backoff, config.max_retries)


class ChannelConsumer(Consumer):
    """Hands out the messages of one channel to this agent and settles them."""

    def __init__(self, found: ChannelInfo, desk: Consumer) -> None:
        super().__init__(desk.db, **desk.tools, policy=channel_policy(found))
        self._found = found

    def take_from(self, wanted: Any, topics: tuple[str, ...]) -> Message[Any] | None:
        """
        Lease the next message whose topic matches and return it, None where there is none.

        On a channel that delivers at most once its mark is committed before it
        is returned.
        """
        while (leased := self._lease(topics)) is not None:
            message = self._open(leased, wanted)
            if message is not None:
                return message
        return None

    def _lease(self, topics: tuple[str, ...]) -> LeasedMessage | None:
        [(paused_at, _, _)] = self._db.read(lanes.AGENDA)
        if disabled_by_environment() or paused_at is not None:
            return None
        while (seq := self._find(topics)) is not None:
            with self._db.outside_handler():
                leased = self._db.write(
                    lambda tx, seq=seq: inbox.claim_one(  # type: ignore[misc]
                        tx, seq, owner=self._owner, lease_for=self.time_for
                    )
                )
            if leased is not None:
                return leased
        return None

    def _find(self, topics: tuple[str, ...]) -> int | None:
        def fits(topic: str | None) -> bool:
            return not topics or (
                topic is not None and any(matches(pattern, topic) for pattern in topics)
            )

        by_rank = self._found.config.priority_ordering
        return inbox.find_in(
            self._db.read, self._found.name, fits, by_rank=by_rank, now=self._db.now()
        )

    def time_for(self, attempt: int) -> Millis:
        """Return how long an attempt has: the ack timeout, and the pause that would follow it."""
        timeout = round(1000 * self._found.config.ack_timeout)
        return (
            timeout
            if self._policy.exhausted(attempt)
            else timeout + self._policy.delay(attempt, self._rng)
        )

    def _open(self, leased: LeasedMessage, wanted: Any) -> Message[Any] | None:
        message = super()._open(leased, wanted)
        if message is not None and self._found.config.delivery == "at_most_once":
            message.ack()
        return message

    def _problem(self, leased: LeasedMessage) -> Settlement | None:
        problem = super()._problem(leased)
        if problem is not None:
            return problem
        size, limit = body_size(Frame.parse(leased.frame)), self._found.config.max_message_size
        return (
            Dead("invalid", f"content of {size} bytes exceeds max_message_size {limit}")
            if size > limit
            else None
        )

    def detach(self, message: Message[Any]) -> str:
        """Take a lease out of this process's hands; return the handle under which another goes on."""
        leased: LeasedMessage = message._lease
        secret = new_token()
        if not self._db.write(lambda tx: lanes.transfer(tx, leased.lane, f"{HANDED}/{secret}")):
            msg = f"the lease on message {leased.id} ran out; another reader has it"
            raise LeaseLost(msg)
        return f"{leased.seq}.{leased.lane.lane_id}.{leased.lane.token}.{leased.attempt}.{secret}"

    def attach(self, handle: str, wanted: Any) -> Message[Any]:
        """Return the message of a handle; whether its lease still holds is proven by whatever is done with it."""
        parts = HANDLE.fullmatch(handle)
        if parts is None:
            msg = "that is no handle: give what detach returned"
            raise InvalidArgument(msg)
        seq, lane_id, token, attempt = map(int, parts.groups()[:4])
        lane = Lease(lane_id, token, f"{HANDED}/{parts[5]}", isolate=False)
        rows = self._db.read(inbox.HANDED, (seq, lane_id, token, lane.owner))
        if not rows:
            msg = "that message is no longer held: it was settled, or its time ran out and another reader has it"
            raise LeaseLost(msg)
        leased = LeasedMessage(lane, *(*rows[0][:-1], attempt, rows[0][-1]))
        frame = Frame.parse(leased.frame)
        return Message(
            leased,
            frame,
            decode(frame.data, frame.data_base64, None if isinstance(wanted, str) else wanted),
            self,
        )
