"""
Maintain one file: end messages at a restart or expiry, and prune old rows.

Work is done in slices, between which writers get their turn; correctness does not depend on it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import TYPE_CHECKING, Final, NamedTuple

from onceward.core.end import received
from onceward.core.rows import holders, inbox, lanes, limits, outbox, senders, tickets
from onceward.core.run import recovery
from onceward.core.run.engine_loop import EngineLoop
from onceward.core.run.threads import engine_threads
from onceward.errors import SchemaTooNew
from onceward.file import identity, migrations
from onceward.file.database import Database
from onceward.file.environment import disabled_by_environment
from onceward.file.identity import note_pruned
from onceward.file.transaction import StoreTransaction, bump
from onceward.hooks import Hooks
from onceward.message.clock import Millis
from onceward.message.events import EphemeralDropped
from onceward.message.settings import Settings
from onceward.message.vocabulary import reason_text

if TYPE_CHECKING:
    from onceward.file.owner_lock import OwnerLock

Prune = Callable[..., int]
"""Deletes up to *limit* rows that ended before *before*; returns how many."""
Walk = Callable[..., tuple[int, int]]
"""Prunes one slice after a sequence; returns where to continue, and the number of rows."""
Step = Callable[[StoreTransaction, int], tuple[int, int]]
"""Ends or prunes one slice; takes and returns as ``Walk``: -1 says that no more is to be done."""


SKIPPED: Final = 9
"""Maximum rounds that a file at rest skips: each would parse its schema again."""
VACUUM: Final = "PRAGMA incremental_vacuum(200)"
# Messages under a lane's lease, of a run, or held by readers of a feature, are not dropped.
EPHEMERAL: Final = """
SELECT b.seq, b.mailbox IS NOT NULL FROM _onceward_inbox AS b
 WHERE b.ephemeral IS NOT NULL AND b.state = 'pending' AND b.run_seq IS NULL AND b.seq > :after
   AND b.seq NOT IN (SELECT j.value
                       FROM _onceward_lanes AS l, json_each(l.leased_seqs) AS j
                      WHERE l.leased_seqs IS NOT NULL)
{held} ORDER BY b.seq LIMIT :limit
"""
NOT_TAKEN: Final = reason_text("ephemeral", "not taken before a restart")


class Upkeep(NamedTuple):
    """A feature's work in each round of maintenance."""

    expire: Callable[..., int] | None = None
    """Ends up to *limit* expired messages; returns how many."""
    prune: Prune | None = None
    keep: Callable[[Database], None] | None = None
    """Brings indexes up to date."""
    home: Callable[..., int] | None = None
    """Does up to *limit* of the home's work at an opening; returns how much."""
    held: str | None = None
    """SQL: sequences of messages that its readers hold at :now; a restart drops none of them."""


@cache
def _ephemeral(held: tuple[str, ...]) -> str:
    """Return the statement that reads ephemeral messages that no reader holds."""
    return EPHEMERAL.format(held="".join(f"   AND b.seq NOT IN ({each})\n" for each in held))


class _Left(NamedTuple):
    """The state of the file after a round."""

    version: int = -1
    expires_at: Millis | None = None
    """When the next message expires."""
    skipped: int = 0
    """Number of rounds since then that were skipped."""


class Maintenance:
    """
    Maintains one file at intervals, in slices between which writers get their turn.

    A file that rests is left alone in up to ``SKIPPED`` rounds: until it changes or a message
    expires, only old rows could be pruned, and those may stay a few minutes longer.
    """

    def __init__(
        self,
        db: Database,
        *,
        settings: Settings,
        upkeep: Sequence[Upkeep] = (),
        extra_tasks: Sequence[Callable[[int], int]] = (),
    ) -> None:
        self._db, self._settings, self._extra_tasks = db, settings, extra_tasks
        self._expires = [each.expire for each in upkeep if each.expire is not None]
        self._prunes = [each.prune for each in upkeep if each.prune is not None]
        self._indexes = [each.keep for each in upkeep if each.keep is not None]
        self._left = _Left()
        self._loop = EngineLoop(
            db, "maintenance", self._look, pause=settings.tuning.maintenance_interval
        )

    def start(self) -> None:
        """Start maintenance in the background, first after one interval."""
        self._loop.start(delay=self._settings.tuning.maintenance_interval)

    def stop(self, timeout: float) -> None:
        """Stop after the current slice; wait up to *timeout* seconds for it."""
        self._loop.stop(timeout)

    def _look(self) -> float:
        rests, left = self._db.rests, self._left
        if rests and left.skipped < SKIPPED and self._is_unchanged(left):
            self._left = left._replace(skipped=left.skipped + 1)
            self._run_extra_tasks()
            return self._settings.tuning.maintenance_interval
        self.run_once()
        version = self._db.version_if_open()  # first: a message that comes now is a change
        expires_at = inbox.next_expiry(self._db.read)
        if rests:
            engine_threads().rests.rest_again(self._db)
        self._left = _Left(version, expires_at)
        return self._settings.tuning.maintenance_interval

    def _is_unchanged(self, left: _Left) -> bool:
        """Return whether nothing has come into the file or expired there since the last round."""
        due = left.expires_at is not None and left.expires_at <= self._db.now()
        return not due and left.version == self._db.version_if_open()

    def run_once(self) -> int:
        """Do one round; return how many rows were pruned."""
        self._refuse_upgraded()
        before = self._db.now() - round(1000 * self._settings.retention)
        limit = self._settings.tuning.retention_slice
        self._expire(limit)
        walks = [_walking(partial(slice_of, box=box), before, limit) for box in ("outbox", "inbox")]
        walks.append(_walking(senders.prune_marks, before, limit))
        prunes = [partial(each, before=before, limit=limit) for each in (prune_misc, *self._prunes)]
        pruned = self._write_slices([*walks, *map(_repeated, prunes)])
        forgets = (
            partial(lanes.forget_empty, limit=limit),
            partial(senders.prune_receipts, before=before),
        )
        self._write_slices([_repeated(each) for each in forgets])
        if pruned:
            self._db.write(lambda tx: tx.rows(VACUUM))
        for index in self._indexes:
            index(self._db)
        self._db.persist_clock()
        self._checkpoint()
        self._run_extra_tasks()  # last: the directory that these tasks read may be broken
        return pruned

    def _run_extra_tasks(self) -> None:
        for task in self._extra_tasks:
            self._until_done(partial(task, self._settings.tuning.retention_slice))

    def _refuse_upgraded(self) -> None:
        """Close a file that a newer version has upgraded; every later write raises SchemaTooNew."""
        try:
            self._db.write(migrations.pending)
        except SchemaTooNew:
            with self._db.writer.exclusive():
                self._db.reopen()

    def _expire(self, limit: int) -> None:
        """End expired messages; nothing expires while the file or the environment is paused."""
        if disabled_by_environment() or identity.is_paused(self._db.read):
            return
        expires = (partial(each, limit=limit) for each in (*self._expires, received.expire))
        self._write_slices([_repeated(each) for each in expires])

    def _write_slices(self, steps: Sequence[Step]) -> int:
        """Do all steps to their ends, each slice that changes rows in a commit; return how many."""
        at, after, total = 0, 0, 0
        while at < len(steps) and not self._loop.stopping.is_set():
            at, after, count = self._db.write(partial(_until_changed, steps, at, after))
            total += count
        return total

    def _until_done(self, work: Callable[[], int]) -> int:
        total = 0
        while not self._loop.stopping.is_set() and (count := work()):
            total += count
        return total

    def _checkpoint(self) -> None:
        """Truncate a WAL above its limit; below it SQLite's automatic checkpoints do the work."""
        self._db.checkpoint(truncate=self._db.wal_bytes() > self._settings.tuning.wal_limit)
        self._db.close_idle()


def _walking(walk: Walk, before: Millis, limit: int) -> Step:
    return lambda tx, after: walk(tx, after=after, before=before, limit=limit)


def _repeated(work: Callable[[StoreTransaction], int]) -> Step:
    """Return the step that repeats *work* until it changes nothing."""

    def step(tx: StoreTransaction, _after: int) -> tuple[int, int]:
        count = work(tx)
        return (0 if count else -1), count

    return step


def _until_changed(
    steps: Sequence[Step], at: int, after: int, tx: StoreTransaction
) -> tuple[int, int, int]:
    """
    Do slices, those of step *at* first, until one has changed rows or its step has more to read.

    Return the step and the sequence to continue from, and the number of rows. In a file where
    nothing is due, all steps share one transaction.
    """
    count, more = 0, False
    while at < len(steps) and not (count or more):
        after, count = steps[at](tx, after)
        more = after > 0
        if after < 0:
            at, after = at + 1, 0
    return at, after, count


class OwnerSession:
    """
    One opening's hold on a session of the file's owner.

    A session lasts as long as any process has a postbox of the file open, with or without engines.
    An opening with engines that finds no other begins a new session: ephemeral messages of the last
    session are dropped before an engine starts, and messages that may have killed one of its
    workers are claimed alone. An opening without engines (a read, a command) never begins a
    session, so it drops nothing.
    """

    def __init__(
        self,
        db: Database,
        settings: Settings,
        hooks: Hooks,
        *,
        vfs: str | None,
        upkeep: Sequence[Upkeep] = (),
    ) -> None:
        self._db, self._hooks, self._slice = db, hooks, settings.tuning.retention_slice
        self._held = tuple(each.held for each in upkeep if each.held is not None)
        self._path, self._patience = None if vfs else db.path, settings.busy_timeout
        self._presence: OwnerLock | None = None

    def begin(self, *, engines: bool, alone: Callable[[], None] | None = None) -> int:
        """
        Join the session, or begin one if there is none and *engines* will start.

        *alone* is called before others can join a session that begins. Return how many ephemeral
        messages were dropped.
        """
        if self._path is None:
            return 0
        from onceward.file.owner_lock import OwnerLock  # noqa: PLC0415 - not before an opening

        self._presence = OwnerLock(self._path, patience=self._patience)
        first = engines and self._presence.exclusive
        if first and (holders.owners(self._db.read) or self._db.in_flight.dead()):
            self._db.write(recovery.end_workers)
        if first and alone is not None:
            alone()
        dropped = self._drop() if first and not disabled_by_environment() else 0
        self._presence.share()
        if dropped:
            self._hooks.hold(
                EphemeralDropped(agent=self._db.agent, at=self._db.now(), count=dropped)
            )
        return dropped

    def _drop(self) -> int:
        after, dropped = 0, 0
        drop = partial(drop_ephemeral, limit=self._slice, held=self._held)
        while after >= 0:
            count, after = self._db.write(partial(drop, after=after))
            dropped += count
        if dropped:
            self._db.notifier.notify("out")
        return dropped

    def end(self) -> None:
        """Close the file and leave the session."""
        self._db.close()
        if self._presence is not None:
            self._presence.close()


def drop_ephemeral(
    tx: StoreTransaction, *, after: int, limit: int, held: tuple[str, ...] = ()
) -> tuple[int, int]:
    """
    Drop the next ephemeral messages that no reader has taken.

    Return how many, and the sequence to continue from, -1 at the end. Their senders get a receipt
    of every dropped message.
    """
    if identity.is_paused(tx.rows):
        return 0, -1
    found = tx.rows(_ephemeral(held), {"after": after, "limit": limit, "now": tx.now})
    if not found:  # as in most openings: statements that are not prepared take no memory
        return 0, -1
    seqs = [int(seq) for seq, _ in found]
    boxed = [int(seq) for seq, in_box in found if in_box]
    received.end_unclaimed(
        tx, [int(seq) for seq, in_box in found if not in_box], "dropped", NOT_TAKEN
    )
    gone = inbox.drop_ephemeral(tx, boxed, NOT_TAKEN)
    bump(tx, dropped=gone, ended=gone, ephemeral_dropped=len(seqs))
    return len(seqs), seqs[-1] if len(seqs) == limit else -1


class ArchivedRow(NamedTuple):
    """A row in an archive."""

    seq: int
    id: str
    state: str
    ended_at: Millis


ENDED: Final = {"outbox": outbox.ENDED, "inbox": inbox.ENDED}
"""By table: deletes its ended rows."""


def slice_of(
    tx: StoreTransaction, box: str, *, after: int, before: Millis, limit: int
) -> tuple[int, int]:
    """
    Prune one slice of ``outbox`` or ``inbox`` after sequence *after*.

    Return (sequence to continue from, -1 at the end; rows pruned).
    """
    ended = ENDED[box]
    rows = ended.slice_of(tx, after=after, before=before, limit=limit)
    gone = [(seq,) for seq, old, ended in rows if old and ended]
    ended.remove(tx, gone)
    if gone and box == "outbox":
        note_pruned(tx, before)
    return senders.next_after([(seq, old) for seq, old, _ in rows], limit), len(gone)


def prune_misc(tx: StoreTransaction, *, before: Millis, limit: int) -> int:
    """Prune a slice of rows outside outbox and inbox; return how many."""
    from onceward.core.rows import differing, late_changes  # noqa: PLC0415 - not before an opening

    owned = (tickets.prune, limits.prune_drops, inbox.prune_attempts, differing.prune)
    return late_changes.prune(tx, limit) + sum(
        prune(tx, before=before, limit=limit) for prune in owned
    )


def prune_archived(tx: StoreTransaction, box: str, rows: Sequence[ArchivedRow]) -> int:
    """
    Prune unchanged rows of ``outbox`` or ``inbox``; return how many.

    A row that changed since it was archived stays.
    """
    gone = [at for row in rows for at in ENDED[box].remove_archived(tx, row._asdict())]
    if gone and box == "outbox":
        note_pruned(tx, max(gone) + 1)
    return len(gone)
