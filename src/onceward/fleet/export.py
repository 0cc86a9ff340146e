"""Export conversations as JSON Lines, one each, with parts redacted."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any, Final

import apsw

from onceward.errors import OncewardError
from onceward.fleet import manifest
from onceward.fleet.loading import attached, workspace
from onceward.fleet.opening import Unreadable

JOB: Final = "export"
REDACTED: Final = "[redacted]"
ANY: Final = "*"
"""In a pointer: every member of an object, every item of a list."""
EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
SAID: Final = """
CREATE TEMP TABLE said (sender, recipient, id, session, type, sent_at, received_at, frame)
"""
READ: Final = (
    """
INSERT INTO temp.said
SELECT sender, recipient, id, session, type, created_at, NULL, frame FROM agent.onceward_outbox
""",
    """
INSERT INTO temp.said
SELECT sender, recipient, id, session, type, NULL, received_at, frame FROM agent.onceward_inbox
""",
    """
INSERT INTO temp.said
SELECT sender, recipient, id, session, type, CASE origin WHEN 'outbox' THEN created_at END, NULL,
       frame
  FROM agent.onceward_dead_letters
""",
)
THREAD: Final = """
CASE WHEN json_valid(frame)
     THEN coalesce(json_extract(frame, '$.correlationid'), json_extract(frame, '$.causationid'), id)
     ELSE id END
"""
ORDERED: Final = f"""
SELECT thread, id, sender, recipient, session, type, coalesce(sent_at, received_at), frame
  FROM (SELECT *, {THREAD} AS thread
          FROM (SELECT sender, recipient, id, max(session) AS session, max(type) AS type,
                       min(sent_at) AS sent_at, min(received_at) AS received_at,
                       max(frame) AS frame
                  FROM temp.said GROUP BY sender, recipient, id))
 WHERE ({{where}}
) ORDER BY thread, coalesce(sent_at, received_at), id
"""
NAMES: Final = ("id", "sender", "recipient", "session", "type")


class InvalidPointer(OncewardError):
    """The path is not a JSON pointer: write it as /a/b, with ~1 for a slash, ~0 for a tilde."""


class InvalidCondition(OncewardError):
    """The condition is not SQL on the columns of the job: correct the part in the message."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported:
    """The outcome of an export: its file, and the skipped files."""

    conversations: int
    file: Path
    unread: tuple[Unreadable, ...] = ()


def export(
    *paths: str | Path,
    out: str | Path,
    redact: Sequence[str] = (),
    where: str = "1",
    on_step: Callable[[str], object] = str,
) -> Exported:
    """
    Write the fleet's conversations to conversations.jsonl in the folder *out*, one a line.

    A line holds the thread's id and its messages in order: id, sender, recipient, session, type,
    at, body. *redact* are JSON pointers (RFC 6901) into the bodies; ``*`` stands for every member
    or item. Binary bodies are omitted, because their parts cannot be redacted; so are frames that
    are not JSON. *where* is a condition in SQL on sender, recipient, id, session, type, thread,
    sent_at and received_at (milliseconds).

    Raises:
        InvalidPointer, InvalidCondition, NamesNoFile, OutputTaken, OutputBusy: see each; nothing is
            written.

    """
    pointers = [parse(pointer) for pointer in redact]
    wanted = manifest.plan([str(path) for path in paths], JOB)
    with manifest.alone(Path(out), JOB) as own:
        planned = manifest.prepare(own, wanted, resume=False)
        new = own / "work" / "conversations.jsonl"
        with closing(workspace(own / "work" / "said.db")) as con:
            on_step(f"reading {len(planned['files'])} files")
            unread = _read(con, [file["path"] for file in planned["files"]])
            on_step("writing conversations")
            with new.open("w", encoding="utf-8") as file:
                count = sum(file.write(line) > 0 for line in _lines(con, where, pointers))
        target = new.replace(own / "conversations.jsonl")
        told = {"redact": list(redact), "where": where, "conversations": count}
        manifest.finish(own, planned | told | {"quarantined": len(unread)})
        return Exported(conversations=count, file=target, unread=unread)


def _read(con: apsw.Connection, paths: Iterable[str]) -> tuple[Unreadable, ...]:
    con.execute(SAID)
    unread = []
    for path in paths:
        try:
            with attached(con, path):
                for sql in READ:
                    con.execute(sql)
        except Unreadable as error:
            unread.append(error)
    return tuple(unread)


def _lines(con: apsw.Connection, where: str, pointers: list[list[str]]) -> Iterator[str]:
    try:
        rows = con.execute(ORDERED.format(where=where))
    except apsw.SQLError as error:
        raise InvalidCondition(f"where {where!r}: {error}") from error
    for thread, said in groupby(rows, itemgetter(0)):
        messages = [_message(row[1:], pointers) for row in said]
        yield json.dumps({"thread": thread, "messages": messages}, ensure_ascii=False) + "\n"


def _message(row: Sequence[Any], pointers: list[list[str]]) -> dict[str, Any]:
    *known, at, frame = row
    moment = None if at is None else (EPOCH + timedelta(milliseconds=at)).isoformat()
    plain = dict(zip(NAMES, known, strict=True)) | {"at": moment}
    return plain | {"body": blacken(_body(frame), pointers)}


def _body(frame: str) -> Any:
    try:
        return json.loads(frame).get("data")
    except (AttributeError, RecursionError, ValueError):
        return None


def parse(pointer: str) -> list[str]:
    """Return the names of a JSON pointer; raise InvalidPointer for other text."""
    if pointer and not pointer.startswith("/"):
        raise InvalidPointer(f"{pointer!r} is not a JSON pointer: it must begin with a slash")
    parts = pointer.split("/")[1:]
    if any("~" in part.replace("~0", "").replace("~1", "") for part in parts):
        raise InvalidPointer(f"{pointer!r} is not a JSON pointer: write a tilde as ~0")
    return [part.replace("~1", "/").replace("~0", "~") for part in parts]


def blacken(body: Any, pointers: Iterable[list[str]]) -> Any:
    """Return *body* with all values at the pointers replaced."""
    for pointer in pointers:
        body = _black(body, pointer)
    return body


def _black(value: Any, pointer: Sequence[str]) -> Any:
    if not pointer:
        return REDACTED
    head, rest = pointer[0], pointer[1:]
    match value:
        case dict():
            return {
                name: _black(inner, rest) if head in (ANY, name) else inner
                for name, inner in value.items()
            }
        case list():
            return [
                _black(inner, rest) if head in (ANY, str(place)) else inner
                for place, inner in enumerate(value)
            ]
    return value
