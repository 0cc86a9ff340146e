"""Represent a message that is read without a lease, so that nothing is to be settled."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from onceward.errors import InvalidMessage
from onceward.message.body import decode
from onceward.message.clock import Millis
from onceward.message.frame import Frame
from onceward.message.vocabulary import Priority


@dataclass(frozen=True, slots=True)
class MessageRecord:
    """A message as a reader sees it; ``body`` is None where ``problem`` says why."""

    frame: Frame
    """The message as it travelled, with every attribute."""
    body: Any
    received_at: Millis
    """When it was committed into the inbox."""
    problem: str | None = None
    """Why the body cannot be read: lost, damaged, or of another type than was asked for."""

    def __repr__(self) -> str:
        """Name the record without its body, which may be secret or large."""
        return f"<MessageRecord {self.id} {self.type} from {self.sender}>"

    @property
    def id(self) -> str:
        """The message's id."""
        return self.frame.id

    @property
    def sender(self) -> str:
        """The agent that sent it."""
        return self.frame.sender

    @property
    def session(self) -> str:
        """The conversation that it belongs to."""
        return self.frame.session

    @property
    def type(self) -> str:
        """Its message type."""
        return self.frame.type

    @property
    def topic(self) -> str | None:
        """The topic it was published under, if any."""
        return self.frame.topic

    @property
    def priority(self) -> Priority:
        """Its priority by name."""
        return self.frame.priority_name

    @property
    def correlation_id(self) -> str | None:
        """Id of the conversation's first message, if it follows one."""
        return self.frame.correlationid

    @property
    def in_reply_to(self) -> str | None:
        """Id of the message that it answers, if it does."""
        return self.frame.inreplyto or self.frame.causationid

    @property
    def expires_at(self) -> Millis | None:
        """The moment from which it is expired; None is never."""
        return self.frame.expires_at

    @property
    def tags(self) -> tuple[str, ...]:
        """Its tags, from the header ``tags``."""
        return self.frame.tags

    @property
    def late(self) -> bool:
        """Whether it answers a channel's query and came after the query's time to live."""
        return self.frame.is_late(self.received_at)

    @property
    def headers(self) -> dict[str, str | int | bool]:
        """The extension attributes that the sender added."""
        return self.frame.headers


def read_record(
    text: str, received_at: Millis, wanted: Any = None, *, sound: bool = True
) -> MessageRecord:
    """
    Return a stored frame as a record, its body read as *wanted*.

    A body that cannot be read is reported as ``problem`` and blocks no other message.

    Raises:
        InvalidMessage: the text is no frame at all.

    """
    frame = Frame.parse(text)
    if not sound:
        return MessageRecord(
            frame, None, received_at, "the stored message does not match its digest"
        )
    if frame.body_error is not None:
        return MessageRecord(frame, None, received_at, frame.body_error)
    try:
        body = decode(frame.data, frame.data_base64, wanted)
    except InvalidMessage as error:
        return MessageRecord(frame, None, received_at, str(error))
    return MessageRecord(frame, body, received_at)
