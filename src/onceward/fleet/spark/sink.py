"""Send a batch's rows as outbox messages, once: one transaction and one receipt for each file."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import quote

from onceward import Postbox, Transaction
from onceward.errors import (
    Conflict,
    InvalidArgument,
    InvalidMessage,
    OncewardError,
    UnknownRecipient,
)
from onceward.file.migrations import migrations
from onceward.fleet.columns import InvalidOption
from onceward.fleet.files import find
from onceward.fleet.opening import Unreadable, opened
from onceward.fleet.spark import bad_records
from onceward.message.names import DEFAULT_SESSION, quoted
from onceward.message.settings import DAY

Row = Mapping[str, Any]
Sender = tuple[str, str]
"""Whose rows they are: a file, or an agent whose file is to be found."""
RECEIPTS: Final = """
CREATE TABLE IF NOT EXISTS _onceward_spark_batches (
    query        TEXT    NOT NULL,
    batch        INTEGER NOT NULL,
    digest       TEXT    NOT NULL,
    messages     INTEGER NOT NULL,
    committed_at INTEGER NOT NULL,
    PRIMARY KEY (query, batch)
) STRICT, WITHOUT ROWID
"""
KNOWN: Final = "SELECT digest FROM _onceward_spark_batches WHERE query = ? AND batch = ?"
NEWEST: Final = "SELECT coalesce(max(batch), -1) FROM _onceward_spark_batches WHERE query = ?"
RECORD: Final = """
INSERT INTO _onceward_spark_batches (query, batch, digest, messages, committed_at)
VALUES (:query, :batch, :digest, :messages,
        CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER))
"""
FORGET: Final = """
DELETE FROM _onceward_spark_batches
 WHERE (query = :query AND batch < :batch - :kept)
    OR committed_at < CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER) - :for_ms
"""
NEVER: Final = (InvalidArgument, InvalidOption, UnknownRecipient, Conflict)
"""Errors of a row itself; with others the whole file may be tried again."""
KEPT: Final = 100
"""Batches of a query that a file remembers; a stream repeats only its last."""
KEPT_FOR: Final = 90 * DAY
"""Seconds for which a file remembers queries that have ended."""
OPTIONS: Final = (
    "type", "topic", "key", "priority", "ttl", "delay", "ordering_key", "correlation_id",
    "causation_id", "reply_to",
)  # fmt: skip
"""Columns that are options of ``send``."""
COLUMNS: Final = ("agent", "_db", "recipient", "body", "session", *OPTIONS)


WRITING: Final = {
    "path": "where agents' files are looked for by name: a glob or a folder; `save(...)` sets it",
    "query": "name of this writing: with it the same batch is never sent twice, however often the "
    "job runs; streams bring their own, also within `foreachBatch`, where two writings need a name "
    "each",
    "batch": "number of the batch within the query, such as the day; within `foreachBatch` by "
    "default the micro-batch's, else 0",
    "holdUnknown": "`true`: accept messages for recipients that are not known yet; `false`",
    "badRecordsPath": "a folder: a row that can never be sent goes there with its reason, as a "
    "line of JSON, and the others are sent; without it such a row fails the batch",
    "commits": "`driver`: all rows pass through it; `executors`: each task commits the files of "
    "its rows, so all rows of a sender must be in one task, as `send()` sees to",
    "busyTimeout": "seconds to wait for a file that others write to; 30",
}
"""The options of writing."""


class OtherRows(OncewardError):
    """The batch was already committed with other rows: make the query deterministic."""


class BatchTooOld(OncewardError):
    """The file has newer batches of this query: its checkpoint was rolled back; use a new one."""


class NoSuchAgent(OncewardError):
    """The row's agent has no file, or several: correct the row or the option path, or set _db."""


@dataclass(frozen=True, slots=True)
class Batch:
    """One batch of one query, and how it is to be sent."""

    query: str = ""
    number: int = 0
    paths: tuple[str, ...] = ()
    """Where agents' files are looked for by name."""
    hold_unknown: bool = False
    busy_timeout: float = 30.0
    bad_records_path: str = ""
    """Folder for rows that can never be sent; without it such a row fails the batch."""
    by_executors: bool = False
    """Whether tasks commit the files of their rows."""

    @property
    def bad_folder(self) -> Path | None:
        """The folder of this batch among them."""
        folder = self.bad_records_path.removeprefix("file://").removeprefix("file:")
        return Path(folder, quote(self.query, safe=""), str(self.number)) if folder else None


class Sent(NamedTuple):
    """Numbers of one file: of a batch, and of all that its agent has not delivered."""

    path: str
    agent: str
    messages: int
    bad_records: int
    waiting: int
    """Messages of the agent that are not delivered yet: its lag."""


def check_columns(names: Iterable[str]) -> None:
    """Raise InvalidOption unless rows with these columns can be sent."""
    given = set(names)
    if unknown := sorted(given - set(COLUMNS)):
        msg = f"column {unknown[0]!r} is unknown: the columns of a message are {', '.join(COLUMNS)}"
        raise InvalidOption(msg)
    if not {"recipient", "body"} <= given or not given & {"agent", "_db"}:
        msg = "a message needs the columns recipient and body, and agent or _db for its sender"
        raise InvalidOption(msg)


def hand_over(rows: Mapping[Sender, Sequence[Row]], batch: Batch) -> list[Sent]:
    """
    Send the rows of a batch, and return what each file got; files that know it are left out.

    May be called again after a crash at any point: files whose transaction was
    committed recognise the batch, the others get it. The rows of one file are
    in memory at a time.

    Raises:
        NoSuchAgent: nothing was sent; with ``bad_records_path`` its rows go there instead.
        OtherRows, BatchTooOld, Unreadable: of a file; the ones before it are committed, and the
            batch can be given again.
        SendError, StoreError: as ``Postbox.send`` raises them, likewise.

    """
    by_file: dict[str, list[Sender]] = {}
    for sender, path in _files(rows, batch).items():
        by_file.setdefault(path, []).append(sender)
    sent = []
    for path, senders in sorted(by_file.items()):
        _refuse_other_schema(path, batch.busy_timeout)
        mine = [row for sender in senders for row in rows[sender]]
        found = _send(path, mine, batch)
        if found is not None:
            sent.append(found)
    return sent


def _send(path: str, rows: Sequence[Row], batch: Batch) -> Sent | None:
    marks = [_mark(row) for row in rows]
    digest = hashlib.blake2b("".join(sorted(marks)).encode(), digest_size=16).hexdigest()
    with Postbox(
        path, start=False, hold_unknown=batch.hold_unknown, busy_timeout=batch.busy_timeout
    ) as box:
        with box.begin() as tx:
            tx.execute(RECEIPTS)
            if _seen(tx, path, batch, digest):
                return None
            bad = _send_rows(box, rows, marks, batch)
            bad_records.store(batch.bad_folder, path, bad)
            count = len(rows) - len(bad)
            _receipt(tx, batch, digest, count)
        return Sent(path, box.agent, count, len(bad), box.file.stats()["pending"])


def _send_rows(
    box: Postbox, rows: Sequence[Row], marks: Iterable[str], batch: Batch
) -> list[bad_records.BadRecord]:
    """Send rows within the transaction that is open; return those that can never be sent."""
    bad = []
    named = zip(rows, _ids(marks, box.agent, batch), strict=True)
    for session, group in groupby(named, key=lambda pair: pair[0].get("session")):
        with box.session(session or DEFAULT_SESSION).begin() as tx:
            for row, message_id in group:
                if not batch.bad_records_path:
                    _send_row(tx, row, message_id)
                    continue
                try:
                    with box.session(session or DEFAULT_SESSION).begin() as alone:
                        _send_row(alone, row, message_id)
                except NEVER as error:
                    if error.retryable:
                        raise
                    bad.append(bad_records.BadRecord(row, error))
    return bad


def _send_row(tx: Transaction, row: Row, message_id: str) -> None:
    if row["recipient"] is None:
        raise InvalidMessage("recipient is NULL: set it, or omit the row")
    options = _options(row)
    if "key" not in options:  # the row's own key tells a repetition by itself
        options["message_id"] = message_id
    tx.send(str(row["recipient"]), _body(row["body"]), **options)


def _receipt(tx: Transaction, batch: Batch, digest: str, messages: int) -> None:
    named = {"query": batch.query, "batch": batch.number}
    tx.execute(RECORD, named | {"digest": digest, "messages": messages})
    tx.execute(FORGET, named | {"kept": KEPT, "for_ms": round(KEPT_FOR * 1000)})


def _seen(tx: Transaction, path: str, batch: Batch, digest: str) -> bool:
    known = tx.execute(KNOWN, (batch.query, batch.number))
    if known and known[0][0] != digest:
        sent = f"{path}: batch {batch.number} of {batch.query} was already sent with other rows"
        one = ", and in one task if executors commit" if batch.by_executors else ""
        raise OtherRows(f"{sent}; its rows must be the same each time{one}")
    [(newest,)] = tx.execute(NEWEST, (batch.query,))
    if not known and newest > batch.number:
        asked = f"{path}: batch {batch.number} of {batch.query} is requested"
        raise BatchTooOld(f"{asked}, but {newest} was already sent")
    return bool(known)


def _ids(marks: Iterable[str], agent: str, batch: Batch) -> Iterator[str]:
    """Yield ids that depend on the rows alone, not on order, partitions or repetition."""
    ordinal: Counter[str] = Counter()
    for mark in marks:
        ordinal[mark] += 1
        text = json.dumps([batch.query, batch.number, agent, mark, ordinal[mark]])
        yield f"spark.{hashlib.blake2b(text.encode(), digest_size=16).hexdigest()}"


def _mark(row: Row) -> str:
    text = json.dumps(
        {name: row[name] for name in sorted(row)}, default=_spelt, separators=(",", ":")
    )
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def _spelt(value: object) -> str:
    return value.hex() if isinstance(value, bytes) else str(value)


def _body(value: Any) -> Any:
    """Return what is sent: text is JSON, bytes are bytes, structs and lists are themselves."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except ValueError as error:
        msg = f"body {quoted(value)} is not JSON: convert it with to_json, or cast it to BINARY"
        raise InvalidOption(msg) from error


def _options(row: Row) -> Any:
    return {name: row[name] for name in OPTIONS if row.get(name) is not None}


def _files(rows: Mapping[Sender, Sequence[Row]], batch: Batch) -> dict[Sender, str]:
    """Return the file of each sender; rows of senders without one may go to the bad records."""
    wanted = list(rows)
    known, lacking = _by_agent({agent for path, agent in wanted if not path}, batch.paths)
    if lacking and not batch.bad_records_path:
        raise lacking[min(lacking)]
    for agent in {agent for path, agent in wanted if not path}:
        error = lacking.get(agent)
        bad = (
            [] if error is None else [bad_records.BadRecord(row, error) for row in rows["", agent]]
        )
        bad_records.store(batch.bad_folder, f"agent {agent}", bad)
    found = {(path, agent): path or known.get(agent, "") for path, agent in wanted}
    return {sender: path for sender, path in found.items() if path}


def _by_agent(
    agents: set[str], paths: tuple[str, ...]
) -> tuple[dict[str, str], dict[str, NoSuchAgent]]:
    """Return the file of each agent, and why others have none; files of that name come first."""
    found = [one.path for one in find(paths)] if agents else []
    named = _owners([path for path in found if Path(path).stem in agents])
    if agents - named.keys():
        named = _owners(found)
    lacking = {}
    for agent in agents:
        if len(named.get(agent, ())) != 1:
            there = (
                ", ".join(named.get(agent, ()))
                or f"none of {len(found)} files in {', '.join(paths) or 'no path'}"
            )
            msg = f"agent {agent!r}: its file is {there}; there must be one"
            lacking[agent] = NoSuchAgent(msg)
    return {agent: named[agent][0] for agent in agents - lacking.keys()}, lacking


def _owners(paths: Iterable[str]) -> dict[str, list[str]]:
    owners: dict[str, list[str]] = {}
    for path in paths:
        with ExitStack() as stack:
            try:
                source = stack.enter_context(opened(path))
            except Unreadable:
                continue  # no agent's, as long as it cannot be read
            owners.setdefault(source.agent, []).append(path)
    return owners


def _refuse_other_schema(path: str, busy_timeout: float) -> None:
    """Refuse what opening would take through migrations, under an agent that does not expect it."""
    newest = migrations()[-1].version
    with opened(path, copy="never", busy_timeout=busy_timeout) as source:
        if source.version != newest:
            raise Unreadable(
                path,
                "older" if source.version < newest else "newer",
                f"its schema is {source.version}, ours {newest}",
            )
