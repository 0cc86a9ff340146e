"""Queues and runs of an agent's sessions: list, set, reorder and pause queues, abort runs."""

from __future__ import annotations

import builtins
from collections.abc import Sequence
from typing import Unpack

from onceward.core import views as queries
from onceward.core.engine.event_emitter import EventEmitter
from onceward.core.handle.inbox import SettledMessage
from onceward.core.handle.lanes import Lease
from onceward.core.send.outbox import Outbox
from onceward.core.views import QueueInfo, RunInfo
from onceward.errors import InvalidArgument
from onceward.features.runs import runs, session_queues
from onceward.features.runs.runs import RunCompletion
from onceward.file.database import Database
from onceward.file.file_checks import owner_name
from onceward.file.transaction import StoreTransaction
from onceward.hooks import Hooks
from onceward.message.names import plain_text
from onceward.message.queue_modes import QueueOptions, checked, glob
from onceward.message.record import MessageRecord
from onceward.message.settings import Settings
from onceward.message.vocabulary import Done, RunState, reason_text


class SessionQueues:
    """The queues and runs of sessions; a change of settings loses no waiting message."""

    def __init__(self, db: Database, *, outbox: Outbox, hooks: Hooks, settings: Settings) -> None:
        self._db = db
        self._closing = RunCompletion(
            db.agent,
            outbox=outbox,
            emitter=EventEmitter(hooks, db.agent),
            owner=owner_name(),
            grace=settings.abort_grace,
        )

    def list(self) -> list[QueueInfo]:
        """Return the queues of all sessions that ever had one, by name."""
        return queries.queues(self._db)

    def get(self, session: str) -> QueueInfo | None:
        """Return one session's queue, None where it never had one."""
        return next((queue for queue in self.list() if queue.session == session), None)

    def waiting(self, session: str) -> builtins.list[MessageRecord]:
        """Return the messages that wait, in the order in which they will be taken."""
        return queries.waiting(self._db, session)

    def set(self, session: str, **options: Unpack[QueueOptions]) -> None:
        """
        Set the queue of one session; an option that is None or left out is inherited.

        Raises:
            InvalidArgument: an option means nothing; nothing was changed.

        """
        fields = checked(options)
        fields["inject"] = None if fields["inject"] is None else int(bool(fields["inject"]))
        self._change(session, lambda tx: session_queues.set_policy(tx, session, fields))

    def reorder(self, session: str, ids: Sequence[str]) -> builtins.list[str]:
        """
        Put waiting messages to the front; return the ids of all that wait, in their new order.

        Raises:
            InvalidArgument: one of them does not wait here; nothing was changed.

        """
        plain_text("session", session)
        return self._db.write(lambda tx: session_queues.reorder(tx, session, ids))

    def discard(self, session: str, message_id: str) -> bool:
        """Drop one waiting message, with a reason that SQL can read; say whether it waited here."""
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
        removed = Done("dropped", reason_text("removed", "taken out of its queue by hand"))
        self._closing.conclude(tx, [SettledMessage(each, removed) for each in chosen])
        session_queues.update_head(tx, held.lane_id)
        tx.after_commit(lambda: self._db.notifier.notify("out"))
        return bool(chosen)

    def pause(self, session: str) -> None:
        """Begin no further run, durably and in all processes; the open run goes on."""
        self._change(session, lambda tx: session_queues.pause(tx, session))

    def resume(self, session: str) -> None:
        """Go on where ``pause`` stopped."""
        self._change(session, lambda tx: session_queues.resume(tx, session))

    def remove(self, pattern: str) -> None:
        """
        Stop serving sessions of a pattern by runs; workers and readers get what waits.

        For handlers that were removed from the code; one that is still there
        registers its pattern at the next start.

        Raises:
            InvalidArgument: one of the sessions has a run open; pause, abort, and try again.

        """

        def work(tx: StoreTransaction) -> None:
            open_now = session_queues.open_under(tx, glob(pattern))
            if open_now is not None:
                msg = f"session {open_now!r} has a run open: pause it, abort the run, then remove"
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

    def runs(
        self, *, session: str | None = None, state: RunState | None = None, limit: int = 100
    ) -> builtins.list[RunInfo]:
        """Return runs, newest first."""
        return queries.runs(self._db, session=session, state=state, limit=limit)

    def run(self, run_id: str) -> RunInfo | None:
        """Return one run, None where there is none of that id."""
        return queries.run(self._db, run_id)

    def abort(self, run_id: str, cause: str = "aborted by hand") -> bool:
        """
        End an open run from outside, as a steering message does; say whether it was open.

        Its messages count as delivered if it stored partial output and its queue
        is set so; else they are back at the head, and the next run gets them.
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
