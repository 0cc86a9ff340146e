"""List, set, reorder and pause the queues of an agent's sessions; list and abort runs."""

from __future__ import annotations

import builtins
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Unpack

from onceward.core.contract import Opening
from onceward.core.end.received import SettledMessage
from onceward.core.rows.lanes import Lease
from onceward.core.run.engine_loop import RuntimeDeps
from onceward.core.run.event_emitter import EventEmitter
from onceward.errors import InvalidArgument
from onceward.features.runs import runs, session_queues
from onceward.features.runs.runs import RunCompletion
from onceward.file.file_checks import owner_name
from onceward.file.sql_parts import columns
from onceward.file.transaction import StoreTransaction
from onceward.message.arguments import checks_arguments
from onceward.message.clock import Millis
from onceward.message.names import plain_text
from onceward.message.queue_modes import QUEUE_DEBOUNCE, QueueInfo, QueueOptions, checked, glob
from onceward.message.record import MessageRecord
from onceward.message.vocabulary import (
    Done,
    QueueMode,
    RunState,
    reason_text,
)


@dataclass(frozen=True, slots=True)
class RunInfo:
    """One run, open or past."""

    id: str
    session: str
    mode: QueueMode
    state: RunState
    event_ids: tuple[str, ...]
    """The ids of its messages, in order."""
    consumed: bool
    """Whether its messages ended with it."""
    partial: Any
    result: Any
    cause: str | None
    """Why it was aborted or failed."""
    lease_at: Millis | None
    started_at: Millis
    checkpoint_at: Millis | None
    ended_at: Millis | None
    left_at: Millis | None
    """When its overdue call no longer counted."""
    returned_at: Millis | None
    """When that call finally returned."""


RUNS: Final = f"""
SELECT {columns(RunInfo)} FROM onceward_runs
 WHERE (:session IS NULL OR session = :session) AND (:state IS NULL OR state = :state)
 ORDER BY seq DESC LIMIT :limit
"""
RUN: Final = f"SELECT {columns(RunInfo)} FROM onceward_runs WHERE id = ?"
QUEUES: Final = f"""
SELECT {columns(QueueInfo, debounce=QUEUE_DEBOUNCE)} FROM onceward_session_queues ORDER BY session
"""
WAITING: Final = f"""
SELECT {columns(MessageRecord, "b.", at="b.received_at", text="b.frame", box="'in'")}
  FROM onceward_session_queue_messages AS q
  JOIN onceward_inbox AS b ON b.sender = q.sender AND b.id = q.id
 WHERE q.session = ?
 ORDER BY q.position
"""


@checks_arguments()
class Runs:
    """The runs of sessions, and their queues; a change of settings loses no waiting message."""

    def __init__(self, deps: RuntimeDeps) -> None:
        self._db = deps.db
        self._closing = RunCompletion(
            deps.db.agent,
            outbox=deps.outbox,
            emitter=EventEmitter(deps.hooks, deps.db.agent),
            owner=owner_name(),
            grace=deps.settings.tuning.abort_grace,
        )

    def queues(self) -> builtins.list[QueueInfo]:
        """Return the queues of all sessions that have had one, by name."""
        return [QueueInfo(*row) for row in self._db.ask(QUEUES)]

    def queue(self, session: str) -> QueueInfo | None:
        """Return one session's queue; None if it never had one."""
        return next((queue for queue in self.queues() if queue.session == session), None)

    def waiting(self, session: str) -> builtins.list[MessageRecord]:
        """Return the waiting messages, in the order in which they will be taken."""
        return [MessageRecord(*row) for row in self._db.ask(WAITING, (session,))]

    def set(self, session: str, **options: Unpack[QueueOptions]) -> None:
        """
        Set the queue of one session; a missing option or None is inherited.

        Raises:
            InvalidArgument: an option is invalid; nothing was changed.

        """
        fields = checked(options)
        fields["inject"] = None if fields["inject"] is None else int(bool(fields["inject"]))
        self._change(session, lambda tx: session_queues.set_policy(tx, session, fields))

    def reorder(self, session: str, ids: Sequence[str]) -> builtins.list[str]:
        """
        Move waiting messages to the front; return all waiting ids in their new order.

        Raises:
            InvalidArgument: one of them does not wait here; nothing was changed.

        """
        plain_text("session", session)
        return self._db.write(lambda tx: session_queues.reorder(tx, session, ids))

    def discard(self, session: str, message_id: str) -> bool:
        """Drop a waiting message, with a reason that SQL can read; return whether it waited."""
        return self._db.write(lambda tx: self._discard(tx, session, message_id))

    def _discard(self, tx: StoreTransaction, session: str, message_id: str) -> bool:
        lane_id = session_queues.lane_of(tx, session)
        if lane_id is None:
            return False
        held = Lease(lane_id, 0, "", isolate=False)
        chosen = [
            each
            for each in session_queues.waiting(tx, held, -1, placed=False)
            if each.id == message_id
        ]
        removed = Done("dropped", reason_text("removed", "removed from its queue manually"))
        self._closing.conclude(tx, [SettledMessage(each, removed) for each in chosen])
        session_queues.update_head(tx, held.lane_id)
        tx.after_commit(lambda: self._db.notifier.notify("out"))
        return bool(chosen)

    def pause(self, session: str) -> None:
        """Start no further run, durably and in all processes; the open run continues."""
        self._change(session, lambda tx: session_queues.pause(tx, session))

    def resume(self, session: str) -> None:
        """Continue after ``pause``."""
        self._change(session, lambda tx: session_queues.resume(tx, session))

    def remove(self, pattern: str) -> None:
        """
        Stop serving sessions of a pattern by runs; workers and readers get waiting messages.

        For handlers that were removed from the code; an existing handler registers its pattern at
        the next start.

        Raises:
            InvalidArgument: one of the sessions has an open run; pause, abort, and try again.

        """

        def work(tx: StoreTransaction) -> None:
            open_now = session_queues.open_under(tx, glob(pattern))
            if open_now is not None:
                msg = f"session {open_now!r} has an open run: pause it, abort the run, then remove"
                raise InvalidArgument(msg)
            session_queues.unregister(tx, glob(pattern))

        self._db.write(work)
        self._db.notifier.notify("in")

    def _change(self, session: str, change: session_queues.Change) -> None:
        plain_text("session", session)

        def work(tx: StoreTransaction) -> None:
            session_queues.know(tx, session)
            change(tx)
            lane_id = session_queues.lane_of(tx, session)
            if lane_id is not None:
                session_queues.hurry(tx, lane_id)

        self._db.write(work)
        self._db.notifier.notify("in")

    # -- runs -------------------------------------------------------------------------------

    def list(
        self, *, session: str | None = None, state: RunState | None = None, limit: int = 100
    ) -> builtins.list[RunInfo]:
        """Return runs, newest first."""
        chosen = {"session": session, "state": state, "limit": limit}
        return [_run(row) for row in self._db.ask(RUNS, chosen)]

    def get(self, run_id: str) -> RunInfo | None:
        """Return one run, None if no run has that id."""
        found = self._db.ask(RUN, (run_id,))
        return _run(found[0]) if found else None

    def abort(self, run_id: str, cause: str = "aborted manually") -> bool:
        """
        End an open run from outside, as a steering message does; return whether it was open.

        If it stored partial output and its queue has ``aborted="deliver"``, its messages count as
        delivered; otherwise they go back to the head, and the next run gets them.
        """

        def work(tx: StoreTransaction) -> bool:
            run = runs.by_id(tx, run_id)
            if run is None:
                return False
            policy = session_queues.look_up(
                tx, run.session, session_queues.declared(tx, run.session)
            ).policy
            self._closing.abort(tx, run, policy, cause, preempted=True)
            return True

        found = self._db.write(work)
        self._db.notifier.notify("in")
        self._db.notifier.notify("out")
        return found


def _run(row: tuple[Any, ...]) -> RunInfo:
    """Return a run from its row, which has JSON and a number for a flag."""
    found = RunInfo(*row)
    partial, result = (json.loads(text or "null") for text in (found.partial, found.result))
    ids = tuple(json.loads(found.event_ids))  # type: ignore[arg-type]  # its text
    return replace(
        found, event_ids=ids, consumed=bool(found.consumed), partial=partial, result=result
    )


def runs_of(opening: Opening) -> Runs:
    """Return the runs of an opening."""
    return Runs(opening.deps)
