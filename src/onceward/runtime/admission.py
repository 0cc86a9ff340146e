"""The gate of a bounded outbox: what a message passes where the file has limits; open, and free of cost, where it has none."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final, Protocol

from onceward.db.connection import ConstraintError
from onceward.db.database import Database
from onceward.db.transaction import StoreTransaction
from onceward.hooks import Hooks
from onceward.model.clock import Millis
from onceward.model.events import Dropped, Event, NearlyFull
from onceward.model.frame import Frame
from onceward.store import bodies, limits, outbox, rate_limits
from onceward.store.limits import Admission, LimitHit

PROTECTED: Final = frozenset({"worker_result", limits.SUMMARY})
DUE, TEXT = 7, 11
"""Places in a row of the outbox."""


class Message(Protocol):
    """A message that only needs to be put into the outbox."""

    @property
    def values(self) -> tuple[Any, ...]:
        """Its row."""
        ...

    @property
    def body(self) -> str | None:
        """Its body, where that is stored beside the row."""
        ...


Summary = Callable[[str, str, list[str], int, Millis], Message]
"""From (recipient, session, lines, how many, now) to the message that tells them."""


class AdmissionControl:
    """Lets messages into the outbox by the policies of its limits."""

    def __init__(self, db: Database, hooks: Hooks, summary: Summary) -> None:
        self._db, self._hooks, self._summary = db, hooks, summary
        self._warned = False
        self.reload()

    def reload(self) -> None:
        """See whether there are limits; who sets them in another process is noticed at the next opening, or when one is reached."""
        self.unlimited = not self._db.read(limits.ACTIVE)[0][0]

    def is_limit_error(self, error: ConstraintError) -> bool:
        """Return whether a row was refused by a limit that somebody has set since; it is noticed by this."""
        if "_full" not in str(error) or "queue_full" in str(error):
            return False
        self.reload()
        return not self.unlimited

    def admit(
        self,
        tx: StoreTransaction,
        values: tuple[Any, ...],
        body: str | None,
        put: Callable[[tuple[Any, ...]], str],
    ) -> str:
        """
        Make room by the policies and write the message by *put*, both or neither; return its id.

        Raises:
            QueueFull, StoreFull, RateLimited, StoreCapacity: nothing was written and nobody dropped.

        """
        if self.unlimited:
            try:
                return put(values)
            except ConstraintError as error:
                if not self.is_limit_error(error):
                    raise
        with tx.nested():
            return self._admit(tx, values, body, put)

    def _admit(
        self,
        tx: StoreTransaction,
        values: tuple[Any, ...],
        body: str | None,
        put: Callable[[tuple[Any, ...]], str],
    ) -> str:
        if tx.rows(outbox.FIND_DUPLICATE, (values[0], values[1], values[10])):
            return put(values)  # sent before: it is there, or it conflicts
        used = rate_limits.check_file_size(tx)
        admission = limits.admit(tx, values, protected=_protected(values, apart=body is not None))
        rate_limits.take_token(tx)
        limits.make_room(tx, admission)
        self._tell(tx, values, admission, used)
        if admission.dropped is not None:
            limits.drop(
                tx,
                values if body is None else (*values[:-1], bodies.insert_body(tx, body)),
                admission.dropped,
            )
            return str(values[0])
        held = admission.held
        message_id = put(
            values if held is None else (*values[:DUE], limits.HELD, *values[DUE + 1 :])
        )
        if held is not None:
            tx.run(limits.HOLD, (held.held, message_id))
        for recipient, session in dict.fromkeys(
            (v.recipient, v.session) for v in admission.candidates if v.full.overflow == "summarize"
        ):
            self._summarize(tx, recipient, session)
        return message_id

    def _summarize(self, tx: StoreTransaction, recipient: str, session: str) -> None:
        drops, lines, replaced = limits.unsummarized_drops(tx, recipient, session)
        draft = self._summary(recipient, session, lines, len(drops), tx.now)
        limits.mark_summarized(tx, outbox.add(tx, draft.values, draft.body), drops, replaced)

    def _tell(
        self,
        tx: StoreTransaction,
        values: tuple[Any, ...],
        admission: Admission,
        used: rate_limits.FileUsage | None,
    ) -> None:
        gone = [(victim.id, victim.recipient, victim.full) for victim in admission.candidates]
        if admission.dropped is not None:
            gone.append((values[0], values[1], admission.dropped))
        events: list[Event] = list(self._dropped(tx, gone))
        if used is not None:
            full = used.bytes >= rate_limits.WARN_AT * used.limit
            if full and not self._warned:
                events.append(
                    NearlyFull(agent=self._db.agent, at=tx.now, used=used.bytes, limit=used.limit)
                )
            self._warned = full
        if events:
            tx.after_commit(lambda: self._hooks.emit(events))

    def _dropped(
        self, tx: StoreTransaction, gone: list[tuple[str, str, LimitHit]]
    ) -> Iterable[Event]:
        for message_id, peer, full in gone:
            yield Dropped(
                agent=self._db.agent,
                at=tx.now,
                message_id=message_id,
                peer=peer,
                scope=full.where,
                policy=full.overflow,
            )


def _protected(values: tuple[Any, ...], *, apart: bool) -> bool:
    """Return whether a message may exceed the limits: a critical one, a worker's result, an awaited reply, or one that says so."""
    frame = Frame.parse(f"{values[TEXT]}null}}" if apart else values[TEXT])
    return (
        values[6] == 0
        or frame.type in PROTECTED
        or frame.inreplyto is not None
        or bool(frame.headers.get("protected"))
    )
