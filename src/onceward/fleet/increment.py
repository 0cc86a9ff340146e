"""Read only the new rows of each file, and the messages that were unsettled before."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import apsw

from onceward.fleet import sides
from onceward.fleet.copies import differing, load_apart
from onceward.fleet.coverage import READ, Reading
from onceward.fleet.evidence import COLUMNS, VIEWS
from onceward.fleet.files import Found
from onceward.fleet.loading import add, attached, reading_of
from onceward.fleet.opening import Unreadable
from onceward.fleet.unsettled import KnownFile, Places, State, continues, places_of
from onceward.fleet.verdict_sql import MINTED
from onceward.message.clock import Millis

AGAIN: Final = (
    "CREATE TEMP TABLE again (id, sender, recipient, PRIMARY KEY (id, sender, recipient))"
)
BY_SENDER: Final = "CREATE INDEX temp.again_sender ON again (sender)"
BY_RECIPIENT: Final = "CREATE INDEX temp.again_recipient ON again (recipient)"
ADD: Final = "INSERT INTO temp.again VALUES (?, ?, ?)"
DOUBTFUL: Final = """
SELECT id, sender, recipient FROM temp.evidence
 GROUP BY id, sender, recipient
HAVING min(side) >= 3 OR max(side) <= 2 OR min(CASE WHEN side <= 2 THEN at END) < :since
EXCEPT SELECT id, sender, recipient FROM temp.again
"""
"""Messages that an earlier run may have known: one side is new, or both of an older message."""
EARLIER: Final = "earlier"
CREATE_EARLIER: Final = f"CREATE TEMP TABLE {EARLIER} ({', '.join(COLUMNS)})"
JUDGED: Final = f"SELECT DISTINCT id, sender, recipient FROM temp.{EARLIER} WHERE {MINTED}"
EMPTY: Final = "DELETE FROM temp.{table}"
CONCERNS: Final = "SELECT 1 FROM temp.again WHERE sender = ?1 OR recipient = ?1 LIMIT 1"
NONE: Final[Mapping[str, str]] = {}
NEW: Final = "seq > :after"
# By id: the plus keeps SQLite from scanning the sequence instead.
BEFORE: Final = {
    "outbox": "id IN (SELECT a.id FROM temp.again AS a WHERE a.sender = :agent)",
    "inbox": "(sender, id) IN (SELECT a.sender, a.id FROM temp.again AS a"
    " WHERE a.recipient = :agent)",
    "processed": "(sender, id) IN (SELECT a.sender, a.id FROM temp.again AS a"
    " WHERE a.recipient = :agent)",
    "dead_letters": "id IN (SELECT a.id FROM temp.again AS a"
    " WHERE a.sender = :agent OR a.recipient = :agent)",
    "differing_messages": "id IN (SELECT a.id FROM temp.again AS a"
    " WHERE a.sender = :agent OR a.recipient = :agent)",
}


class WentBackError(Exception):
    """A file has another history: messages that were settled with it must be judged again."""


@dataclass(frozen=True, slots=True)
class Progress:
    """A file as this run has read it."""

    found: Found
    reading: Reading
    places: Places
    known: KnownFile | None = None
    """The file after an earlier run, here or at another path."""


def load_changes(con: apsw.Connection, files: Sequence[Found], state: State) -> list[Progress]:
    """
    Add the new evidence since *state*, and all evidence of unsettled messages.

    If a file was rolled back or replaced, or a copy differs from it, the state is discarded and
    everything is read.
    """
    con.execute(AGAIN)
    con.execute(BY_SENDER)
    con.execute(BY_RECIPIENT)
    con.execute(CREATE_EARLIER)
    try:
        done = _load(con, files, state)
    except WentBackError:
        done = _load_all(con, files, state)
    apart = differing(con, (one.reading for one in done))
    return _load_all(con, files, state, apart) if apart else done


def _load_all(
    con: apsw.Connection, files: Sequence[Found], state: State, apart: Mapping[str, str] = NONE
) -> list[Progress]:
    """Restart without a state; from copies *apart*, add only repeated effects."""
    state.forget()
    sides.empty(con)
    for table in ("again", EARLIER):
        con.execute(EMPTY.format(table=table))
    others = _load(con, [found for found in files if found.path not in apart], state)
    return others + [
        Progress(found, load_apart(con, found.path, apart[found.path]), {})
        for found in files
        if found.path in apart
    ]


def _load(con: apsw.Connection, files: Sequence[Found], state: State) -> list[Progress]:
    con.executemany(ADD, state.unsettled())
    moved = state.moved(found.path for found in files)
    done = [_file(con, found, state.files.get(found.path), moved) for found in files]
    if state.files:
        doubtful = con.execute(DOUBTFUL, {"since": state.now}).fetchall()
        con.execute(EMPTY.format(table="again"))
        con.executemany(ADD, doubtful)
        done = [_read_earlier(con, one) for one in done]
        sides.merge(con, EARLIER)
        state.take_back(doubtful, con.execute(JUDGED))
    return done


def _file(
    con: apsw.Connection, found: Found, known: KnownFile | None, moved: Mapping[int, KnownFile]
) -> Progress:
    """Add the new rows of one file, and the earlier ones of messages in question."""
    same = known is not None and known.mark == json.dumps(found.mark)
    if known is not None and same and not _concerned(con, known.reading):
        return Progress(found, known.reading, known.places, known)
    try:
        with attached(con, found.path):
            reading, places = reading_of(con, found.path), places_of(con)
            known = known or moved.get(reading.file)
            if known is not None and (
                known.reading.file != reading.file or not continues(con, known.places, places)
            ):
                raise WentBackError
            for box in VIEWS:
                after = known.places[box][0] if known is not None else 0
                add(con, box, NEW, reading.file, [("after", after)])
                if after:
                    _earlier(con, box, after, reading)
            return Progress(found, reading, places, known)
    except Unreadable as error:
        return Progress(found, Reading(found.path, error.reason, error.detail), {})


def _earlier(con: apsw.Connection, box: str, after: int, reading: Reading, table: str = "") -> None:
    condition = f"+seq <= :after AND {BEFORE[box]}"
    named = [("after", after), ("agent", reading.agent)]
    add(con, box, condition, reading.file, named, table=table)


def _read_earlier(con: apsw.Connection, one: Progress) -> Progress:
    """Add the evidence of an earlier run for messages that it may have known."""
    if one.known is None or one.reading.state != READ or not _concerned(con, one.reading):
        return one
    try:
        with attached(con, one.found.path):
            for box, (after, _) in one.known.places.items():
                _earlier(con, box, after, one.reading, EARLIER)
    except Unreadable as error:
        return Progress(one.found, Reading(one.found.path, error.reason, error.detail), {})
    return one


def _concerned(con: apsw.Connection, reading: Reading) -> bool:
    """Return whether messages in question are from or for the agent of a file."""
    return bool(con.execute(CONCERNS, (reading.agent,)).fetchall())


def remember(state: State, done: Iterable[Progress], now: Millis) -> None:
    """Record how far each file was read; an unreadable one continues from its old position."""
    for one in done:
        if one.reading.state == READ:
            state.keep_file(one.found, one.reading, one.places, one.known, now)
    state.keep_now(now)
