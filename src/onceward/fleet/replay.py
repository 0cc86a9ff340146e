"""Replay or discard dead letters in bulk, by a plan that is written first, in agents' own files."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any, Final, Literal

import apsw

from onceward import Postbox
from onceward.errors import InvalidMessage, OncewardError
from onceward.fleet import manifest
from onceward.fleet.durable import replace_file
from onceward.fleet.export import InvalidCondition
from onceward.fleet.opening import Unreadable, opened

JOB: Final = "replay"
Action = Literal["replay", "discard"]
CHOSEN: Final = ("id", "origin", "sender", "recipient", "reason", "type", "dead_at")
LETTERS: Final = f"""
SELECT {", ".join(CHOSEN)} FROM onceward_dead_letters WHERE ({{where}}
) ORDER BY seq
"""
PLAN: Final = "plan.jsonl"
RECEIPTS: Final = "receipts.jsonl"
Rows = list[dict[str, Any]]


def plan(
    *paths: str | Path, out: str | Path, where: str = "1", action: Action = "replay"
) -> tuple[Rows, list[Unreadable]]:
    """
    Write to *out* which dead letters match, and change nothing; return them, and unread files.

    *where* is a condition in SQL on the columns of ``onceward_dead_letters``, whose moments are
    milliseconds. The plan is what ``carry_out`` does, no more and no less.

    Raises:
        InvalidCondition: *where* is not such a condition.
        OutputTaken: the folder is not empty, and not ours; or its plan was carried out.
        OutputBusy: another process writes into it.
        NamesNoFile: a path names no file; nothing is written.

    """
    wanted = manifest.plan([str(path) for path in paths], JOB)
    with manifest.alone(Path(out), JOB) as own:
        if (own / RECEIPTS).exists():
            msg = f"{out} has the receipts of an executed plan: give a new folder"
            raise manifest.OutputTaken(msg)
        planned = manifest.prepare(own, wanted, resume=False)
        rows: Rows = []
        unread: list[Unreadable] = []
        for file in planned["files"]:
            try:
                rows += _letters(file["path"], where)
            except Unreadable as error:
                unread.append(error)
        _write(own / PLAN, rows)
        told = {"where": where, "action": action, "planned": len(rows)}
        manifest.finish(own, planned | told | {"quarantined": len(unread)})
        return rows, unread


def _letters(path: str, where: str) -> Rows:
    with opened(path) as source:
        try:
            found = source.con.execute(LETTERS.format(where=where)).fetchall()
        except apsw.SQLError as error:
            raise InvalidCondition(f"where {where!r}: {error}") from error
    return [{"_db": path, **dict(zip(CHOSEN, row, strict=True))} for row in found]


def carry_out(out: str | Path) -> Rows:
    """
    Execute the plan in *out* once; return the receipts: ``_db, id, outcome, detail, at``.

    Outcomes: ``replayed`` or ``discarded``; ``gone`` if the dead letter no longer exists, such as
    after an interrupted run: repeating it has no second effect, because messages keep their ids;
    ``failed`` with the reason. Receipts are kept in *out*; a letter that has one is not touched
    again.

    Raises:
        FileNotFoundError: there is no plan in the folder.
        OutputBusy: another process executes it.

    """
    folder = Path(out)
    told = manifest.read(folder / manifest.NAME)
    if told is None or told["job"] != JOB:
        raise FileNotFoundError(f"there is no plan in {out}: create one first")
    with manifest.alone(folder, JOB) as own:
        done = list(_lines(own / RECEIPTS))
        known = {(row["_db"], row["id"]) for row in done}
        todo = [row for row in _lines(own / PLAN) if (row["_db"], row["id"]) not in known]
        _write(own / RECEIPTS, done)  # without a line that a killed run wrote in part
        with (own / RECEIPTS).open("a", encoding="utf-8") as file:
            for path, letters in groupby(todo, itemgetter("_db")):
                ids = [str(letter["id"]) for letter in letters]
                receipts = _settle(path, ids, told["action"])
                file.writelines(f"{json.dumps(row)}\n" for row in receipts)
                file.flush()
                os.fsync(file.fileno())
                done += receipts
        return done


def _settle(path: str, ids: list[str], action: Action) -> Rows:
    try:
        with Postbox(path, start=False) as box:
            return [_receipt(path, one, *_one(box, one, action)) for one in ids]
    except OncewardError as error:
        return [_receipt(path, one, "failed", str(error)) for one in ids]


def _one(box: Postbox, message_id: str, action: Action) -> tuple[str, str]:
    try:
        if action == "discard":
            return ("discarded", "") if box.dead_letters.discard(message_id) else ("gone", "")
        box.dead_letters.replay(message_id)
    except InvalidMessage:
        return "gone", ""
    except OncewardError as error:
        return "failed", str(error)
    return "replayed", ""


def _receipt(path: str, message_id: str, outcome: str, detail: str) -> dict[str, Any]:
    at = time.time_ns() // 1_000_000
    return {"_db": path, "id": message_id, "outcome": outcome, "detail": detail, "at": at}


def _write(path: Path, rows: Rows) -> None:
    """Write rows as JSON Lines, all or none."""
    replace_file(path, "".join(f"{json.dumps(row)}\n" for row in rows).encode())


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the rows of a file of JSON Lines; a last line that was not written whole is none."""
    if not path.exists():
        return
    with path.open(encoding="utf-8") as file:
        yield from (json.loads(line) for line in file if line.endswith("\n"))
