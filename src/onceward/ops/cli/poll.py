"""``onceward poll``, ``tail``, ``maintain``, ``sessions stats``: one cursor for each session."""

from __future__ import annotations

from functools import partial
from typing import Annotated

from onceward import Postbox
from onceward.ops.cli.command import Found, command
from onceward.ops.cli.exit_codes import DONE, code_of_all
from onceward.ops.cli.options import Number, OfTopics, Quiet, said
from onceward.ops.cli.output import document
from onceward.ops.cli.readonly import views
from onceward.ops.cli.records import print_records
from onceward.ops.cli.target import CONVERSATION, Conversation, in_session

MaybeLimit = Annotated[int | None, said("Take at most this many.")]
Keep = Annotated[bool, Quiet, said("Leave messages that --topic excludes for another poll.")]
Expired = Annotated[bool, Quiet, said("Also print expired messages.")]
Follow = Annotated[
    bool, Quiet, said("Continue with new messages until an interrupt.", name=("-f", "--follow"))
]
Transitions = Annotated[bool, Quiet, said("Print state changes of all sessions instead.")]


@command()
def poll(
    box: Postbox,
    /,
    *,
    topic: OfTopics = None,
    limit: MaybeLimit = None,
    keep_skipped: Keep = False,
    where: Conversation = CONVERSATION,
) -> int:
    """
    Take the messages since the last poll and print them, one JSON object per line.

    At most once: the cursor is committed before printing, so a process that is killed in between
    loses these messages. The cursor also moves past messages that --topic excludes. Without new
    messages nothing is printed, and the exit code is 0. If a message has lost its body the exit
    code is 6, or 1 if there is no other message. While the file is paused no message is taken.

    Example: onceward poll --topic 'build.#' --limit 10
    """
    session, skip = in_session(where), not keep_skipped
    records = box.sessions.poll(session, topics=topic or None, limit=limit, consume_skipped=skip)
    return code_of_all(print_records(records))


@command()
def tail(
    box: Postbox,
    /,
    *,
    n: Number = 10,
    follow: Follow = False,
    transitions: Transitions = False,
    include_expired: Expired = False,
    where: Conversation = CONVERSATION,
) -> int:
    """
    Print the newest messages of a session, oldest first, one JSON object per line.

    No cursor is moved. Fields have the same names as in history; ``at`` is the moment of receipt.
    With --follow it continues with each new message. Transitions are printed if the file records
    them.

    Example: onceward tail -n 20 --session run-42

    Example: onceward tail --follow --transitions
    """
    newest = partial(box.sessions.tail, in_session(where), include_expired=include_expired)
    if not follow and not transitions:
        return code_of_all(print_records(newest(n)))
    from onceward.ops.cli import following  # noqa: PLC0415 - rarely needed

    if not transitions:
        following.follow_messages(box, newest, n)
    with views(box.file.path) as found:
        return following.print_transitions(found, n, follow=follow)


@command("expired")
def maintain(box: Postbox, /, *, where: Conversation = CONVERSATION) -> Found:
    """
    End expired messages, print their number, and prune what is older than its retention.

    Expired messages never reach a handler: this frees their space and informs their senders now.
    With --session only the expired messages of one session are ended, and nothing is pruned. While
    the file is paused no message is ended.

    Example: onceward maintain
    """
    expired = box.file.expire(where.session)
    if where.session is None:
        box.file.run_maintenance()
    return {"expired": expired}


@command()
def stats(box: Postbox, /, *, where: Conversation = CONVERSATION) -> int:
    """
    Print each session as JSON: messages, expired ones, topics, bytes, and its cursor.

    Without --session all sessions are printed.

    Example: onceward sessions stats shop.db
    """
    document(box.sessions.stats(where.session))
    return DONE
