"""``onceward poll``, ``tail``, ``expire``, ``sessions stats``: one cursor for each session."""

from __future__ import annotations

from functools import partial
from typing import Annotated

from onceward import Postbox
from onceward.ops.cli.command import Found, command
from onceward.ops.cli.exit_codes import DONE
from onceward.ops.cli.options import Number, OfTopics, Quiet, said
from onceward.ops.cli.output import document
from onceward.ops.cli.readonly import views
from onceward.ops.cli.records import print_records, readable
from onceward.ops.cli.target import Conversation, in_session

WHERE = Conversation()
MaybeLimit = Annotated[int | None, said("Take at most so many.")]
Keep = Annotated[bool, Quiet, said("Leave what --topic excludes for another poll.")]
Expired = Annotated[bool, Quiet, said("Also print messages whose time to live has ended.")]
Follow = Annotated[
    bool, Quiet, said("Go on with what comes, until an interrupt.", name=("-f", "--follow"))
]
Transitions = Annotated[bool, Quiet, said("Print changes of state instead, of all sessions.")]


@command()
def poll(
    box: Postbox,
    /,
    *,
    topic: OfTopics = None,
    limit: MaybeLimit = None,
    keep_skipped: Keep = False,
    where: Conversation = WHERE,
) -> int:
    """
    Take what came since the last poll and print it, one JSON object for each line.

    At most once: the cursor is committed before anything is printed, so a process that is killed
    in between loses the messages it was to print. The cursor passes what --topic excludes, too.
    Without new messages nothing is printed, and the exit code is 0. A message that has lost its
    body has a problem; the exit code is 6, or 1 if there is no other. While the file is paused
    nothing is taken.
    """
    session, skip = in_session(where), not keep_skipped
    records = box.poll(topics=topic or None, session=session, limit=limit, consume_skipped=skip)
    return readable(print_records(records))


@command()
def tail(
    box: Postbox,
    /,
    *,
    n: Number = 10,
    follow: Follow = False,
    transitions: Transitions = False,
    include_expired: Expired = False,
    where: Conversation = WHERE,
) -> int:
    """
    Print the newest messages of a session, oldest first, one JSON object for each line.

    No cursor is moved. Fields have the names that history gives them; ``at`` is the moment of
    receipt. With --follow it goes on with each message that comes. Transitions are printed where
    the file records them.
    """
    newest = partial(box.sessions.tail, in_session(where), include_expired=include_expired)
    if not follow and not transitions:
        return readable(print_records(newest(n)))
    from onceward.ops.cli import following  # noqa: PLC0415 - rarely needed

    if not transitions:
        following.follow_messages(box, newest, n)
    with views(box.path) as found:
        return following.print_transitions(found, n, follow=follow)


@command("expired")
def expire(box: Postbox, /, *, where: Conversation = WHERE) -> Found:
    """
    End the messages whose time to live is over, and print how many.

    Expired messages are never delivered to a handler: this frees space and tells their senders
    now. Without --session all sessions are swept. While the file is paused nothing is ended.
    """
    return {"expired": box.file.expire(where.session)}


@command()
def stats(box: Postbox, /, *, where: Conversation = WHERE) -> int:
    """
    Print each session as JSON: messages, expired ones, topics, bytes, and its cursor.

    Without --session all sessions are printed.
    """
    document(box.sessions.stats(where.session))
    return DONE
