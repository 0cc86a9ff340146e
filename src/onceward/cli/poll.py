"""``onceward poll``, ``tail``, ``expire`` and ``status``: reading by one cursor for each session; messages are JSON lines."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from typing import Annotated, Any

from cyclopts import Parameter

from onceward import MessageRecord
from onceward.cli.exit_codes import DONE
from onceward.cli.output import document, show
from onceward.cli.target import Conversation, Quiet, in_session, open_box

WHERE = Conversation()


def poll(
    *,
    topic: Annotated[list[str] | None, Parameter(negative=())] = None,
    limit: int | None = None,
    keep_skipped: Annotated[bool, Quiet] = False,
    where: Conversation = WHERE,
) -> int:
    """
    Take what came since the last poll and print it, one JSON object for each line.

    At most once: the cursor is committed before anything is printed, so whoever is killed in between has lost what was on its way.
    The cursor passes what --topic excludes, too. Nothing new is no error: nothing is printed, and the exit code is 0. While the
    file is paused nothing is taken.

    Args:
        topic: Take only this topic, or what falls under this pattern; may be given several times.
        limit: Take at most so many.
        keep_skipped: Leave what --topic excludes for another poll.
        where: Whose file, which session.

    """
    with open_box(where.path()) as box:
        letters = box.poll(
            topics=topic or None,
            session=in_session(where),
            limit=limit,
            consume_skipped=not keep_skipped,
        )
        print_letters(letters)
    return DONE


def tail(
    *,
    n: Annotated[int, Parameter(name=("-n", "--number"))] = 10,
    include_expired: Annotated[bool, Quiet] = False,
    where: Conversation = WHERE,
) -> int:
    """
    Print the newest messages of a session, the oldest of them first, one JSON object for each line; moves no cursor.

    Args:
        n: How many.
        include_expired: Those that have outlived their time to live, too.
        where: Whose file, which session.

    """
    with open_box(where.path()) as box:
        print_letters(box.tail(n, session=in_session(where), include_expired=include_expired))
    return DONE


def expire(*, where: Conversation = WHERE) -> int:
    """
    End the messages that have outlived their time to live, and print how many.

    Nobody is handed them any more in any case: this frees space and tells their senders now. Nothing is ended while the file is
    paused.

    Args:
        where: Whose file, which session; without one, all of them.

    """
    with open_box(where.path()) as box:
        count = box.expire(where.session)
    if where.json:
        document({"expired": count})
    else:
        show([{"expired": count}], ("expired",), "lines")
    return DONE


def status(*, where: Conversation = WHERE) -> int:
    """
    Print how each session stands, as JSON: messages, expired ones, topics, bytes, and how far it was polled.

    Args:
        where: Whose file, which session; without one, all of them.

    """
    with open_box(where.path()) as box:
        document(box.status(where.session))
    return DONE


def print_letters(letters: Iterable[MessageRecord]) -> None:
    """Print messages, each as one JSON object on a line of its own."""
    for letter in letters:
        sys.stdout.write(json.dumps(described(letter), ensure_ascii=False) + "\n")


def described(letter: MessageRecord) -> dict[str, Any]:
    """Return a message as it is printed; ``body_error`` stands there only where the body cannot be read."""
    frame = letter.frame
    body = letter.body if frame.data_base64 is None else frame.data_base64
    expires_at = None if frame.expirytime is None else frame.expirytime.timestamp()
    sent_at = None if frame.time is None else frame.time.timestamp()
    found: dict[str, Any] = {
        "msg_id": frame.id,
        "ts": None if frame.time is None else frame.time.isoformat().replace("+00:00", "Z"),
        "from": frame.sender,
        "to": frame.recipient,
        "session": frame.session,
        "type": frame.type,
        "topic": frame.topic,
        "priority": frame.priority_name,
        "body": body,
        "in_reply_to": letter.in_reply_to,
        "ttl_s": None if expires_at is None or sent_at is None else round(expires_at - sent_at, 3),
    }
    return found if letter.problem is None else found | {"body_error": letter.problem}
