"""
Bugs that are planted on purpose, so that the explorer can be seen to find them.

And an older version of the schema.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

import apsw
from tests.proof.plant import replaced

from onceward.core.accept.accept import Receiver, store_own
from onceward.core.accept.own import OwnMessages
from onceward.core.handle.commit_batch import HandlerCommitBatch
from onceward.core.rows import lanes
from onceward.core.rows.outbox import frame_of
from onceward.errors import InvalidArgument
from onceward.features.cancellation.cancellation import Cancelling
from onceward.features.handler_limits import turns
from onceward.features.handler_limits.groups import GroupGate
from onceward.features.steps import awaited, stored
from onceward.features.steps.steps import MessageSteps, StepCall
from onceward.features.steps.stored import StepRecord
from onceward.features.streams import stored as chunks
from onceward.features.streams.output import MessageStreams
from onceward.file import image, migrations
from onceward.file.connection import connect
from onceward.file.migrations import Migration
from onceward.file.transaction import StoreTransaction
from onceward.message.clock import Millis
from onceward.message.frame import digest
from onceward.message.record import Cancellation

NO_BARRIER: Final = """
SELECT max(clock_at, ?1), coalesce(?5, max_inbox), coalesce(?6, max_body),
       coalesce(?7, foreign_keys), takeover, opened,
       coalesce((SELECT seq FROM sqlite_sequence WHERE name = '_onceward_outbox'), 0),
       coalesce((SELECT seq FROM sqlite_sequence WHERE name = '_onceward_inbox'), 0)
  FROM _onceward_file_info
 WHERE coalesce(?2, ?3, ?4) IS NOT NULL
"""
NEWER: Final = Migration(
    9999,
    "9999_town",
    "ALTER TABLE _onceward_inbox ADD COLUMN town INTEGER NOT NULL DEFAULT 0; "
    "UPDATE _onceward_inbox SET town = seq;"
    "CREATE TABLE town_parcels AS SELECT seq, id, length(frame) AS size FROM _onceward_outbox; "
    "CREATE INDEX town_sizes ON town_parcels (size);",
)
HAND_OVER: Final = f"""
INSERT INTO peer._onceward_lanes (sender, name, rank, session)
  SELECT DISTINCT 'near', lane, rank, session FROM main._onceward_outbox WHERE state = 'pending'
ON CONFLICT DO NOTHING;
INSERT INTO peer._onceward_inbox (sender, id, lane_id, session, type, topic, rank, frame, digest,
  received_at)
SELECT 'near', id, (SELECT lane_id FROM peer._onceward_lanes AS l
         WHERE l.sender = 'near' AND l.name = o.lane AND l.rank = o.rank),
       session, type, topic, rank, {frame_of("o")}, digest_of({frame_of("o")}), :now
  FROM main._onceward_outbox AS o WHERE state = 'pending' ORDER BY seq;
UPDATE peer._onceward_lanes SET head_seq = (SELECT min(seq) FROM peer._onceward_inbox AS i
  WHERE i.lane_id = _onceward_lanes.lane_id AND i.state = 'pending')
 WHERE head_seq IS NULL;
UPDATE main._onceward_counters SET value = value + (SELECT count(*) FROM main._onceward_outbox
  WHERE state = 'pending') WHERE name = 'ended_pending';
UPDATE main._onceward_outbox SET state = 'acked', sent_at = :now, ended_at = :now, due_at = NULL
  WHERE state = 'pending';
"""


@contextmanager
def all_of(names: tuple[str, ...]) -> Iterator[None]:
    """Plant the bugs of those names, on top of the newest schema."""
    with ExitStack() as stack:
        stack.enter_context(_schema(NEWER))
        for name in names:
            stack.enter_context(PLANTED[name]())
        yield


def older_schema() -> AbstractContextManager[object]:
    """Return the block in which the files are of the version before the newest."""
    return _schema()


def _schema(*more: Migration) -> AbstractContextManager[object]:
    known = tuple(step for step in migrations.migrations() if step.version != NEWER.version) + more
    return patch.object(migrations, "migrations", lambda: known)


def _no_barrier() -> AbstractContextManager[object]:
    return patch("onceward.file.identity.BARRIER", NO_BARRIER)


def _delete_journal() -> AbstractContextManager[object]:
    def harden(con: apsw.Connection, *, full: bool, **_: object) -> None:
        con.pragma("journal_mode", "delete")
        con.pragma("synchronous", "full" if full else "normal")

    return patch("onceward.file.database.enable_wal", harden)


COPY: Final = image.copy_tables


def _copied_unsynced() -> AbstractContextManager[object]:
    def copy(con: apsw.Connection, create: image.CreateTables) -> None:
        COPY(con, create)
        con.pragma("synchronous", "normal")

    return patch.object(image, "copy_tables", copy)


def _nothing() -> AbstractContextManager[object]:
    return ExitStack()


SETTLE: Final = HandlerCommitBatch._settle
TAKE_OWN: Final = Receiver.take_own
SETTLE_OWN: Final = OwnMessages.settle


def settle_after_effects(batch: Any, tx: Any, ended: Any, rest: Any) -> None:
    """Commit what handlers wrote without their claims, and claims and settlements after that."""
    held = [each.leased.lane.lane_id for each in ended]
    claims = [tx.rows(CLAIM, (lane,))[0] for lane in held]
    tx.many(UNCLAIM, [(lane,) for lane in held])
    batch._db.writer.attach()
    batch._db.writer.commit()
    tx = batch._db.writer.begin()
    tx.many(RECLAIM, [(*claim, lane) for claim, lane in zip(claims, held, strict=True)])
    batch._db.writer.detach()
    SETTLE(batch, tx, ended, rest)


def accept_later(receiver: Any, _tx: Any, frames: Any) -> Any:
    """Settle messages to the agent itself with their send, and store them in another commit."""
    _tx.after_commit(lambda: receiver._db.write(lambda tx: TAKE_OWN(receiver, tx, frames)))
    return []


def store_later(tx: Any, message: Any, lane_id: int) -> None:
    """Store a message that the agent sends itself in a commit after that of its send."""
    db = tx.own._db
    tx.after_commit(lambda: db.write(lambda later: store_own(later, message, lane_id)))


def settle_later(own: Any, tx: Any, receipts: Any) -> None:
    """Settle messages to the agent itself in the commit after that which handles them."""
    late, own.late = getattr(own, "late", ()), tuple(receipts)
    if late:
        SETTLE_OWN(own, tx, late)


def _effects_first() -> AbstractContextManager[object]:
    return patch.object(HandlerCommitBatch, "_settle", settle_after_effects)


def _half() -> AbstractContextManager[object]:
    return patch.object(Receiver, "take_own", accept_later)


def _half_at_once() -> AbstractContextManager[object]:
    return patch("onceward.core.accept.own.store_own", store_later)


def _told_late() -> AbstractContextManager[object]:
    return patch.object(OwnMessages, "settle", settle_later)


RUN_STEP: Final = MessageSteps._running
TAKE_OR_WAIT: Final = MessageSteps._take_or_wait
END_CALL: Final = MessageSteps.end_call
CANCEL: Final = Cancelling.cancel
OLDEST: Final = """
SELECT media, body FROM _onceward_awaited_messages WHERE session = ? AND type = ? ORDER BY seq
"""


@contextmanager
def store_and_run(steps: Any, begun: StepCall, tx: Any = None) -> Iterator[None]:
    """Store the result of a thought before its function is called, and once more after it."""
    if begun.name.name == "think":
        early = StepRecord("done", 1, begun.arguments, media="json", result="null")
        steps._home.commits.write(partial(steps._store, begun=begun, record=early))
    with RUN_STEP(steps, begun, tx):
        yield


def store_after_rows(steps: Any, begun: StepCall, work: Callable[[], Any]) -> Any:
    """Commit what a step has written, and its result in another commit."""
    with steps._home.commits.block(str(begun.name)) as (yours, _), steps._running(begun, yours):
        value = work()
    return steps._ended(begun, value)


def take_later(steps: Any, tx: Any, *, name: Any, record: StepRecord, late: bool) -> StepRecord:
    """Store the message that a wait has got, and take it from the others in another commit."""
    found: StepRecord = TAKE_OR_WAIT(steps, tx, name=name, record=record, late=late)
    if found.state == "done":
        of = (steps._home.leased.session, str(record.awaits))
        tx.after_commit(lambda: steps._db.write(lambda tx: tx.rows(awaited.TAKE, of)))
    return found


def forget_and_end(steps: Any) -> None:
    """Delete the steps of a message before the commit that ends it."""
    END_CALL(steps)
    leased = steps._home.leased
    with suppress(InvalidArgument):  # a handler that has written itself
        steps._home.commits.write(
            partial(stored.forget, sender=leased.sender, message_id=leased.id, step=None)
        )


def cancel_later(cancelling: Any, message_id: str, reason: str, timeout: Any) -> Cancellation:
    """Say that a message is cancelled, and commit that with the next one that is."""
    late, cancelling.late = getattr(cancelling, "late", ()), (message_id, reason, timeout)
    if late:
        CANCEL(cancelling, *late)
    return Cancellation(message_id, "cancelled", "cancelled")


def _said_early() -> AbstractContextManager[object]:
    return patch.object(Cancelling, "cancel", cancel_later)


def _unfenced_cancel() -> AbstractContextManager[object]:
    plants = ExitStack()
    plants.enter_context(
        patch.object(lanes, "FENCE", replaced(lanes.FENCE, "AS held", "AND 0 AS held"))
    )
    ended = " AND b.state = 'pending'"
    for module, name in ((stored, "STORE"), (chunks, "ADD")):
        lax = replaced(getattr(module, name), ended, "")
        plants.enter_context(patch.object(module, name, lax))
    return plants


def _step_early() -> AbstractContextManager[object]:
    plants = ExitStack()
    plants.enter_context(patch.object(MessageSteps, "_running", store_and_run))
    again = replaced(stored.STORE, " WHERE state <> 'done'\n", "")
    plants.enter_context(patch.object(stored, "STORE", again))
    return plants


def _rows_first() -> AbstractContextManager[object]:
    return patch.object(MessageSteps, "_call_in_tx", store_after_rows)


def _taken_late() -> AbstractContextManager[object]:
    plants = ExitStack()
    plants.enter_context(patch.object(MessageSteps, "_take_or_wait", take_later))
    plants.enter_context(patch.object(awaited, "take", _peek))
    return plants


def _peek(tx: Any, session: str, type_name: str) -> awaited.AwaitedBody | None:
    rows = tx.rows(OLDEST, (session, type_name))
    return awaited.AwaitedBody(*rows[0]) if rows else None


def _forgotten_first() -> AbstractContextManager[object]:
    return patch.object(MessageSteps, "end_call", forget_and_end)


def _unmarked() -> AbstractContextManager[object]:
    return patch.object(MessageStreams, "_begin_again", lambda *_: None)


CLAIM: Final = "SELECT owner, leased_seqs, due_at, token FROM _onceward_lanes WHERE lane_id = ?"
UNCLAIM: Final = """
UPDATE _onceward_lanes SET owner = NULL, leased_seqs = NULL, due_at = NULL, token = token - 1
 WHERE lane_id = ?
"""
RECLAIM: Final = """
UPDATE _onceward_lanes SET owner = ?, leased_seqs = ?, due_at = ?, token = ? WHERE lane_id = ?
"""


def _arrivals_unsynced() -> AbstractContextManager[object]:
    """Answer for a message that was handled as it arrived after a commit without a sync."""
    real = HandlerCommitBatch.claim

    def claim(self: HandlerCommitBatch, work: Any, arrival: Any = None) -> Any:
        if arrival is None:
            return real(self, work)
        begin = self._db.writer._begin
        unsynced = lambda deadline, **_: begin(deadline, synced=False)  # noqa: E731
        with patch.object(self._db.writer, "_begin", unsynced):
            return real(self, work, arrival)

    return patch.object(HandlerCommitBatch, "claim", claim)


@contextmanager
def _turn_late() -> Iterator[None]:
    """Park lanes in one commit, and give their groups a turn in that of the next claim."""
    add, begin, late = turns.add, GroupGate.begin, list[tuple[str, int]]()

    def begun(gate: GroupGate, tx: StoreTransaction, *, set_limits: bool) -> None:
        add(tx, late)
        late.clear()
        begin(gate, tx, set_limits=set_limits)

    with (
        patch.object(turns, "add", lambda _, groups: late.extend(groups)),
        patch.object(GroupGate, "begin", begun),
    ):
        yield


PLANTED: Final[dict[str, Callable[[], AbstractContextManager[object]]]] = {
    "no-barrier": _no_barrier,
    "delete-journal": _delete_journal,
    "effects-first": _effects_first,
    "half": _half,
    "half-at-once": _half_at_once,
    "told-late": _told_late,
    "step-early": _step_early,
    "rows-first": _rows_first,
    "taken-late": _taken_late,
    "forgotten-first": _forgotten_first,
    "unmarked": _unmarked,
    "said-early": _said_early,
    "unfenced-cancel": _unfenced_cancel,
    "arrivals-unsynced": _arrivals_unsynced,
    "copied-unsynced": _copied_unsynced,
    "turn-late": _turn_late,
    "attach": _nothing,  # the pair looks for the name: see hand_over
}


def _digest_of(*texts: Any) -> Any:
    return digest(str(texts[0]))


def hand_over(near: Path, far: Path, *, vfs: str | None, now: Millis) -> None:
    """Move all waiting messages in one transaction over both files: in WAL mode two commits."""
    con = connect(near, vfs=vfs)
    try:
        con.wal_autocheckpoint(0)
        con.execute("ATTACH ? AS peer", (str(far),))
        con.create_scalar_function("digest_of", _digest_of, 1)
        con.execute("BEGIN IMMEDIATE")
        con.execute(HAND_OVER, {"now": now})
        con.execute("COMMIT")
    finally:
        con.close()
