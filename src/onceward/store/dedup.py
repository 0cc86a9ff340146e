"""How far each sender's stream has come: whether a parcel continues it, and whether what a new epoch builds on is here."""

from __future__ import annotations

from typing import Final, NamedTuple

from onceward.db.transaction import StoreTransaction
from onceward.model.parcel import Parcel, Verdict

STREAM: Final = "SELECT epoch, number, last_id, horizon_id, relied_epoch, relied_number FROM streams WHERE sender = ?"
SAVE_STREAM: Final = """
INSERT INTO streams (sender, epoch, number, last_id, updated_at, relied_epoch, relied_number) VALUES (?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (sender) DO UPDATE
   SET epoch = excluded.epoch, number = excluded.number, last_id = excluded.last_id, updated_at = excluded.updated_at,
       relied_epoch = excluded.relied_epoch, relied_number = excluded.relied_number
"""


class StreamPosition(NamedTuple):
    """How far a sender's stream has come, and what its epoch was built on."""

    epoch: str = ""
    number: int = 0
    last_id: str = ""
    horizon_id: str = ""
    base_epoch: str = ""
    base_number: int = 0

    @property
    def position(self) -> tuple[str, int]:
        """Where it stands."""
        return self.epoch, self.number

    @property
    def base(self) -> tuple[str, int]:
        """Where it stood before its epoch began, as the sender said."""
        return self.base_epoch, self.base_number

    def holds(self, relies_on: tuple[str, int] | None) -> bool:
        """Say whether everything is here that a new epoch builds on: by this epoch, or by what this one was built on."""
        return relies_on is None or any(
            epoch == relies_on[0] and number >= relies_on[1]
            for epoch, number in (self.position, self.base)
        )


def position_of(tx: StoreTransaction, sender: str) -> StreamPosition:
    """Return how far the stream of *sender* has come."""
    found = tx.rows(STREAM, (sender,))
    return StreamPosition(*found[0]) if found else StreamPosition()


def classify(stream: StreamPosition, parcel: Parcel) -> tuple[Verdict, bool]:
    """Return whether *parcel* continues *stream*, and whether every frame is to be judged by its id."""
    if parcel.epoch == stream.epoch:
        if parcel.number == stream.number + 1 and parcel.previous == stream.last_id:
            return "accepted", False
        if parcel.number == stream.number and parcel.last_id == stream.last_id:
            return "duplicate", True
    elif parcel.number == 1 and parcel.previous == "" and stream.holds(parcel.base_position):
        return "accepted", True
    return "fork", False


def advance(tx: StoreTransaction, stream: StreamPosition, parcel: Parcel) -> None:
    """Note that *parcel* was accepted, in the commit that keeps its frames."""
    relied = stream.base if parcel.epoch == stream.epoch else parcel.base_position or ("", 0)
    tx.run(
        SAVE_STREAM, (parcel.sender, parcel.epoch, parcel.number, parcel.last_id, tx.now, *relied)
    )
