"""The receiver: from a parcel to the inbox, in one transaction; it answers only after the commit."""

from __future__ import annotations

from functools import partial

from onceward.db.database import Database
from onceward.db.transaction import StoreTransaction
from onceward.hooks import Hooks
from onceward.model.events import Duplicate, Received, Rejected
from onceward.model.parcel import Answer, Parcel
from onceward.model.settings import Settings
from onceward.runtime.event_emitter import EventEmitter
from onceward.store.accept import AcceptResult, InboxPolicy, ParsedFrame, accept, parse_frames


class Receiver:
    """Takes parcels for one agent."""

    def __init__(self, db: Database, *, settings: Settings, hooks: Hooks | None = None) -> None:
        self._db, self._hooks = db, Hooks() if hooks is None else hooks
        self._emitter = EventEmitter(self._hooks, db.agent)
        self._notify_in = partial(db.notifier.notify, "in")
        self._notify_out = partial(db.notifier.notify, "out")
        self._accept_weaker = settings.accept_weaker

    @property
    def _policy(self) -> InboxPolicy:
        """Whose inbox it is and what it takes: the file's own limits hold, whoever writes into it."""
        db = self._db
        return InboxPolicy(
            agent=db.agent,
            durability=db.durability,
            max_body=db.max_body,
            max_inbox=db.max_inbox,
            accept_weaker=self._accept_weaker,
        )

    def accept(self, parcel: Parcel) -> Answer:
        """
        Keep a parcel once and say what became of each frame.

        Raises:
            StoreError: the file failed; nothing was kept, the same parcel may come again.

        """
        door = self._policy
        examined = parse_frames(parcel, door)
        with self._db.outside_handler():
            return self._db.write(lambda tx: self._accept(tx, parcel, door, examined)).answer

    def _accept(
        self, tx: StoreTransaction, parcel: Parcel, door: InboxPolicy, examined: list[ParsedFrame]
    ) -> AcceptResult:
        kept = accept(tx, parcel, door, examined)
        if self._hooks._hooks:
            self._emitter.moved(tx, parcel.sender, kept.moved)
            self._tell(tx, parcel.sender, kept)
        if kept.received or kept.moved.acked or kept.moved.failed:
            tx.wakeups[self._notify_in] = None
        if kept.answered or kept.duplicates:
            tx.wakeups[self._notify_out] = None
        return kept

    def _tell(self, tx: StoreTransaction, peer: str, kept: AcceptResult) -> None:
        agent, at = self._db.agent, tx.now
        if self._hooks.wanted(Received):
            self._emitter.emit(
                tx, *(Received(agent=agent, at=at, message_id=i, peer=peer) for i in kept.received)
            )
        if self._hooks.wanted(Duplicate):
            self._emitter.emit(
                tx,
                *(Duplicate(agent=agent, at=at, message_id=i, peer=peer) for i in kept.duplicates),
            )
        if self._hooks.wanted(Rejected):
            self._emitter.emit(
                tx,
                *(
                    Rejected(agent=agent, at=at, message_id=i, peer=peer, reason=why)
                    for i, why in kept.rejected
                ),
            )
