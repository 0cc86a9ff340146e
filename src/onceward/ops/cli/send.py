"""``onceward send``, and the options of all commands that send."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated, Any

from cyclopts import Parameter

from onceward import Postbox
from onceward.errors import InvalidMessage
from onceward.ops.cli.command import Found, command
from onceward.ops.cli.durations import MaybeDate, MaybeSpan
from onceward.ops.cli.exit_codes import Usage
from onceward.ops.cli.options import PRIORITY, Body, Quiet, said
from onceward.ops.cli.output import note
from onceward.ops.cli.stdin import body_from_stdin
from onceward.ops.cli.target import CONVERSATION, Conversation, in_session
from onceward.ops.typed_body import typed_body

To = Annotated[str, said("A registered peer, or an agent whose file is in the same folder.")]
Deliver = Annotated[bool, Quiet, said("Also deliver due messages; failed ones stay in the outbox.")]
Priority = Annotated[str, said(PRIORITY)]
Tags = Annotated[list[str] | None, Parameter(name="--tag", negative=())]


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Options:
    """Options of every command that sends."""

    type: str | None = None
    """Wire name of the message's type; default json, or text for plain text."""
    key: str | None = None
    """Idempotency key: the same key with the same message is one message and one id."""
    priority: Priority = "normal"
    ttl: MaybeSpan = None
    """Expire the message if it is not handled within this time."""

    def given(self) -> dict[str, Any]:
        """Return the given options as keywords of the library."""
        return {name: value for name, value in vars(self).items() if value is not None}


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Delayed(Options):
    """Options of a message between agents."""

    delay: MaybeSpan = None
    """Deliver the message after this delay at the earliest."""
    at: MaybeDate = None
    """Deliver the message at this moment at the earliest: 2026-01-31T12:00:00Z."""
    correlation_id: str | None = None
    """The conversation that the message belongs to."""


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Topical(Delayed):
    """Options of a message with a topic."""

    topic: str | None = None
    """The message's topic; a pubsub channel needs one."""
    ephemeral: Annotated[bool | None, Quiet] = None
    """Drop the message if its recipient restarts before taking it."""


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Direct(Topical):
    """Options of a message to one agent."""

    ordering_key: str | None = None
    """Key of the lane that keeps order; default: the session."""
    reply_to: str | None = None
    """The agent that gets the reply; default: this one."""


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class MailboxOptions(Options):
    """Options of a message to a mailbox; it expires with the mailbox."""

    topic: str | None = None
    """The message's topic."""
    tags: Tags = None
    """A tag that readers can filter by; may be repeated."""
    ordering_key: str | None = None
    """Key of the lane that keeps order, and of a mailbox that keeps the newest message per key."""
    ephemeral: Annotated[bool | None, Quiet] = None
    """Drop the message if the mailbox's owner restarts before a reader takes it."""

    def given(self) -> dict[str, Any]:
        """Return the given options as keywords of the library; tags travel in a header."""
        found = super().given()
        tags = found.pop("tags", None)
        return found | ({"headers": {"tags": ",".join(tags)}} if tags else {})


DIRECT = Direct()


@command("id")
def send(
    box: Postbox,
    to: To,
    body: Body = None,
    /,
    *,
    deliver: Deliver = False,
    options: Direct = DIRECT,
    where: Conversation = CONVERSATION,
) -> Found:
    """
    Commit a message into the outbox and print its id.

    Exit code 0 means that the message is durably in the file; a relay or any open postbox of the
    agent delivers it. Nothing is written if the recipient is unknown, the file is paused or full,
    or the key was used for another message (exit codes 3, 7, 5). A body that starts like a JSON
    object, list or string must be valid JSON.

    Example: onceward send billing '{"id": 7}' --type invoice.created --key invoice-7

    Example: cat invoice.json | onceward send billing
    """
    session = box.session(in_session(where))
    message_id = session.send(to, parsed(body), **options.given())
    state = delivered(box, message_id) if deliver else box.state(message_id)
    return {"id": message_id, "recipient": to, "session": session.name, "state": state}


def parsed(given: str | None) -> Any:
    """Return a body as JSON value or plain text, read from stdin if it is a dash or not given."""
    text = body_from_stdin(asked=given == "-") if given in {None, "-"} else given
    if text is given and re.match("--[a-z]", text):
        raise Usage(f"there is no option {text}: give the body itself, or - to read it from stdin")
    try:
        return typed_body(text)
    except InvalidMessage as error:
        raise Usage(f"{error}; in a shell put it in single quotes") from error


def delivered(box: Postbox, message_id: str) -> str:
    """Push due messages and return the message's state; report an undelivered one on stderr."""
    box.run_until_idle()
    state = box.state(message_id)
    if state in {"pending", "sending"}:
        note(f"{message_id} is kept in the outbox, not delivered yet: see onceward peers ls")
    return state
