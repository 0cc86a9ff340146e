"""From a stored message to what a run sees of it, or to how it ends without one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from onceward.errors import InvalidMessage
from onceward.model.body import decode
from onceward.model.clock import Millis
from onceward.model.frame import Frame
from onceward.model.queue_modes import WORKER_RESULT
from onceward.model.states import Dead, Settlement
from onceward.store.inbox import LeasedMessage
from onceward.store.lanes import Lease


class ReadMessage(NamedTuple):
    """A message whose frame and body could be read."""

    leased: LeasedMessage
    frame: Frame
    body: Any

    @property
    def thread(self) -> tuple[str, str | None] | None:
        """Where a reply goes and which conversation it is of; results of tasks want no reply and go with any."""
        if self.frame.type == WORKER_RESULT:
            return None
        return self.frame.replyto or self.frame.sender, self.frame.correlationid

    def held_by(self, held: Lease) -> ReadMessage:
        """Return the same message under a lease."""
        return self._replace(leased=self.leased._replace(lane=held))


def problem(leased: LeasedMessage, now: Millis, spent: bool) -> Settlement | None:  # noqa: FBT001 - one question, one answer
    """Return how a message ends that must not reach a run, None for all others."""
    if (unfit := leased.undeliverable(now)) is not None:
        return unfit
    if spent:
        return Dead(
            "max_retries_exceeded", "its runs never came to an end: process killed or lease lost"
        )
    return None


def read(leased: LeasedMessage, models: Mapping[str, type]) -> ReadMessage | Settlement:
    """Return a message's frame and body, as the class of its type where there is one."""
    try:
        frame = Frame.parse(leased.frame)
        return ReadMessage(
            leased, frame, decode(frame.data, frame.data_base64, models.get(frame.type))
        )
    except InvalidMessage as error:
        return Dead("rejected", str(error))
