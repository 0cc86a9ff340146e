"""Admission to the outbox where the file has limits; without limits it costs nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, Final

from onceward.core.engine.event_emitter import with_names
from onceward.core.send import limits, rate_limits
from onceward.core.send.limits import Admission, DropNew, LimitHit
from onceward.core.send.outbox import OutgoingMessage
from onceward.file.connection import ConstraintError
from onceward.file.database import Database
from onceward.file.transaction import StoreTransaction
from onceward.hooks import Hooks
from onceward.message.clock import Millis
from onceward.message.events import Dropped, Event, NearlyFull
from onceward.message.frame import Frame

Rows = Callable[[str], list[tuple[Any, ...]]]
PROTECTED: Final = frozenset({"worker_result", limits.SUMMARY})


class AdmissionControl:
    """Decides by the limits of a file which messages come into its outbox."""

    def __init__(self, db: Database, hooks: Hooks) -> None:
        self._db, self._hooks = db, hooks
        self._warned = False
        self.unlimited: bool | None = None
        """Whether the file has no limits; None until the first message reads that."""

    def reload(self, read: Rows | None = None) -> bool:
        """
        Read whether the file has limits; return whether it has none.

        Limits that another process sets are noticed at the next opening, or
        when one of them is reached.
        """
        self.unlimited = unlimited = not (read or self._db.read)(limits.ACTIVE)[0][0]
        return unlimited

    def is_limit_error(self, error: ConstraintError) -> bool:
        """Return whether a row was refused by a limit that was set meanwhile; notices the limit."""
        if "_full" not in str(error) or "queue_full" in str(error):
            return False
        return not self.reload()

    def admit(self, tx: StoreTransaction, message: OutgoingMessage) -> Admission:
        """
        Decide whether a message is accepted, held or dropped, and drop what gives way to it.

        Raises:
            QueueFull, StoreFull, RateLimited, StoreCapacity: nothing was written nor dropped.

        """
        used = rate_limits.check_file_size(tx)
        admission = limits.admit(tx, message, protected=_protected(message))
        rate_limits.take_token(tx, self._db.agent)
        if isinstance(admission, DropNew):
            names = (message.session, message.type)
            dropped = [(message.id, message.recipient, admission.limit, names)]
        else:
            limits.make_room(tx, admission.evicted)
            dropped = [
                (each.id, each.recipient, each.full, (each.session, ""))
                for each in admission.evicted
            ]
        events = [*self._dropped(tx.now, dropped), *self._nearly_full(tx.now, used)]
        if events and self._hooks:
            tx.after_commit(partial(self._hooks.emit, with_names(tx, events)))
        return admission

    def _nearly_full(self, at: Millis, used: rate_limits.FileUsage | None) -> Iterable[Event]:
        """Yield a warning the first time that the file is nearly full."""
        if used is None:
            return
        full = used.bytes >= rate_limits.WARN_AT * used.limit
        if full and not self._warned:
            yield NearlyFull(agent=self._db.agent, at=at, used=used.bytes, limit=used.limit)
        self._warned = full

    def _dropped(
        self, at: Millis, dropped: Sequence[tuple[str, str, LimitHit, tuple[str, str]]]
    ) -> Iterable[Event]:
        for message_id, peer, full, (session, kind) in dropped:
            yield Dropped(
                agent=self._db.agent,
                at=at,
                message_id=message_id,
                peer=peer,
                session=session,
                type=kind,
                scope=full.where,
                policy=full.overflow,
            )


def _protected(message: OutgoingMessage) -> bool:
    """
    Return whether a message may exceed the limits.

    A critical one may, a worker's result, an awaited reply, and one that says so.
    """
    whole = message.body is None and message.body_id is None
    frame = Frame.parse(message.frame if whole else f"{message.frame}null}}")
    return (
        message.rank == 0
        or frame.type in PROTECTED
        or frame.inreplyto is not None
        or bool(frame.headers.get("protected"))
    )
