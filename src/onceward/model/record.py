"""A letter: a message that is read without being owned. Nothing is to be settled."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from onceward.errors import InvalidMessage
from onceward.model.body import decode
from onceward.model.clock import Millis
from onceward.model.frame import Frame


@dataclass(frozen=True, slots=True)
class MessageRecord:
    """A message as a reader sees it: ``body`` is None where ``problem`` says why it cannot be read."""

    frame: Frame
    """The message as it travelled, with every attribute."""
    body: Any
    received_at: Millis
    """When it was committed into the inbox."""
    problem: str | None = None
    """Why the body cannot be had: damaged, or not what was asked for. The message is delivered all the same."""

    def __repr__(self) -> str:
        """Name the letter without its body, which may be secret or large."""
        return f"<Letter {self.id} {self.type} from {self.sender}>"

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
    def priority(self) -> str:
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
        """From when on nobody wants it; None is never."""
        return self.frame.expires_at

    @property
    def headers(self) -> dict[str, str | int | bool]:
        """The extension attributes that the sender added."""
        return self.frame.headers


def read_record(
    text: str, received_at: Millis, wanted: Any = None, *, sound: bool = True
) -> MessageRecord:
    """
    Return the letter that a stored frame is, its body read as *wanted*.

    A body that cannot be read is told as ``problem`` and blocks nobody.

    Raises:
        InvalidMessage: the text is no frame at all.

    """
    frame = Frame.parse(text)
    if not sound:
        return MessageRecord(
            frame, None, received_at, "the stored message does not match its digest"
        )
    try:
        body = decode(frame.data, frame.data_base64, wanted)
    except InvalidMessage as error:
        return MessageRecord(frame, None, received_at, str(error))
    return MessageRecord(frame, body, received_at)
