"""Export conversations as JSON Lines, one each, with parts redacted."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

from pyspark.sql import DataFrame, Row
from pyspark.sql.functions import expr, udf

from onceward.errors import OncewardError
from onceward.fleet import manifest
from onceward.spark.fleet import Fleet
from onceward.spark.threads import NEEDS, messages

JOB: Final = "export"
REDACTED: Final = "[redacted]"
ANY: Final = "*"
"""In a pointer: every member of an object, every item of a list."""
EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class InvalidPointer(OncewardError):
    """A path is no JSON pointer: write it as /a/b, with ~1 for a slash, ~0 for a tilde."""


def run(
    fleet: Fleet,
    out: Path,
    *,
    redact: Sequence[str] = (),
    where: str = "true",
    on_step: Callable[[str], object] = str,
) -> int:
    """
    Write the fleet's conversations to conversations.jsonl in the folder *out*; return their number.

    *where* is a condition on the columns of ``threads.messages``.

    Raises:
        InvalidPointer, OutputTaken, OutputBusy: see each; nothing is written.

    """
    for pointer in redact:
        parse(pointer)
    with manifest.alone(out, JOB) as own:
        planned = manifest.prepare(own, manifest.plan(fleet.paths, JOB), resume=False)
        on_step("writing conversations")
        found = messages(
            {name: fleet.table(name, *columns) for name, columns in NEEDS.items()}
        ).where(where)
        lines = export(found, redact=redact).select("line").coalesce(1)
        lines.write.mode("overwrite").text(str(own / "work" / "lines"))
        [written] = (own / "work" / "lines").glob("part-*")
        written.replace(own / "conversations.jsonl")
        with (own / "conversations.jsonl").open("rb") as file:
            count = sum(1 for _ in file)
        manifest.write(
            own / manifest.NAME,
            planned | {"redact": list(redact), "where": where, "conversations": count},
        )
        shutil.rmtree(own / "work")
        return count


def export(found: DataFrame, *, redact: Sequence[str] = ()) -> DataFrame:
    """
    Return one JSON text per conversation: ``thread`` and ``line``, from ``threads.messages``.

    A line holds the thread's id and its messages in order: id, sender,
    recipient, session, type, at, body. *redact* are JSON pointers (RFC 6901)
    into the bodies; ``*`` stands for every member or item. Bytes stay out: of
    a binary body its parts cannot be told.

    Raises:
        InvalidPointer: one of them is none; nothing is exported.

    """
    pointers = [parse(pointer) for pointer in redact]
    columns = "id, sender, recipient, session, type, frame"
    message = f"struct(unix_micros(coalesce(sent_at, received_at)) as at, {columns})"
    whole = found.groupBy("thread").agg(expr(f"array_sort(collect_list({message})) as said"))
    line = udf(lambda thread, said: _line(thread, said, pointers), "string", useArrow=False)
    return whole.select("thread", line("thread", "said").alias("line"))


def parse(pointer: str) -> list[str]:
    """Return the names of a JSON pointer; raises InvalidPointer for text that is none."""
    if pointer and not pointer.startswith("/"):
        msg = f"{pointer!r} is no JSON pointer: it begins with a slash"
        raise InvalidPointer(msg)
    parts = pointer.split("/")[1:]
    if any("~" in part.replace("~0", "").replace("~1", "") for part in parts):
        msg = f"{pointer!r} is no JSON pointer: a tilde is written ~0"
        raise InvalidPointer(msg)
    return [part.replace("~1", "/").replace("~0", "~") for part in parts]


def blacken(body: Any, pointers: Iterable[list[str]]) -> Any:
    """Return *body* with every value replaced that a pointer leads to."""
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


def _line(thread: str, said: Sequence[Row], pointers: list[list[str]]) -> str:
    messages = [_message(message, pointers) for message in said]
    return json.dumps({"thread": thread, "messages": messages}, ensure_ascii=False)


def _message(message: Row, pointers: list[list[str]]) -> dict[str, Any]:
    frame = json.loads(message["frame"])
    plain = {name: message[name] for name in ("id", "sender", "recipient", "session", "type")}
    at = (
        None
        if message["at"] is None
        else (EPOCH + timedelta(microseconds=message["at"])).isoformat()
    )
    body = blacken(frame.get("data"), pointers) if "data_base64" not in frame else None
    return plain | {"at": at, "body": body}
