"""Accept a parcel into the inbox in one transaction; answer only after its commit."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from onceward.core.accept.accept import AcceptResult, InboxPolicy, ParsedFrame, accept, parse_frames
from onceward.core.engine.event_emitter import EventEmitter
from onceward.file.database import Database
from onceward.file.transaction import StoreTransaction
from onceward.hooks import Hooks
from onceward.message.events import Duplicate, Received, Rejected
from onceward.message.frame import keep_until_handled, session_and_type
from onceward.message.parcel import Answer, Parcel
from onceward.message.settings import Settings

Inspect = Callable[[list[ParsedFrame]], list[ParsedFrame]]
"""Judges frames for mailboxes outside of the transaction; one that it refuses has a problem."""


class Receiver:
    """
    Accepts parcels for one agent, from this machine or, with *network*, from others.

    *handled* says that workers of this process handle what comes: they read no frame again.
    """

    def __init__(
        self,
        db: Database,
        *,
        settings: Settings,
        hooks: Hooks | None = None,
        inspect: Inspect | None = None,
        network: bool = False,
        handled: bool = False,
    ) -> None:
        self._db, self._hooks = db, Hooks() if hooks is None else hooks
        self._inspect, self._network, self._handled = inspect, network, handled
        self._emitter = EventEmitter(self._hooks, db.agent)
        self._notify_in = partial(db.notifier.notify, "in")
        self._notify_out = partial(db.notifier.notify, "out")
        self._accept_weaker, self._max_hops = settings.accept_weaker, settings.max_hops

    @property
    def _policy(self) -> InboxPolicy:
        """Policy of the inbox; the file's own limits hold for every process that writes."""
        db = self._db
        return InboxPolicy(
            agent=db.agent,
            durability=db.durability,
            max_body=db.max_body,
            max_inbox=db.max_inbox,
            accept_weaker=self._accept_weaker,
            max_hops=self._max_hops,
            network=self._network,
        )

    def accept(self, parcel: Parcel) -> Answer:
        """
        Store a parcel once and answer for each of its frames.

        Raises:
            Refused: the parcel's names are wrong; nothing was stored, and it is not for this inbox.
            StoreError: the file failed; nothing was stored, and the parcel may be pushed again.

        """
        policy = self._policy
        frames = parse_frames(parcel, policy)
        for each in frames:
            if each.frame is not None and each.frame.mailbox is not None and self._inspect:
                frames = self._inspect(frames)
                break
        with self._db.outside_handler():
            return self._db.write(
                partial(self._accept, parcel=parcel, policy=policy, frames=frames)
            ).answer

    def _accept(
        self, tx: StoreTransaction, parcel: Parcel, policy: InboxPolicy, frames: list[ParsedFrame]
    ) -> AcceptResult:
        result = accept(tx, parcel, policy, frames)
        if self._handled and result.received:
            keep_until_handled(
                {each.carried.text: each.frame for each in frames if each.frame is not None}
            )
        if self._hooks._hooks:
            self._emitter.moved(tx, parcel.sender, result.moved)
            self._emit(tx, parcel.sender, result)
            self._tell_rejected(tx, parcel, result)
        moved = result.moved
        if result.received or moved.acked or moved.failed or moved.unanswered or moved.dropped:
            tx.wakeups[self._notify_in] = None
        if result.answered or result.duplicates:
            tx.wakeups[self._notify_out] = None
        return result

    def _emit(self, tx: StoreTransaction, peer: str, result: AcceptResult) -> None:
        agent, at = self._db.agent, tx.now
        if self._hooks.wanted(Received):
            self._emitter.emit(
                tx,
                *(Received(agent=agent, at=at, message_id=i, peer=peer) for i in result.received),
            )
        if self._hooks.wanted(Duplicate):
            self._emitter.emit(
                tx,
                *(
                    Duplicate(agent=agent, at=at, message_id=i, peer=peer)
                    for i in result.duplicates
                ),
            )

    def _tell_rejected(self, tx: StoreTransaction, parcel: Parcel, result: AcceptResult) -> None:
        """Emit which frames were refused, with what they say of themselves: no row has it."""
        if not result.rejected or not self._hooks.wanted(Rejected):
            return
        texts = {carried.id: carried.text for carried in parcel.frames}
        for message_id, why in result.rejected:
            session, kind = session_and_type(texts[message_id])
            rejected = Rejected(
                agent=self._db.agent, at=tx.now, message_id=message_id, peer=parcel.sender,
                session=session, type=kind, reason=why,
            )  # fmt: skip
            self._emitter.emit(tx, rejected)
