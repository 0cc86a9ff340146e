"""``onceward mailbox``: send to mailboxes of the home, and read them in a named mode."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from itertools import islice
from typing import Annotated, Any, Final, Literal

from cyclopts import Parameter

from onceward import Mailbox, Postbox
from onceward.message.record import MailboxFilters
from onceward.message.settings import DAY
from onceward.message.vocabulary import ReaderMode
from onceward.ops.cli.command import Found, command, picked
from onceward.ops.cli.cutting import cut_bodies
from onceward.ops.cli.durations import MaybeMoment, MaybeSpan, Span, written
from onceward.ops.cli.exit_codes import NothingThere, TimedOut, code_of_all
from onceward.ops.cli.options import (
    Body,
    Limit,
    OfTags,
    OfTopics,
    OfType,
    Quiet,
    Wait,
    said,
)
from onceward.ops.cli.records import Problems, print_records
from onceward.ops.cli.send import MailboxOptions, delivered, parsed
from onceward.ops.cli.target import CONVERSATION, Conversation
from onceward.types import Start

COLUMNS: Final = ("name", "owner", "created_at", "expires_at", "description")
FACTS: Final = (
    "id", "public", "owner", "ttl", "expires_at", "description", "newest_per_key",
)  # fmt: skip
LIFE: Final = Span(DAY)
Name = Annotated[str, said("The name of a public mailbox, or the id of a private one.")]
NewName = Annotated[str, said("Dotted lower-case letters and digits; none: private.")]
MessageId = Annotated[str, said("The message's id.")]
Keep = Annotated[bool, Quiet, said("Leave the delivery to a relay or a worker.")]
OfSender = Annotated[str | None, said("Only messages from this agent.")]
Mode = Annotated[Literal["scan", "cursor", "lease"], said("How to read.")]


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Position:
    """A named reader, and where it starts."""

    name: str = "default"
    """The name of the cursor or group."""
    start: str = "earliest"
    """Where it starts: earliest, latest, or the id of the first message."""
    since: MaybeMoment = None
    """Where it starts: 2026-01-31T12:00:00Z, or a duration ago, such as 2h."""

    @property
    def begin(self) -> Start:
        """Where the reader starts."""
        if self.since is not None:
            return Start("from_time", int(self.since))
        if self.start in {"earliest", "latest"}:
            return Start(self.start)
        return Start("from_id", self.start)


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Reading(Position):
    """How a mailbox is read; the start applies to a new name."""

    type: OfType = None
    topic: OfTopics = None
    tags: OfTags = None
    limit: Limit = 100
    wait: Wait = None
    keep_skipped: Annotated[bool, Quiet] = False
    """cursor only: leave messages that --type, --topic and --tag exclude for another call."""

    def options(self) -> dict[str, Any]:
        """Return limit, timeout and start as the keywords of the library."""
        return {"limit": self.limit, "timeout": self.wait or 0.0, "start": self.begin}


OPTIONS = MailboxOptions()
READING = Reading()
POSITION = Position()


@command("id")
def ensure(
    box: Postbox,
    name: NewName | None = None,
    /,
    *,
    ttl: Annotated[MaybeSpan, Parameter(show_default=written)] = LIFE,
    forever: Annotated[bool, Quiet] = False,
    description: str = "",
    newest_per_key: Annotated[bool, Quiet] = False,
    exclusive: Annotated[bool, Quiet] = False,
) -> Found:
    """
    Create a mailbox in this file unless it exists, and print its name or id.

    With a name it is public: listed, and found by that name. Without a name it is private: only the
    printed id leads to it. The first call fixes how long it lives; a later one changes nothing and
    says so.

    Example: onceward mailbox ensure task.queue --ttl 7d

    Args:
        ttl: How long it lives, from now.
        forever: It never expires.
        description: Purpose of the mailbox.
        newest_per_key: A newer message of the same --ordering-key replaces an older one.
        exclusive: Fail with exit code 5 if it exists.

    """
    make = box.mailboxes.create if exclusive else box.mailboxes.ensure
    life = None if forever else ttl
    made = make(
        name,
        ttl=life,
        public=name is not None,
        description=description,
        newest_per_key=newest_per_key,
    )
    return picked(made, ("id", "created", *FACTS[1:]))


@command(*COLUMNS)
def ls(box: Postbox, /) -> Found:
    """
    List the public mailboxes of the home; private ones are never listed.

    Example: onceward mailbox ls
    """
    return [picked(each, COLUMNS) for each in box.mailboxes.list()]


@command("id")
def send(
    box: Postbox,
    mailbox: Name,
    body: Body = None,
    /,
    *,
    keep: Keep = False,
    options: MailboxOptions = OPTIONS,
) -> Found:
    """
    Send a message to a mailbox and print its id.

    A message that cannot be delivered now stays in the outbox of this agent.

    Example: onceward mailbox send task.queue '{"page": 1}' --priority urgent
    """
    message_id = box.mailboxes.get(mailbox).send(parsed(body), **options.given())
    state = box.state(message_id) if keep else delivered(box, message_id)
    return {"id": message_id, "state": state}


@command()
def read(box: Postbox, mailbox: Name, mode: Mode, /, *, how: Reading = READING) -> int:
    """
    Read a mailbox in a named mode, and print messages, one JSON object for each line.

    scan prints all messages, oldest first, and stores nothing. cursor moves the position of that
    name before it prints: at most once. lease takes messages as a member of the group of that name
    and settles them after printing: at least once. Without a message the exit code is 3, or 4 after
    --wait; if a message has lost its body it is 6, or 1 if there is no other message. --topic and
    --tag work with cursor only.

    Example: onceward mailbox read task.queue lease --name crew --limit 1 --wait 5s
    """
    if problems := READERS[mode](box.mailboxes.get(mailbox), how):
        return code_of_all(problems)
    if how.wait:
        raise TimedOut(f"no message within {how.wait:g} s")
    raise NothingThere("there is no message")


def _lease(mailbox: Mailbox, how: Reading) -> Problems:
    problems: Problems = []
    for message in mailbox.lease(how.name, how.type, **how.options()):
        with message:
            problems += print_records([message])
            sys.stdout.flush()
    return problems


def _cursor(mailbox: Mailbox, how: Reading) -> Problems:
    options = how.options() | {"consume_skipped": not how.keep_skipped}
    sought: MailboxFilters = {"topics": how.topic or None, "tags": how.tags or None}
    return print_records(mailbox.read(how.name, how.type, **options, **sought))


def _scan(mailbox: Mailbox, how: Reading) -> Problems:
    found = mailbox.scan(how.type, timeout=how.wait or 0.0)
    return print_records(islice(found, how.limit))


READERS: Final = {"scan": _scan, "cursor": _cursor, "lease": _lease}


@command()
def reset(box: Postbox, mailbox: Name, mode: ReaderMode, /, *, to: Position = POSITION) -> None:
    """
    Set the position of a cursor or a group (lease) of a mailbox.

    Messages that members have leased are leased again; those handled exactly once stay handled.

    Example: onceward mailbox reset task.queue lease --name crew --since 2h
    """
    box.mailboxes.get(mailbox).reset(to.name, to.begin, mode=mode)


@command()
def query(
    box: Postbox,
    mailbox: Name,
    /,
    *,
    type: OfType = None,
    topic: OfTopics = None,
    tags: OfTags = None,
    sender: OfSender = None,
    limit: Limit = 100,
    where: Conversation = CONVERSATION,
) -> int:
    """
    Print messages of a mailbox, newest first, one JSON object for each line.

    Nothing is changed.

    Example: onceward mailbox query task.queue --sender shop --limit 10
    """
    sought: MailboxFilters = {
        "topics": topic or None,
        "tags": tags or None,
        "sender": sender,
        "session": where.session,
    }
    found = box.mailboxes.get(mailbox)
    rows = cut_bodies(lambda most: found.query(type, limit=most, **sought), limit)
    return code_of_all(print_records(rows))


@command()
def show(box: Postbox, mailbox: Name, /) -> Found:
    """
    Show a mailbox: its owner, when it expires, and how many messages it has.

    Example: onceward mailbox show task.queue
    """
    found = box.mailboxes.get(mailbox)
    return picked(found, FACTS) | {"messages": found.count()}


@command("id")
def discard(box: Postbox, mailbox: Name, message_id: MessageId, /) -> Found:
    """
    Discard a message for all readers of a mailbox; exit code 3 if it does not exist.

    Example: onceward mailbox discard task.queue 0199f0c2-7d1e
    """
    if not box.mailboxes.get(mailbox).discard(message_id):
        raise NothingThere(f"no message {message_id} in that mailbox")
    return [{"id": message_id}]
