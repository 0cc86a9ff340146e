"""The receiver: from a parcel to the inbox, in one transaction; it answers only after the commit."""

from __future__ import annotations

from onceward.db.database import Database
from onceward.db.transaction import Tx
from onceward.hooks import Hooks
from onceward.model.events import Duplicate, Received, Rejected
from onceward.model.parcel import Answer, Parcel
from onceward.model.settings import Settings
from onceward.runtime.event_emitter import Teller
from onceward.store.accept import Door, Examined, Kept, accept, examine


class Receiver:
    """Takes parcels for one agent."""

    def __init__(self, db: Database, *, settings: Settings, hooks: Hooks | None = None) -> None:
        self._db, self._hooks = db, Hooks() if hooks is None else hooks
        self._teller = Teller(self._hooks, db.agent)
        self._accept_weaker = settings.accept_weaker

    @property
    def _door(self) -> Door:
        """Whose inbox it is and what it takes: the file's own limits hold, whoever writes into it."""
        db = self._db
        return Door(
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
        door = self._door
        examined = examine(parcel, door)
        return self._db.write(lambda tx: self._accept(tx, parcel, door, examined)).answer

    def _accept(self, tx: Tx, parcel: Parcel, door: Door, examined: list[Examined]) -> Kept:
        kept = accept(tx, parcel, door, examined)
        self._teller.moved(tx, parcel.sender, kept.moved)
        self._tell(tx, parcel.sender, kept)
        if kept.received or kept.moved.acked or kept.moved.failed:
            tx.after(lambda: self._db.bell.ring("in"))
        if kept.answered or kept.duplicates:
            tx.after(lambda: self._db.bell.ring("out"))
        return kept

    def _tell(self, tx: Tx, peer: str, kept: Kept) -> None:
        agent, at = self._db.agent, tx.now
        if self._hooks.wanted(Received):
            self._teller.tell(
                tx, *(Received(agent=agent, at=at, message_id=i, peer=peer) for i in kept.received)
            )
        if self._hooks.wanted(Duplicate):
            self._teller.tell(
                tx,
                *(Duplicate(agent=agent, at=at, message_id=i, peer=peer) for i in kept.duplicates),
            )
        if self._hooks.wanted(Rejected):
            self._teller.tell(
                tx,
                *(
                    Rejected(agent=agent, at=at, message_id=i, peer=peer, reason=why)
                    for i, why in kept.rejected
                ),
            )
