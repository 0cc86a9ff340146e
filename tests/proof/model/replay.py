"""
The model's steps, taken by the real functions on two real files.

After each step both must agree.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any, Final

from tests.proof.model.model import cancellable, steps
from tests.proof.model.values import PENDING, Rules, State
from tests.proof.simulation.disks import copy, replace

from onceward.api.postbox import Postbox
from onceward.core import maintenance
from onceward.core.deliver import parcels
from onceward.core.deliver.carriers import InFlight
from onceward.core.deliver.failures import DeliveryFailures
from onceward.core.deliver.parcels import SenderInfo, SettleOptions
from onceward.core.end import sent
from onceward.core.rows import peers, senders
from onceward.core.rows.peers import PeerLease
from onceward.core.run.event_emitter import EventEmitter
from onceward.file.transaction import StoreTransaction
from onceward.hooks import Hooks
from onceward.message.parcel import Parcel, Receipt, encoded_size
from onceward.message.settings import Settings
from onceward.testing import Controls
from onceward.testing.clock import ManualClock

LIMITS: Final = Settings(
    hold_unknown=True, delivery_retry="±0%", handler_retry="±0%", ack_timeout=5.0, lease=1e6
)
FOREVER: Final = 10**15
WAITING: Final = "SELECT id FROM _onceward_inbox WHERE state = 'pending' ORDER BY seq"
STANDS: Final = "SELECT epoch, number FROM _onceward_sender_streams WHERE sender = 'near'"
MARKED: Final = "SELECT message_id FROM _onceward_processed_messages ORDER BY seq"


class Real:
    """A sender's and a recipient's file, moved by the functions that the model names."""

    def __init__(self, folder: Path) -> None:
        self._clock = ManualClock()
        self._folder = folder
        self.near, self.far = self._open("near"), self._open("far")
        self.ids: list[str] = []
        self.effects: list[int] = []
        self._saved: list[int] = []
        self._late: Parcel | None = None
        policy, emitter = LIMITS.delivery_policy, EventEmitter(Hooks(), "near")
        self._setbacks = DeliveryFailures(
            settings=LIMITS, policy=policy, rng=random.Random(0), emitter=emitter
        )
        self._packed: InFlight | None = None
        self._held = self.near._db.write(self._lease)

    def take(self, step: str) -> None:
        """Take one step of the model."""
        name, _, argument = step.partition(" ")
        getattr(self, f"_{name}")(*map(int, argument.split()))

    def _send(self) -> None:
        self.ids.append(self.near.send("far", len(self.ids)))

    def _pack(self, size: int) -> None:
        def work(tx: StoreTransaction) -> InFlight:
            return parcels.next_parcel(
                tx,
                self._held._replace(owed=1, ready=1),  # it was leased by an earlier transaction
                mine=SenderInfo("near", "safe"),
                settings=LIMITS,
                until=FOREVER,
                messages=size,
                max_bytes=1 << 20,
            )

        self._packed = self.near._db.write(work)
        self._held = self._packed.lease

    def _parcel(self) -> tuple[InFlight, Parcel]:
        packed = self._packed
        assert packed is not None
        assert packed.parcel is not None
        return packed, packed.parcel

    def _push(self) -> None:
        packed, parcel = self._parcel()
        answer = self.far.accept(parcel)
        terms = SettleOptions(LIMITS, "safe", self._clock.now() + 5000, streams=True)

        def work(tx: StoreTransaction) -> Any:
            if answer.verdict == "fork":
                return self._setbacks.forked(tx, packed, answer)
            settled = parcels.settle(tx, packed, answer, terms)
            return settled.lease if settled.held else self._lease(tx)

        self._held, self._packed = self.near._db.write(work), None

    _forked = _push

    def _backup(self) -> None:
        copy(self._folder / "far.db", self._folder / "far.backup")
        self._saved = list(self.effects)

    def _restore(self) -> None:
        self.far.close()
        replace(self._folder / "far.db", self._folder / "far.backup")
        self.far, self.effects = self._open("far"), self._saved

    def _open(self, name: str) -> Postbox:
        return Postbox(
            self._folder / f"{name}.db",
            agent=name,
            start=False,
            testing=Controls(clock=self._clock),
            settings=LIMITS,
        )

    def _push_lost(self) -> None:
        self.far.accept(self._parcel()[1])

    def _leave(self) -> None:
        self._late = self._parcel()[1]

    def _arrive(self) -> None:
        assert self._late is not None
        self.far.accept(self._late)

    def _refused(self) -> None:
        packed, _ = self._parcel()
        self._held, self._packed = (
            self.near._db.write(lambda tx: self._setbacks.refused(tx, packed, "no")),
            None,
        )

    def _too_large(self) -> None:
        packed, parcel = self._parcel()

        def work(tx: StoreTransaction) -> PeerLease:
            held = self._setbacks.too_large(tx, packed, encoded_size(parcel) - 1)
            return peers.limit_parcels(tx, held, 1 << 20)  # the model's sizes are its own

        self._held, self._packed = self.near._db.write(work), None

    def _handle(self) -> None:
        message = self.far.receive()
        assert message is not None
        self.effects.append(self.ids.index(message.id))
        message.ack()

    def _ask(self) -> None:
        self._clock.advance(20 * LIMITS.ack_timeout)  # the longest pause
        self.near._db.write(lambda tx: sent.requeue_due(tx, 1000, lambda _: False))

    def _tell(self, i: int) -> None:
        [stands] = self.far._db.read(STANDS)
        told = (Receipt(self.ids[i], "processed" if i in self.effects else "cancelled"),)
        parcel = Parcel(
            sender="far",
            recipient="near",
            epoch="",
            number=0,
            previous="",
            receipts=told,
            stream_position=stands,
        )
        self.near.accept(parcel)
        self._held = self.near._db.write(self._leased_anew)
        if self._packed is not None:
            self._pack(len(self._held.parcel or ()))

    def _leased_anew(self, tx: StoreTransaction) -> PeerLease:
        peers.release(tx, self._held)
        return self._lease(tx)

    def _lease(self, tx: StoreTransaction) -> PeerLease:
        leased = peers.lease(tx, "far", owner="model", until=FOREVER)
        assert leased is not None
        return leased

    def _replay(self, i: int) -> None:
        self.near.dead_letters.replay(self.ids[i])

    def _cancel(self, i: int) -> None:
        assert self.withdraws(i)

    def _decide(self, i: int) -> None:
        assert self.near.cancel(self.ids[i]).outcome == "asked"
        self._pack(1)
        self._push()

    def withdraws(self, i: int) -> bool:
        """Say whether the files withdraw a message that may have left."""
        return self.near._db.write(lambda tx: sent.cancel(tx, self.ids[i]))

    def _prune(self, i: int) -> None:
        self._clock.advance(1.0)

        def work(tx: StoreTransaction) -> int:
            maintenance.slice_of(tx, "inbox", after=0, before=tx.now, limit=1000)
            return senders.prune_marks(tx, after=0, before=tx.now, limit=1)[1]

        assert i == self.marks[0]
        self.far._db.write(work)

    @property
    def states(self) -> tuple[str, ...]:
        """How each message stands at its sender, in the model's words."""
        found = (self.near.state(message_id) for message_id in self.ids)
        return tuple("pending" if state == "sending" else state for state in found)

    @property
    def queue(self) -> tuple[int, ...]:
        """What waits for its handler, oldest first."""
        return tuple(self.ids.index(i) for (i,) in self.far._db.read(WAITING))

    @property
    def marks(self) -> tuple[int, ...]:
        """Processed marks of messages, oldest first; requests to cancel have some, too."""
        marked = [i for (i,) in self.far._db.read(MARKED)]
        return tuple(self.ids.index(i) for i in marked if i in self.ids)

    def close(self) -> None:
        """Close both files."""
        self.near.close()
        self.far.close()


def replay(folder: Path, *, seed: int, length: int, rules: Rules | None = None) -> list[str]:
    """
    Walk *length* random steps with model and files side by side.

    Return where they part, and what led there.
    """
    rng, state, taken = random.Random(seed), State(), list[str]()
    real, known = Real(folder), rules or Rules()
    try:
        for _ in range(length):
            possible = [step for step in steps(state, known) if _real(step[0], real)]
            if not possible:
                break
            name, state = rng.choice(possible)
            taken.append(name)
            real.take(name)
            model = (
                state.sender.states,
                state.receiver.queue,
                set(state.receiver.marks),
                set(state.receiver.effects),
            )
            if model != (seen := (real.states, real.queue, set(real.marks), set(real.effects))):
                return [*taken, f"model {model}", f"files {seen}"]
            may_have_left = [
                i
                for i, kind in enumerate(state.sender.states)
                if kind == PENDING and not cancellable(state.sender, i)
            ]
            if known.cancels and any(map(real.withdraws, may_have_left)):
                return [*taken, f"one of {may_have_left} was withdrawn"]
    finally:
        real.close()
    return []


def _real(name: str, real: Real) -> bool:
    """
    Say whether the files take this step too.

    Marks go oldest first, and a new epoch is packed at once.
    """
    return name != "repack" and (
        not name.startswith("prune") or int(name.split()[1]) == real.marks[0]
    )
