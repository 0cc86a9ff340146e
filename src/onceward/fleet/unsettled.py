"""Store between runs how far each file was read, and the unsettled messages."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import apsw

from onceward.errors import OncewardError, StoreCorrupt
from onceward.file.connection import connect, raise_meant, translate_error
from onceward.fleet.coverage import Reading
from onceward.fleet.evidence import VIEWS, expression
from onceward.fleet.files import Found
from onceward.fleet.manifest import OutputBusy
from onceward.fleet.register import Known
from onceward.fleet.verdict_sql import MINTED
from onceward.fleet.verdicts import VERDICTS
from onceward.message.clock import Millis

CREATE: Final = """
CREATE TABLE IF NOT EXISTS files (path TEXT PRIMARY KEY, mark TEXT NOT NULL, reading TEXT NOT NULL,
                                  places TEXT NOT NULL) STRICT;
CREATE TABLE IF NOT EXISTS unsettled (id TEXT, sender TEXT, recipient TEXT,
                                      PRIMARY KEY (id, sender, recipient)) STRICT, WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS settled (verdict TEXT PRIMARY KEY, messages INTEGER NOT NULL) STRICT;
CREATE TABLE IF NOT EXISTS settled_as (id TEXT, sender TEXT, recipient TEXT, verdict TEXT,
                                       messages INTEGER NOT NULL,
                                       PRIMARY KEY (id, sender, recipient, verdict))
                                       STRICT, WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS known_files (file INTEGER PRIMARY KEY, agent TEXT NOT NULL,
                                        path TEXT NOT NULL, seen_at INTEGER NOT NULL) STRICT;
CREATE TABLE IF NOT EXISTS run (one INTEGER PRIMARY KEY CHECK (one = 1), now INTEGER) STRICT;
PRAGMA user_version = 4
"""
VERSION: Final = "PRAGMA user_version"
OURS: Final = 4
TABLES: Final = "SELECT count(*) FROM sqlite_schema"
FORGET: Final = "".join(
    f"DELETE FROM {table};" for table in ("files", "unsettled", "settled", "settled_as", "run")
)
"""All but which files are known: what is read again may lack one of them."""
NOW: Final = "SELECT coalesce(max(now), 0) FROM run"
KEEP_NOW: Final = "INSERT OR REPLACE INTO run VALUES (1, ?)"
FILES: Final = "SELECT path, mark, reading, places FROM files"
UNSETTLED: Final = "SELECT id, sender, recipient FROM unsettled"
SETTLED: Final = "SELECT verdict, messages FROM settled"
KEEP_FILE: Final = """
INSERT INTO files VALUES (?, ?, ?, ?)
ON CONFLICT DO UPDATE SET mark = excluded.mark, reading = excluded.reading, places = excluded.places
"""
KNOWN: Final = "SELECT file, agent, path, seen_at FROM known_files ORDER BY path, file"
KNOW: Final = "INSERT OR REPLACE INTO known_files VALUES (?, ?, ?, ?)"
RETIRE: Final = "DELETE FROM known_files WHERE file = ?"
DROP_FILE: Final = "DELETE FROM files WHERE path = ?"
KEEP: Final = "INSERT OR IGNORE INTO unsettled VALUES (?, ?, ?)"
SETTLE: Final = "DELETE FROM unsettled WHERE id = ? AND sender = ? AND recipient = ?"
KEEP_VERDICT: Final = """
INSERT INTO settled_as VALUES (?, ?, ?, ?, ?)
ON CONFLICT DO UPDATE SET messages = messages + excluded.messages
"""
TAKE_BACK: Final = """
DELETE FROM settled_as WHERE id = ? AND sender = ? AND recipient = ? RETURNING verdict, messages
"""
COUNT: Final = """
INSERT INTO settled VALUES (?, ?) ON CONFLICT DO UPDATE SET messages = messages + excluded.messages
"""
HIGH: Final = "SELECT coalesce((SELECT seq FROM agent.sqlite_sequence WHERE name = ?), 0)"
AT: Final = "SELECT id || ' ' || {at} FROM agent.{view} WHERE seq = ?"
FINAL: Final = (
    *(verdict.name for verdict in VERDICTS if verdict.weight in {"good", "ended"}),
    "forgotten",
)
"""Verdicts that stay as they are once the sender has ended the message."""
IS_SETTLED: Final = f"verdict IN {FINAL} AND sender_says NOT IN ('pending', 'sending', 'sent')"
NOT_SETTLED: Final = f"SELECT id, sender, recipient FROM messages WHERE NOT ({IS_SETTLED})"
NEWLY: Final = f"""
  FROM messages
 WHERE {IS_SETTLED} AND ({MINTED} OR (id, sender, recipient) NOT IN ({NOT_SETTLED}))
"""
"""Of two tenants' messages with one chosen id neither is settled while the other is not."""
COMMON: Final = "delivered_once"
"""The verdict of nearly all messages; which minted ids have it is not written down."""
TOLD: Final = f"""
SELECT id, sender, recipient, verdict, count(*) {NEWLY} AND (verdict <> '{COMMON}' OR NOT {MINTED})
 GROUP BY id, sender, recipient, verdict
"""
REOPENED: Final = f"{NOT_SETTLED} AND NOT {MINTED}"
"""Chosen ids that are judged again: also for another tenant, for whom they had been settled."""
QUIET_NS: Final = 2_000_000_000
"""A file that changed less than this ago is read again: its times may not show a change."""
UNKNOWN_MARK: Final = "[]"
Key = tuple[Any, ...]
"""Id, sender and recipient of a message."""
Places = Mapping[str, tuple[int, str]]
"""By table: the highest sequence that was read, and the id and the moment of its row."""


class NoState(OncewardError):
    """The file is not a state of reconciliations: give another one, or a new name."""


@dataclass(frozen=True, slots=True)
class KnownFile:
    """A file as an earlier run has left it."""

    mark: str
    reading: Reading
    places: Places
    path: str


class State:
    """The state of earlier runs, in one transaction until ``commit``."""

    def __init__(self, con: apsw.Connection) -> None:
        self._con = con
        self.files = {
            str(path): KnownFile(str(mark), _reading(str(told)), _places(str(places)), str(path))
            for path, mark, told, places in con.execute(FILES).fetchall()
        }
        self.now = int(str(con.execute(NOW).fetchall()[0][0]))
        """The moment of the last run's reading."""

    def forget(self) -> None:
        """Restart: a file was rolled back or replaced, so settled messages are in doubt."""
        self._con.execute(FORGET)
        self.files, self.now = {}, 0

    def moved(self, paths: Iterable[str]) -> dict[int, KnownFile]:
        """Return the files, by number, that lay at none of *paths*: they may lie there now."""
        there = set(paths)
        return {one.reading.file: one for one in self.files.values() if one.path not in there}

    def known(self) -> list[Known]:
        """Return all files that earlier runs have read, but those that were retired."""
        rows = self._con.execute(KNOWN).fetchall()
        return [
            Known(int(str(file)), str(agent), str(path), int(str(at)))
            for file, agent, path, at in rows
        ]

    def retire(self, files: Iterable[Known]) -> None:
        """Delete files that will not come back."""
        self._con.executemany(RETIRE, ((one.file,) for one in files))

    def unsettled(self) -> Iterator[tuple[str, str, str]]:
        """Yield id, sender and recipient of each message that was not settled."""
        for message_id, sender, recipient in self._con.execute(UNSETTLED):
            yield str(message_id), str(sender), str(recipient)

    def settled(self) -> dict[str, int]:
        """Return how many messages earlier runs have settled, by verdict."""
        rows = self._con.execute(SETTLED).fetchall()
        return {str(verdict): int(str(count)) for verdict, count in rows if count}

    def take_back(self, doubtful: Iterable[Key], judged: Iterable[Key]) -> None:
        """
        Count messages no longer that are judged again.

        Of the *doubtful* ones those were settled that have verdicts here, or, if it was the
        common one, whose evidence an earlier run had *judged*.
        """
        common = set(judged)
        for key in doubtful:
            found = self._con.execute(TAKE_BACK, key).fetchall()
            for verdict, count in found or ([(COMMON, 1)] if key in common else []):
                self._con.execute(COUNT, (verdict, -int(str(count))))

    def keep_now(self, now: Millis) -> None:
        """Remember the moment of this run's reading."""
        self._con.execute(KEEP_NOW, (now,))

    def keep_file(
        self, found: Found, reading: Reading, places: Places, known: KnownFile | None, now: Millis
    ) -> None:
        """Remember how far a file was read *now*, and no longer where it was *known* to be."""
        self._con.execute(KNOW, (reading.file, reading.agent, found.path, now))
        if known is not None and known.path != found.path:
            self._con.execute(DROP_FILE, (known.path,))
        changed = max(found.mark[2], found.mark[4])
        quiet = time.time_ns() - changed > QUIET_NS
        mark = json.dumps(found.mark) if quiet else UNKNOWN_MARK
        row = (found.path, mark, json.dumps(asdict(reading)), json.dumps(places))
        self._con.execute(KEEP_FILE, row)

    def keep(self, messages: apsw.Connection, *, complete: bool) -> None:
        """
        Take over which messages of a workspace are settled.

        Of unsettled ones without any evidence nothing can be known later, either; they
        are kept only while the fleet is not *complete*.
        """
        if complete:
            self._con.execute("DELETE FROM unsettled")
        else:
            judged = messages.execute("SELECT id, sender, recipient FROM messages")
            self._con.executemany(SETTLE, judged)
        self._con.executemany(KEEP, messages.execute(NOT_SETTLED))
        self.take_back(messages.execute(REOPENED), ())
        self._con.executemany(KEEP_VERDICT, messages.execute(TOLD))
        counts = f"SELECT verdict, count(*) {NEWLY} GROUP BY verdict"
        self._con.executemany(COUNT, messages.execute(counts))

    def commit(self) -> None:
        """Commit the state, from which the next run continues."""
        self._con.execute("COMMIT")


@contextmanager
def kept(path: Path) -> Iterator[State]:
    """
    Open the state in *path*, created if missing; without ``commit`` it stays unchanged.

    Raises:
        OutputBusy: another run uses it.
        NoState: the file is something else.

    """
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    try:
        con = connect(path)
        try:
            con.execute("BEGIN IMMEDIATE")
            _prepare(con, path)
            yield State(con)
        finally:
            con.close()
    except apsw.BusyError as error:
        raise OutputBusy(f"another run uses {path}: wait until it has ended") from error
    except (apsw.NotADBError, StoreCorrupt) as error:
        raise NoState(f"{path} is not an SQLite database, or damaged: {error}") from error
    except apsw.Error as error:
        raise_meant(translate_error(error, path), error)
        raise


def _prepare(con: apsw.Connection, path: Path) -> None:
    [(version,)] = con.execute(VERSION).fetchall()
    [(tables,)] = con.execute(TABLES).fetchall()
    if version != OURS and tables:
        raise NoState(f"{path} is a database of another kind")
    con.execute(CREATE)


def places_of(con: apsw.Connection) -> Places:
    """Return how far the tables of the attached file go, at the moment of its evidence."""
    places = {}
    for box, view in VIEWS.items():
        [(high,)] = con.execute(HIGH, (f"_{view}",)).fetchall()
        places[box] = (int(str(high)), _row_at(con, box, int(str(high))))
    return places


def continues(con: apsw.Connection, known: Places, now: Places) -> bool:
    """Return whether the attached file still has what was *known* of it, but for what is pruned."""
    for box, (seq, row) in known.items():
        if now[box][0] < seq or _row_at(con, box, seq) not in {"", row}:
            return False
    return True


def _row_at(con: apsw.Connection, box: str, seq: int) -> str:
    """Return the id and the moment of a row; another history has another moment, if not an id."""
    sql = AT.format(view=VIEWS[box], at=expression(box, "at"))
    found = con.execute(sql, (seq,)).fetchall()
    return str(found[0][0]) if found else ""


def _reading(told: str) -> Reading:
    known = json.loads(told)
    known["streams"] = {name: tuple(one) for name, one in known["streams"].items()}
    return Reading(**known)


def _places(text: str) -> Places:
    return {box: (seq, row) for box, (seq, row) in json.loads(text).items()}
