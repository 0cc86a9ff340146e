"""``onceward receive``: take or look at the next message."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from threading import Event
from typing import Annotated, Any, Final

from cyclopts import Parameter

from onceward import Message, Postbox
from onceward.errors import Paused
from onceward.file.environment import disabled_by_environment
from onceward.message.clock import SystemClock, monotonic
from onceward.message.frame import Frame
from onceward.ops.cli.exit_codes import DONE, FAILED, NothingThere, TimedOut, Usage
from onceward.ops.cli.options import OfType, Wait
from onceward.ops.cli.output import compact, note, show, show_one
from onceward.ops.cli.readonly import views
from onceward.ops.cli.records import note_problem
from onceward.ops.cli.send import parsed
from onceward.ops.cli.target import CONVERSATION, Conversation, open_box
from onceward.ops.views.waiting import next_message

COLUMNS: Final = ("id", "sender", "session", "type", "body")
LOOK_EVERY: Final = 0.1


def receive(
    *,
    type: OfType = None,
    wait: Wait = None,
    ack: Annotated[bool, Parameter(negative="--keep")] = True,
    reply: Annotated[str | None, Parameter(allow_leading_hyphen=True)] = None,
    where: Conversation = CONVERSATION,
) -> int:
    """
    Take the next message, print it, and mark it as processed.

    It is marked after it was printed completely: a process that is killed in between gets it again.
    With --reply the answer to its sender is in the same commit. With --keep it is only printed:
    nothing is leased and no attempt is counted. The exit code is 3 for an empty inbox, or 4 after
    --wait, and 1 for a message that has lost its body.

    Columns: id, sender, session, type, body (as JSON).

    Example: onceward receive --type invoice.created --wait 5s

    Args:
        ack: Mark the message as processed after printing, or keep it for the next reader.
        reply: Reply to the sender with this, JSON or plain text; - reads stdin.

    """
    if reply is not None and not ack:
        raise Usage("--keep leaves the message unanswered: leave it or --reply out")
    path, answer = where.path(), None if reply is None else parsed(reply)
    if not ack:
        return print_message(_next(path, type, where.session, wait or 0.0), where)
    with open_box(path) as box:
        refuse_paused(box)
        source = box.session(where.session) if where.session else box
        message = source.receive(type, timeout=wait or 0.0)
        if message is None:
            raise nothing(wait)
        with message:
            told = described(message.frame, message.attempt, message.received_at)
            code = print_message(told, where)
            sys.stdout.flush()
            _end(box, message, answer, answered=reply is not None)
    return code


def _end(box: Postbox, message: Message[Any], answer: object, *, answered: bool) -> None:
    """Mark a message as processed, together with the answer to its sender if there is one."""
    if answered:
        with box.begin():
            message.reply(answer)
            message.ack()
        return
    message.ack()
    if message.frame.replyto is not None:
        note(f"{message.id} asked for a reply and ended without one: see --reply and --keep")


def refuse_paused(box: Postbox) -> None:
    """Raise Paused if nothing can be received, instead of reporting an empty inbox."""
    if disabled_by_environment() or box.file.health().paused:
        cure = "run onceward resume first; nothing is lost"
        raise Paused(f"{box.file.path} is paused, or ONCEWARD_DISABLED is set: {cure}")


def nothing(wait: float | None) -> NothingThere | TimedOut:
    """Return the error for an empty inbox."""
    return TimedOut(f"no message within {wait:g} s") if wait else NothingThere("no message waits")


def _next(path: Path, kind: str | None, session: str | None, wait: float) -> Mapping[str, Any]:
    """Return the next message without leasing it, waiting up to *wait* seconds."""
    deadline = monotonic() + wait
    now = SystemClock().now
    with views(path) as found:
        while not (one := next_message(found, now(), type=kind, session=session)):
            left = deadline - monotonic()
            if left <= 0:
                raise nothing(wait)
            Event().wait(min(left, LOOK_EVERY))
    return described(Frame.parse(one.frame), one.attempt, one.received_at)


def described(frame: Frame, attempt: int, received_at: int) -> dict[str, Any]:
    """Return a message for printing, with ``body_error`` if its body is lost."""
    problem = {} if frame.body_error is None else {"body_error": frame.body_error}
    names = ("id", "sender", "recipient", "session", "type", "topic")
    return {name: getattr(frame, name) for name in names} | {
        "priority": frame.priority_name,
        "attempt": attempt,
        "received_at": received_at,
        "body": frame.data if frame.data_base64 is None else frame.data_base64,
        **problem,
        "frame": frame.model_dump(mode="json", exclude_none=True),
    }


def print_message(message: Mapping[str, Any], where: Conversation) -> int:
    """Print a received message in the requested form; return FAILED if its body is lost."""
    if where.style == "lines":
        show([{**message, "body": compact(message["body"])}], COLUMNS, "lines")
    elif where.style == "table":
        show_one({name: value for name, value in message.items() if name != "frame"}, "table")
    else:
        show_one(message, "json")
    note_problem(message["id"], message.get("body_error"))
    return FAILED if "body_error" in message else DONE
