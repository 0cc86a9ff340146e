"""``onceward reply``: answer a request that waits, by its id."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated, Any, Final

from onceward import Postbox
from onceward.errors import Conflict
from onceward.ops.cli.command import emit
from onceward.ops.cli.exit_codes import NothingThere, Usage
from onceward.ops.cli.options import Body, said
from onceward.ops.cli.readonly import views
from onceward.ops.cli.recv import refuse_paused
from onceward.ops.cli.send import parsed
from onceward.ops.cli.target import WHERE, Where, open_box
from onceward.ops.cli.why import files_of, ids_in
from onceward.ops.views.expected import ReplyField, expected_fields
from onceward.ops.views.messages import message

Id = Annotated[str, said("The request's id, or a unique prefix of it.")]
UNENDED: Final = frozenset({"pending", "processing"})
"""States of a request that waits for an answer."""


def reply(id: Id, body: Body = None, /, *, where: Where = WHERE) -> int:
    """
    Answer a request that waits in an agent's inbox, and print the id of the reply.

    The reply and the end of the request are one commit. Without --db, --agent and their variables
    all agents of the home are searched.

    Example: onceward reply 0199f0c2 '{"ok": true}'
    """
    path, message_id = _waiting(files_of(where), id)
    with open_box(path) as box:
        refuse_paused(box)
        reply_id = answer(box, message_id, _said(path, message_id, body))
        return emit([{"id": reply_id}], ("id",), where)


def _said(path: Path, message_id: str, body: str | None) -> Any:
    """Return the answer; without one, raise Usage with the expected fields."""
    try:
        return parsed(body)
    except Usage as error:
        with views(path) as found:
            fields = expected_fields(found, message_id)
        if not fields:
            raise
        msg = f"{error}; {message_id} expects an object with: {'; '.join(_told(fields))}"
        raise Usage(msg) from error


def _told(fields: Iterable[ReplyField]) -> Iterator[str]:
    for each in fields:
        yield each.told + (f": {each.meaning}" if each.meaning else "")


def answer(box: Postbox, message_id: str, body: Any) -> str:
    """
    Answer a request and end it, in one commit; return the reply's id.

    Raises:
        Conflict: another reader has it, or it no longer waits.

    """
    found = box.receive_one(message_id)
    if found is None:
        msg = f"{message_id} is leased by a reader or handler, or has ended: see onceward why"
        raise Conflict(msg, message_id=message_id)
    with found, box.begin():
        reply_id = found.reply(body)
        found.ack()
    return reply_id


def _waiting(files: list[Path], prefix: str) -> tuple[Path, str]:
    """Return the file in which a request waits, and its whole id."""
    ended = ""
    waiting: dict[str, Path] = {}
    for message_id, path in ids_in(files, prefix):
        with views(path) as found:
            for each in message(found, message_id, window=0).received:
                if each.state in UNENDED:
                    waiting[message_id] = path
                else:
                    ended = f"; {message_id} is {each.state}"
    if prefix in waiting:
        return waiting[prefix], prefix
    if len(waiting) > 1:
        raise Usage(f"{len(waiting)} waiting messages start with {prefix!r}: give more of the id")
    for message_id, path in waiting.items():
        return path, message_id
    raise NothingThere(f"no waiting message starts with {prefix!r}{ended}: see onceward ls inbox")
