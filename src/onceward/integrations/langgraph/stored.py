"""Store checkpoints, and the writes of their tasks, in an agent's file."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final, NamedTuple

from onceward.file.database import Database
from onceward.file.transaction import Rows, StoreTransaction
from onceward.integrations.tables import IntegrationTables

TABLES: Final = IntegrationTables(
    "langgraph",
    1,
    """
CREATE TABLE _onceward_checkpoints (
    thread_id     TEXT    NOT NULL,
    namespace     TEXT    NOT NULL,
    checkpoint_id TEXT    NOT NULL,
    parent_id     TEXT,
    run_id        TEXT,
    metadata      TEXT    NOT NULL,
    media         TEXT    NOT NULL,
    checkpoint    BLOB    NOT NULL,
    stored_at     INTEGER NOT NULL,
    PRIMARY KEY (thread_id, namespace, checkpoint_id)
) STRICT;
CREATE INDEX _onceward_checkpoints_by_run ON _onceward_checkpoints (run_id)
 WHERE run_id IS NOT NULL;
CREATE TABLE _onceward_checkpoint_writes (
    thread_id     TEXT    NOT NULL,
    namespace     TEXT    NOT NULL,
    checkpoint_id TEXT    NOT NULL,
    task_id       TEXT    NOT NULL,
    idx           INTEGER NOT NULL,
    task_path     TEXT    NOT NULL,
    channel       TEXT    NOT NULL,
    media         TEXT    NOT NULL,
    value         BLOB    NOT NULL,
    PRIMARY KEY (thread_id, namespace, checkpoint_id, task_id, idx)
) STRICT;
CREATE VIEW onceward_checkpoints AS
SELECT thread_id, namespace, checkpoint_id, parent_id, run_id,
       json_extract(metadata, '$.step') AS step, json_extract(metadata, '$.source') AS source,
       metadata AS body, length(checkpoint) AS bytes, stored_at
  FROM _onceward_checkpoints;
""",
)
STORE: Final = """
INSERT OR REPLACE INTO _onceward_checkpoints
       (thread_id, namespace, checkpoint_id, parent_id, run_id, metadata, media, checkpoint,
        stored_at)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)
"""
STORE_WRITE: Final = """
INSERT INTO _onceward_checkpoint_writes
       (thread_id, namespace, checkpoint_id, task_id, idx, task_path, channel, media, value)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (thread_id, namespace, checkpoint_id, task_id, idx) DO
"""
KEEP_WRITE: Final = f"{STORE_WRITE.rstrip()} NOTHING\n"
REPLACE_WRITE: Final = f"""{STORE_WRITE.rstrip()} UPDATE
   SET task_path = excluded.task_path, channel = excluded.channel, media = excluded.media,
       value = excluded.value
"""
COLUMNS: Final = """
SELECT thread_id, namespace, checkpoint_id, parent_id, run_id, metadata, media, checkpoint
  FROM _onceward_checkpoints
"""
ONE: Final = f"{COLUMNS} WHERE thread_id = ? AND namespace = ? AND checkpoint_id = ?"
NEWEST: Final = f"""
{COLUMNS} WHERE thread_id = ? AND namespace = ? ORDER BY checkpoint_id DESC LIMIT 1
"""
PAGE: Final = f"""
{COLUMNS}
 WHERE (:thread IS NULL OR thread_id = :thread)
   AND (:namespace IS NULL OR namespace = :namespace)
   AND (:id IS NULL OR checkpoint_id = :id)
   AND (:before IS NULL OR checkpoint_id < :before)
   AND (:after IS NULL OR (checkpoint_id, thread_id, namespace) < (:after, :in, :under))
 ORDER BY checkpoint_id DESC, thread_id DESC, namespace DESC
 LIMIT 50
"""
WRITES: Final = """
SELECT thread_id, namespace, checkpoint_id, task_id, idx, task_path, channel, media, value
  FROM _onceward_checkpoint_writes
 WHERE thread_id = ? AND namespace = ? AND checkpoint_id = ?
"""
DELETE_THREAD: Final = "DELETE FROM _onceward_checkpoints WHERE thread_id = ?"
DELETE_WRITES: Final = "DELETE FROM _onceward_checkpoint_writes WHERE thread_id = ?"
OF_RUN: Final = """
SELECT thread_id, namespace, checkpoint_id FROM _onceward_checkpoints WHERE run_id = ?
"""
DELETE_ONE: Final = """
DELETE FROM _onceward_checkpoints WHERE thread_id = ? AND namespace = ? AND checkpoint_id = ?
"""
DELETE_ITS_WRITES: Final = """
DELETE FROM _onceward_checkpoint_writes
 WHERE thread_id = ? AND namespace = ? AND checkpoint_id = ?
"""
COPY: Final = """
INSERT OR REPLACE INTO _onceward_checkpoints
SELECT :to, namespace, checkpoint_id, parent_id, run_id, metadata, media, checkpoint, :now
  FROM _onceward_checkpoints WHERE thread_id = :of
"""
COPY_WRITES: Final = """
INSERT OR REPLACE INTO _onceward_checkpoint_writes
SELECT :to, namespace, checkpoint_id, task_id, idx, task_path, channel, media, value
  FROM _onceward_checkpoint_writes WHERE thread_id = :of
"""
# A channel of deltas is read from the writes back to its last snapshot, so many are kept.
ANCESTRY: Final = """
SELECT namespace, checkpoint_id, parent_id,
       (SELECT max(json_extract(value, '$[1]'))
          FROM json_each(metadata, '$.counters_since_delta_snapshot'))
  FROM _onceward_checkpoints WHERE thread_id = ? ORDER BY namespace, checkpoint_id DESC
"""


class CheckpointPlace(NamedTuple):
    """Which checkpoint of a thread."""

    thread: str
    namespace: str
    id: str


class CheckpointRow(NamedTuple):
    """A checkpoint as it is stored."""

    thread: str
    namespace: str
    id: str
    parent: str | None
    run: str | None
    metadata: str
    media: str
    checkpoint: bytes

    @property
    def place(self) -> CheckpointPlace:
        """Return which one it is."""
        return CheckpointPlace(self.thread, self.namespace, self.id)


class WriteRow(NamedTuple):
    """A value that a task has written to a channel, after a checkpoint."""

    thread: str
    namespace: str
    id: str
    task: str
    idx: int
    path: str
    channel: str
    media: str
    value: bytes

    @property
    def place(self) -> CheckpointPlace:
        """Return the checkpoint that it belongs to."""
        return CheckpointPlace(self.thread, self.namespace, self.id)


class TaskWrite(NamedTuple):
    """A row to be stored; a special one takes the place of that of before."""

    row: WriteRow
    replaces: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """Which checkpoints are listed."""

    thread: str | None = None
    namespace: str | None = None
    id: str | None = None
    before: str | None = None

    def takes(self, row: CheckpointRow) -> bool:
        """Return whether a checkpoint is one of them."""
        return (
            self.thread in {None, row.thread}
            and self.namespace in {None, row.namespace}
            and self.id in {None, row.id}
            and (self.before is None or row.id < self.before)
        )


def store(
    tx: StoreTransaction, checkpoints: Iterable[CheckpointRow], writes: Iterable[TaskWrite]
) -> None:
    """Store checkpoints and writes; the tables are made if need be."""
    TABLES.make(tx)
    tx.many(STORE, [(*row, tx.now) for row in checkpoints])
    for write in writes:
        tx.run(REPLACE_WRITE if write.replaces else KEEP_WRITE, write.row)


def find(read: Rows, thread: str, namespace: str, checkpoint: str | None) -> CheckpointRow | None:
    """Return a checkpoint, the newest one without an id; None if there is none."""
    asked = (thread, namespace, checkpoint) if checkpoint else (thread, namespace)
    rows = read(ONE if checkpoint else NEWEST, asked)
    return CheckpointRow(*rows[0]) if rows else None


def writes_of(read: Rows, place: CheckpointPlace) -> list[WriteRow]:
    """Return the writes of the tasks that began with a checkpoint."""
    return [WriteRow(*row) for row in read(WRITES, place)]


def pages(db: Database, wanted: Wanted) -> Iterator[CheckpointRow]:
    """Return checkpoints in slices, the newest first."""
    named: dict[str, Any] = asdict(wanted) | {"after": None, "in": None, "under": None}
    while rows := db.ask(PAGE, named):
        yield from (CheckpointRow(*row) for row in rows)
        last = CheckpointRow(*rows[-1])
        named |= {"after": last.id, "in": last.thread, "under": last.namespace}


def delete_thread(tx: StoreTransaction, thread: str) -> None:
    """Delete a thread."""
    tx.run(DELETE_THREAD, (thread,))
    tx.run(DELETE_WRITES, (thread,))


def delete_runs(tx: StoreTransaction, runs: Sequence[str]) -> None:
    """Delete the checkpoints of runs, with the writes of their tasks."""
    for run in runs:
        _delete(tx, tx.rows(OF_RUN, (run,)))


def copy_thread(tx: StoreTransaction, of: str, to: str) -> None:
    """Copy a thread, with all its checkpoints."""
    tx.run(COPY, {"of": of, "to": to, "now": tx.now})
    tx.run(COPY_WRITES, {"of": of, "to": to})


def keep_latest(tx: StoreTransaction, thread: str) -> None:
    """Delete all checkpoints of a thread but the newest of each namespace, and what that needs."""
    rows = tx.rows(ANCESTRY, (thread,))
    parents = {(namespace, each): parent for namespace, each, parent, _ in rows}
    kept: set[tuple[str, str]] = set()
    seen: set[str] = set()
    for namespace, newest, _, deltas in rows:
        if namespace in seen:
            continue
        seen.add(namespace)
        each: str | None = newest
        for _ in range(1 + (deltas or 0)):
            if each is not None:
                kept.add((namespace, each))
                each = parents.get((namespace, each))
    _delete(tx, [(thread, *each) for each in parents if each not in kept])


def _delete(tx: StoreTransaction, places: list[tuple[Any, ...]]) -> None:
    tx.many(DELETE_ITS_WRITES, places)
    tx.many(DELETE_ONE, places)
