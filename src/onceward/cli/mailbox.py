"""``onceward mailbox``: mailboxes of the home, written to and read in the mode that is named."""

from __future__ import annotations

import sys
from typing import Annotated, Any, Final, Literal

from cyclopts import Parameter

from onceward import Mailbox, MessageRecord, Start
from onceward.cli.durations import MaybeMoment, MaybeSpan, Span
from onceward.cli.exit_codes import DONE, NothingThere, TimedOut
from onceward.cli.output import show, show_one
from onceward.cli.poll import print_letters
from onceward.cli.send import Body, delivered, parsed
from onceward.cli.target import Conversation, Quiet, Where, open_box
from onceward.model.send_options import SendOptions
from onceward.model.settings import DAY

WHERE = Where()
CONVERSATION = Conversation()
COLUMNS: Final = ("name", "owner", "created_at", "expires_at", "description")
LIFE: Final = Span(DAY)
Mode = Literal["replay", "cursor", "lease"]


def ensure(
    name: str | None = None,
    /,
    *,
    ttl: MaybeSpan = LIFE,
    forever: Annotated[bool, Quiet] = False,
    description: str = "",
    exclusive: Annotated[bool, Quiet] = False,
    where: Where = WHERE,
) -> int:
    """
    Make a mailbox in our file if there is none, and print what it is known by.

    With a name it is public: listed, and found by that name. Without one it is private: what is printed is its id, the only way to
    it. The first creation fixes how long it lives; a later one changes nothing and says so.

    Args:
        name: Lower-case letters and digits in dotted segments; none for a private mailbox.
        ttl: How long it lives, from now.
        forever: It has no end.
        description: What it is for.
        exclusive: Fail (exit code 5) if it is there already.
        where: Whose file its messages are kept in.

    """
    with open_box(where.path()) as box:
        make = box.mailboxes.create if exclusive else box.mailboxes.ensure
        made = make(
            name, ttl=None if forever else ttl, public=name is not None, description=description
        )
    if where.json:
        show_one(described(made), "json")
    else:
        show([{"id": made.id}], ("id",), "lines")
    return DONE


def ls(*, where: Where = WHERE) -> int:
    """
    List the public mailboxes of the home; private ones are never listed.

    Columns: name, owner, created, expires, description.

    Args:
        where: Any file of the home.

    """
    with open_box(where.path()) as box:
        rows = [
            {column: getattr(each, column) for column in COLUMNS} for each in box.mailboxes.list()
        ]
    show(rows, COLUMNS, where.style)
    return DONE


def send(
    mailbox: str,
    body: Body = "null",
    /,
    *,
    type: str | None = None,
    topic: str | None = None,
    key: str | None = None,
    ttl: MaybeSpan = None,
    priority: str = "normal",
    ephemeral: Annotated[bool | None, Quiet] = None,
    keep: Annotated[bool, Quiet] = False,
    where: Where = WHERE,
) -> int:
    """
    Send a message to a mailbox and print its id; what cannot be delivered now stays in our outbox.

    Args:
        mailbox: The name of a public mailbox, or the id of a private one.
        body: JSON, or plain text. A dash reads it from stdin.
        type: The message's type.
        topic: What it is about.
        key: Idempotency key: the same key with the same body is one message.
        ttl: How long it is wanted; at most as long as the mailbox lives.
        priority: critical, urgent (high), normal, low or background.
        ephemeral: Let a restart of its owner drop it if no reader has taken it by then.
        keep: Leave the delivery to a relay or a worker.
        where: Whose outbox.

    """
    with open_box(where.path()) as box:
        text = sys.stdin.read() if body == "-" else body
        target = box.mailboxes.open(mailbox)
        said: SendOptions = {
            "type": type,
            "topic": topic,
            "key": key,
            "ttl": ttl,
            "priority": priority,
        }
        if ephemeral is not None:
            said["ephemeral"] = ephemeral
        message_id = target.send(parsed(text), **said)
        state = box.resolve(message_id) if keep else delivered(box, message_id)
    if where.json:
        show_one({"id": message_id, "state": state}, "json")
    else:
        show([{"id": message_id}], ("id",), "lines")
    return DONE


def read(
    mailbox: str,
    mode: Mode,
    /,
    *,
    name: str = "default",
    type: str | None = None,
    topic: Annotated[list[str] | None, Parameter(negative=())] = None,
    limit: int = 100,
    wait: MaybeSpan = None,
    start: str = "earliest",
    since: MaybeMoment = None,
    keep_skipped: Annotated[bool, Quiet] = False,
    where: Where = WHERE,
) -> int:
    """
    Read a mailbox in the mode that is named, and print messages, one JSON object for each line.

    replay prints everything from the oldest and stores nothing. cursor moves the position of that name before it prints: at most
    once. lease takes messages as a member of the group of that name and settles them after they were printed: at least once.
    Nothing there is exit code 3, or 4 after --wait.

    Args:
        mailbox: The name of a public mailbox, or the id of a private one.
        mode: replay, cursor or lease.
        name: The cursor's name, or the group's.
        type: Only messages of this type.
        topic: cursor only: only this topic, or what falls under this pattern; may be given several times.
        limit: At most so many.
        wait: Wait so long for one to come.
        start: Where a new name begins: earliest, latest, or the id of a message, which is then the first.
        since: Where a new name begins, as a moment: 2026-01-31T12:00:00Z, or how long ago, as in 2h.
        keep_skipped: cursor only: leave what --type and --topic exclude for another call.
        where: Whose postbox reads.

    """
    with open_box(where.path()) as box:
        how = {"type": type, "limit": limit, "wait": wait or 0.0}
        begin = _start(start) if since is None else Start("from_time", int(since))
        count = _read(
            box.mailboxes.open(mailbox), mode, name, begin, topic=topic, keep=keep_skipped, **how
        )
    if not count:
        raise (
            TimedOut(f"no message within {wait:g} s")
            if wait
            else NothingThere("no message is there")
        )
    return DONE


def _read(
    found: Mailbox,
    mode: Mode,
    name: str,
    start: Start,
    *,
    topic: list[str] | None,
    keep: bool,
    **how: Any,
) -> int:
    kind, limit, wait = how["type"], how["limit"], how["wait"]
    if mode == "lease":
        messages = found.lease(name, kind, limit=limit, timeout=wait, start=start)
        for message in messages:
            with message:
                print_letters([MessageRecord(message.frame, message.body, message.received_at)])
                sys.stdout.flush()
        return len(messages)
    if mode == "cursor":
        letters = found.cursor(
            name,
            kind,
            limit=limit,
            timeout=wait,
            start=start,
            consume_skipped=not keep,
            topics=topic or None,
        )
    else:
        letters = [
            letter
            for _, letter in zip(range(limit), found.replay(kind, timeout=wait), strict=False)
        ]
    print_letters(letters)
    return len(letters)


def query(
    mailbox: str,
    /,
    *,
    type: str | None = None,
    topic: Annotated[list[str] | None, Parameter(negative=())] = None,
    sender: str | None = None,
    limit: int = 100,
    where: Conversation = CONVERSATION,
) -> int:
    """
    Print messages of a mailbox, newest first, one JSON object for each line; changes nothing.

    Args:
        mailbox: The name of a public mailbox, or the id of a private one.
        type: Only messages of this type.
        topic: Only this topic, or what falls under this pattern; may be given several times.
        sender: Only what this agent sent.
        limit: At most so many.
        where: Whose postbox reads, and of which session.

    """
    with open_box(where.path()) as box:
        found = box.mailboxes.open(mailbox)
        print_letters(
            found.query(
                type, limit=limit, topics=topic or None, sender=sender, session=where.session
            )
        )
    return DONE


def about(mailbox: str, /, *, where: Where = WHERE) -> int:
    """
    Show a mailbox: whose it is, when it ends, and how many messages are there.

    Args:
        mailbox: The name of a public mailbox, or the id of a private one.
        where: Whose postbox looks.

    """
    with open_box(where.path()) as box:
        found = box.mailboxes.open(mailbox)
        facts = described(found) | {"messages": found.count()}
    del facts["created"]
    show_one(facts, where.style)
    return DONE


def tail(
    mailbox: str,
    /,
    *,
    n: Annotated[int, Parameter(name=("-n", "--number"))] = 10,
    where: Where = WHERE,
) -> int:
    """
    Print the newest messages of a mailbox, the oldest of them first, one JSON object for each line; changes nothing.

    Args:
        mailbox: The name of a public mailbox, or the id of a private one.
        n: How many.
        where: Whose postbox reads.

    """
    with open_box(where.path()) as box:
        print_letters(box.mailboxes.open(mailbox).tail(n))
    return DONE


def delete(mailbox: str, message_id: str, /, *, where: Where = WHERE) -> int:
    """
    Take a message away from all readers of a mailbox; exit code 3 if it is not there.

    Args:
        mailbox: The name of a public mailbox, or the id of a private one.
        message_id: The message.
        where: Whose postbox does it.

    """
    with open_box(where.path()) as box:
        if not box.mailboxes.open(mailbox).delete(message_id):
            msg = f"no message {message_id} in that mailbox"
            raise NothingThere(msg)
    show([{"id": message_id}], ("id",), "json" if where.json else "lines")
    return DONE


def _start(said: str) -> Start:
    return Start(said) if said in {"earliest", "latest"} else Start("from_id", said)


def described(made: Mailbox) -> dict[str, Any]:
    """Return a mailbox as it is printed."""
    names = ("id", "created", "public", "owner", "ttl", "expires_at", "description")
    return {name: getattr(made, name) for name in names}
