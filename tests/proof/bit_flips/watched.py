"""Two agents whose handlers compare what they are given with what was sent."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final, cast

from tests.proof.power_cut.pair import Answer, Pair, Side, Terms, Work, session_of, work
from tests.proof.power_cut.scene import Scene

from onceward.api.contexts import Context
from onceward.api.postbox import Postbox
from onceward.core.deliver.transport import Features
from onceward.errors import Unreachable
from onceward.message.parcel import Answer as Answered
from onceward.message.parcel import Parcel, ParcelFrame, Receipt

FIELDS: Final = (
    "text",
    "text",
    "text",
    "digest",
    "id",
    "epoch",
    "previous",
    "number",
    "sender",
    "receipt",
    "session",
)

TRIES: Final = 6
ENOUGH: Final = 100
"""Parcels of one life, beyond which it is going round in circles."""


class Watched(Pair):
    """Notes in ``wrong`` whatever a handler is given that was never sent."""

    def __init__(
        self, scene: Scene, terms: Terms, sent: dict[str, int], way: Noisy | None = None
    ) -> None:
        super().__init__(scene, terms)
        self.sent = sent
        """What was ever sent: numbers by message id."""
        self.wrong: list[str] = []
        self._way = way
        if way is not None:
            way.boxes = cast("Mapping[str, Postbox]", self.boxes)

    def options(self, side: Side) -> dict[str, Any]:
        """Return what the postbox of one side is opened with."""
        return super().options(side) | (
            {} if self._way is None else {"transports": {"memory": self._way}}
        )

    def promised(self, message_id: str, n: int) -> None:
        """Remember what was sent."""
        super().promised(message_id, n)
        self.sent[message_id] = n

    def _work(self, work: Work, ctx: Context) -> None:
        self._compare_work(work, ctx)
        super()._work(work, ctx)

    def _answer(self, answer: Answer, ctx: Context) -> None:
        told = ctx.message.frame.inreplyto
        if (ctx.message.sender, self.sent.get(told or "")) != ("far", answer.n):
            self.wrong.append(f"WRONG answer {answer.n} of {ctx.message.sender} to {told}")
        super()._answer(answer, ctx)

    def _compare_work(self, given: Work, ctx: Context) -> None:
        message = ctx.message
        n = self.sent.get(message.id)
        if n is None:
            self.wrong.append(f"WRONG id {message.id}: no agent sent that")
            return
        seen = (given, message.sender, message.session, message.type)
        if seen != (work(n), "near", session_of(n), "town.work"):
            self.wrong.append(f"WRONG message {n}: {seen!r:.200}")


class Noisy:
    """Carries as few parcels as are needed inside the process, one of them with a flipped bit."""

    features = Features(schemes=frozenset({"memory"}))

    def __init__(self, rng: random.Random, number: int) -> None:
        self._rng, self._number = rng, number
        self.boxes: Mapping[str, Postbox] = {}
        """Who can be reached."""
        self.count = 0
        """How many parcels were pushed."""

    def deliver(self, url: str, parcel: Parcel) -> Answered:
        """Deliver, with noise when it is the turn of this parcel."""
        self.count += 1
        name = url.partition(":")[2]
        if self.runaway or name not in self.boxes:
            msg = "nobody needs so many parcels" if self.runaway else f"nobody lives at {url}"
            raise Unreachable(msg)
        return self.boxes[name].accept(
            self._spoilt(parcel) if self.count == self._number else parcel
        )

    @property
    def runaway(self) -> bool:
        """Whether an agent pushes without an end."""
        return self.count > ENOUGH

    def close(self) -> None:
        """Nothing is held."""

    def _spoilt(self, parcel: Parcel) -> Parcel:
        match self._rng.choice(FIELDS):
            case "epoch":
                return replace(parcel, epoch=_flipped_text(parcel.epoch, self._rng))
            case "previous":
                return replace(parcel, previous=_flipped_text(parcel.previous, self._rng))
            case "number":
                return replace(parcel, number=parcel.number ^ 1 << self._rng.randrange(8))
            case "sender":
                return replace(parcel, sender=_flipped_text(parcel.sender, self._rng))
            case "receipt" if parcel.receipts:
                first, *others = parcel.receipts
                return replace(
                    parcel,
                    receipts=(
                        Receipt(_flipped_text(first.id, self._rng), first.state, first.reason),
                        *others,
                    ),
                )
            case field if parcel.frames:
                at = self._rng.randrange(len(parcel.frames))
                frames = list(parcel.frames)
                frames[at] = _spoilt_frame(frames[at], field, self._rng)
                return replace(parcel, frames=tuple(frames))
        return parcel


def flipped(data: bytes, rng: random.Random) -> bytes:
    """Return *data* with one bit changed, mostly where there is something."""
    places = (rng.randrange(len(data)) for _ in range(TRIES))
    at = next((at for at in places if data[at]), rng.randrange(len(data)))
    return data[:at] + bytes([data[at] ^ 1 << rng.randrange(8)]) + data[at + 1 :]


def _flipped_text(text: str, rng: random.Random) -> str:
    return flipped(text.encode(), rng).decode(errors="replace") if text else text


def _spoilt_frame(carried: ParcelFrame, field: str, rng: random.Random) -> ParcelFrame:
    if field == "id":
        return carried._replace(id=_flipped_text(carried.id, rng))
    if field == "digest":
        return carried._replace(digest=flipped(carried.digest, rng))
    return carried._replace(text=_flipped_text(carried.text, rng))


def hear(box: Postbox) -> None:
    """Read what a user may read, and drop it."""
    box.file.check()
    box.history()
    box.file.stats()
    box.dead_letters.list()
    box.peers.list()
