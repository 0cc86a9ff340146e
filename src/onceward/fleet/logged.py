"""
Read the evidence of a shipped log as if from its files, for every engine.

A file vouches for all that it has now, back to its horizons; a log alone for the state of its files
when a shipper looked at them last; a log beside its file only for rows that the file may have
pruned since. Another row of the log, which the file must have, shows a deletion (sides
``LOGGED_OUT`` and ``LOGGED_IN``).
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import apsw

from onceward.fleet import sides
from onceward.fleet.coverage import READ, Reading
from onceward.fleet.evidence import (
    COLUMNS,
    SHIPPED,
    expression,
    number_of,
    told,
    where,
)
from onceward.fleet.register import Known, gone, reading_of
from onceward.fleet.states import LOGGED_IN, LOGGED_OUT, LOST_MARK
from onceward.fleet.verdict_sql import PRUNABLE

if TYPE_CHECKING:
    from onceward.fleet.ship import LoggedFile, ShippedLog
    from onceward.fleet.ship.changes import Present

NAME: Final = re.compile(r'"(\w+)"')
PAST: Final = "_abandoned"
LOSE: Final = f"UPDATE temp.raw_processed SET {PAST} = 1"
RAW: Final = "CREATE TEMP TABLE raw_{box} ({names})"
CLEAR: Final = "DELETE FROM temp.raw_{box}"
KEEP: Final = "INSERT INTO temp.raw_{box} VALUES ({marks})"
HORIZONS: Final = "CREATE TEMP TABLE horizons (of_sender PRIMARY KEY, horizon_id) WITHOUT ROWID"
NO_HORIZONS: Final = "DELETE FROM temp.horizons"
HORIZON: Final = "INSERT INTO temp.horizons VALUES (?, ?)"
MAY_BE_PRUNED: Final[Mapping[str, str]] = {
    "outbox": "coalesce(ended_at, :clock) < :pruned_at",
    **dict.fromkeys(
        ("inbox", "processed"),
        f"({PRUNABLE} AND id <= coalesce("
        "(SELECT h.horizon_id FROM temp.horizons AS h WHERE h.of_sender = sender), ''))",
    ),
}
"""
The rows of the log that their file may have pruned since. A row that had not ended then cannot have
been pruned before the file's clock of that moment.
"""
ENDED: Final = dict.fromkeys(("outbox", "inbox"), '"ended_at" IS NOT NULL')
"""A row that may have ended and been pruned since says nothing of how it ended."""
LOGGED: Final[Mapping[str, int]] = {
    "outbox": LOGGED_OUT,
    "inbox": LOGGED_IN,
    "processed": LOGGED_IN,
}
LOGGED_ONLY: Final = ("state", "seq", "sent", "expires", "waits", "until")
"""Columns that a row of the log says nothing of, if its file must have the row itself."""


@dataclass(frozen=True, slots=True)
class Beside:
    """How far back a file that is read beside its log has its own rows."""

    clock: int
    """The latest moment that the file knew when it was shipped."""
    pruned_at: int = 0
    horizons: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, file: LoggedFile, copies: Iterable[Present]) -> Beside | None:
        """Return how far back copies of a file go; None if not all rows need be in each."""
        found = list(copies)
        if not found or len(file.living) > 1:
            return None
        horizons: dict[str, str] = {}
        for one in found:
            for sender, horizon in one.horizons.items():
                horizons[sender] = max(horizon, horizons.get(sender, ""))
        pruned = max(one.outbox_pruned_at or 0 for one in found)
        return cls(max(epoch.clock for epoch in file.living), pruned, horizons)


def load_log(
    con: apsw.Connection, uri: str, beside: Sequence[Reading] = (), retired: Collection[str] = ()
) -> list[Reading]:
    """
    Add the evidence of all files that were shipped to the log at *uri*; return its files.

    *beside* are the files that were read themselves: see ``load_file``. A file of the log that is
    not among them, nor *retired*, is returned a second time, as one that is gone. If another file
    of its agent is there instead, the agent was begun again: that is judged as a restore is.

    Raises:
        MissingExtra, NoLog, LogDamaged: see each; nothing is judged by a damaged log.

    """
    from onceward.fleet import ship  # noqa: PLC0415 - an extra

    log = ship.ShippedLog(uri)
    missed = missing(log, uri, beside, retired)
    begun_again = replaced(missed, beside)
    with con:  # one transaction: a row a commit was most of the work
        tables(con)
        readings = [
            load_file(con, log, uri, file, copies(beside, file))
            for file in log.files()
            if file.file_id not in begun_again
        ]
        for file_id in begun_again:
            load_lost(con, log, log.file(file_id))
    return readings + [reading_of(one) for one in missed]


def missing(
    log: ShippedLog, uri: str, beside: Sequence[Reading], retired: Collection[str] = ()
) -> list[Known]:
    """
    Return the files of a log that are not among those *beside* it, nor *retired*.

    None if the log is read alone, or while a file beside it could not be read: it may be the one.
    A copy that differs was read: it is not another file.
    """
    if not beside or any(one.state not in {READ, "differs"} for one in beside):
        return []
    known = [
        Known(number_of(each.file_id), each.agent, place(uri, each), each.seen_at)
        for each in log.files()
    ]
    return [one for one in gone(known, beside) if not one.named(retired)]


def replaced(missed: Iterable[Known], beside: Iterable[Reading]) -> list[str]:
    """Return the ids of missed files whose agents have other files, of those *beside* the log."""
    agents = {one.agent for one in beside}
    return [one.path.rpartition("#")[2] for one in missed if one.agent in agents]


def place(uri: str, file: LoggedFile) -> str:
    """Return the substitute for a file's path in the readings of a log."""
    return f"{uri}#{file.file_id}"


def tables(con: apsw.Connection) -> None:
    """Create the tables for the raw rows of a log."""
    for box in SHIPPED:
        con.execute(RAW.format(box=box, names=", ".join(_names(box))))
    con.execute(HORIZONS)


def copies(beside: Iterable[Reading], file: LoggedFile) -> list[str]:
    """Return the paths of the files that were read and have the id of one of the log."""
    number = number_of(file.file_id)
    return [one.path for one in beside if one.state == READ and one.file == number]


def load_file(
    con: apsw.Connection, log: ShippedLog, uri: str, file: LoggedFile, beside: Sequence[str]
) -> Reading:
    """
    Add the evidence of one file of a log, whose copies *beside* it were read themselves.

    Rows that the file may have pruned since it was shipped count; others that it must have show
    only what was deleted from it; those of a past that a restored file has overwritten show only
    what took effect twice. A file whose log is not level with it yet
    counts as unread and adds nothing; so does one of whose copies none goes on with what was
    shipped: it was restored since.

    Raises:
        LogDamaged: an object is missing or was changed.

    """
    from onceward.fleet.ship.lineage import going_on  # noqa: PLC0415 - an extra

    path = place(uri, file)
    if not file.complete:
        return Reading(path, "changing", "its log is not up to date with the file yet")
    found = [one for each in beside if (one := going_on(each, file.living)) is not None]
    if beside and not found:
        return Reading(path, "changing", "its file was restored since then: ship it first")
    own = Beside.of(file, found)
    if own is not None:
        con.execute(NO_HORIZONS)
        con.executemany(HORIZON, own.horizons.items())
    for box in SHIPPED:
        for batch in log.batches(box, columns=_names(box), files=[file]):
            _keep(con, box, batch)
        _add(con, box, number_of(file.file_id), own)
    return Reading.of(path, said(file))


def load_lost(con: apsw.Connection, log: ShippedLog, file: LoggedFile) -> None:
    """Add only the effects in a log's file that another file of its agent replaced."""
    for batch in log.batches("processed", columns=_names("processed"), files=[file]):
        _keep(con, "processed", batch)
    con.execute(LOSE)
    _add(con, "processed", number_of(file.file_id))


def said(file: LoggedFile) -> str:
    """Return the facts of a log's file, like ``evidence.FILE_FACTS`` of a file."""
    horizons: dict[str, str] = {}
    for epoch in file.living:
        for sender, horizon in epoch.horizons.items():
            horizons[sender] = max(horizon, horizons.get(sender, ""))
    pruned = (epoch.outbox_pruned_at for epoch in file.living)
    facts = {
        "agent": file.agent,
        "file_id": file.file_id,
        "pruned_at": max(filter(None, pruned), default=None),
        "streams": {sender: ("", horizon) for sender, horizon in horizons.items()},
        "peers": {},
        "upto_at": max(file.clock, file.seen_at),
    }
    return json.dumps(facts)


def _names(box: str) -> list[str]:
    """Return the columns of a view for its evidence."""
    said = " ".join([*(expression(box, name) for name in COLUMNS), where(box), *_ended(box)])
    return [PAST, *sorted(set(NAME.findall(said)))]


def _keep(con: apsw.Connection, box: str, batch: Any) -> None:
    """Add a batch of a log to the raw rows; its moments become milliseconds."""
    from onceward.fleet.ship.segments import plain  # noqa: PLC0415 - an extra

    names = _names(box)
    values = [plain(batch.column(name)) for name in names]
    marks = ", ".join("?" * len(names))
    con.executemany(KEEP.format(box=box, marks=marks), zip(*values, strict=True))


def _add(con: apsw.Connection, box: str, file: int, own: Beside | None = None) -> None:
    """Turn the raw rows into evidence; beside their own file only what it may have pruned."""
    present = f"NOT {PAST}" + (f" AND {where(box)}" if where(box) else "")
    if box == "processed":  # of a past that a restored file has overwritten, only these count
        _put(con, box, f"{PAST} AND {where(box)}", {"file": file}, side=str(LOST_MARK))
    if own is None or box not in MAY_BE_PRUNED:
        _put(con, box, present, {"file": file})
    else:
        pruned, named = MAY_BE_PRUNED[box], _named(box, file, own)
        _put(con, box, " AND ".join([present, pruned, *_ended(box)]), named)
        says = dict.fromkeys(LOGGED_ONLY, "NULL") | {"side": str(LOGGED[box])}
        _put(con, box, f"{present} AND NOT ({pruned})", named, **says)
    con.execute(CLEAR.format(box=box))


def _ended(box: str) -> list[str]:
    return [ENDED[box]] if box in ENDED else []


def _named(box: str, file: int, own: Beside) -> dict[str, int]:
    moments = {"clock": own.clock, "pruned_at": own.pruned_at} if box == "outbox" else {}
    return {"file": file, **moments}


def _put(
    con: apsw.Connection, box: str, condition: str, named: Mapping[str, int], **instead: str
) -> None:
    sides.put(con, told(box, **instead), f"temp.raw_{box} WHERE {condition}", named)
