"""Store each sender's stream position; accept a parcel only if it continues that stream."""

from __future__ import annotations

from typing import Final, NamedTuple

from onceward.file.transaction import StoreTransaction
from onceward.message.parcel import Parcel, Verdict, generation_of

STREAM: Final = """
SELECT epoch, number, last_id, horizon_id, base_epoch, base_number
  FROM _onceward_sender_streams
 WHERE sender = ?
"""
SAVE_STREAM: Final = """
INSERT INTO _onceward_sender_streams (sender, epoch, number, last_id, updated_at, base_epoch,
                                      base_number)
VALUES (?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (sender) DO UPDATE
   SET epoch = excluded.epoch, number = excluded.number, last_id = excluded.last_id,
       updated_at = excluded.updated_at, base_epoch = excluded.base_epoch,
       base_number = excluded.base_number
"""


class StreamPosition(NamedTuple):
    """The position of a sender's stream, and the position its epoch was built on."""

    epoch: str = ""
    number: int = 0
    last_id: str = ""
    horizon_id: str = ""
    base_epoch: str = ""
    base_number: int = 0

    @property
    def position(self) -> tuple[str, int]:
        """Epoch and number of the last accepted parcel."""
        return self.epoch, self.number

    @property
    def base(self) -> tuple[str, int]:
        """Epoch and number before its epoch began, as the sender reported them."""
        return self.base_epoch, self.base_number

    def precedes(self, epoch: str) -> bool:
        """Return whether *epoch* may be a later one: a parcel of an earlier one is a late copy."""
        generation = generation_of(epoch)
        return generation == 0 or generation > generation_of(self.epoch)

    def known_to(self, parcel: Parcel) -> bool:
        """Return whether the sender's file knows of every parcel that was accepted from it."""
        return parcel.base_position == self.position or self.last_id in parcel.unsettled

    def holds(self, relies_on: tuple[str, int] | None) -> bool:
        """Return whether the position that a new epoch builds on was reached here."""
        return relies_on is None or any(
            epoch == relies_on[0] and number >= relies_on[1]
            for epoch, number in (self.position, self.base)
        )


def position_of(tx: StoreTransaction, sender: str) -> StreamPosition:
    """Return the stream position of *sender*."""
    found = tx.rows(STREAM, (sender,))
    return StreamPosition(*found[0]) if found else StreamPosition()


def classify(stream: StreamPosition, parcel: Parcel) -> tuple[Verdict, bool]:
    """Return the verdict on *parcel*, and whether every frame is to be judged by its id."""
    if parcel.epoch == stream.epoch:
        if parcel.number == stream.number + 1 and parcel.previous == stream.last_id:
            return "accepted", False
        if parcel.number == stream.number and parcel.last_id == stream.last_id:
            return "duplicate", True
    elif (
        parcel.number == 1
        and parcel.previous == ""
        and (not stream.epoch or stream.precedes(parcel.epoch))
        and stream.holds(parcel.base_position)
    ):
        return "accepted", not stream.known_to(parcel)
    return "fork", False


def advance(tx: StoreTransaction, stream: StreamPosition, parcel: Parcel) -> None:
    """Record that *parcel* was accepted, in the commit that stores its frames."""
    relied = stream.base if parcel.epoch == stream.epoch else parcel.base_position or ("", 0)
    tx.run(
        SAVE_STREAM, (parcel.sender, parcel.epoch, parcel.number, parcel.last_id, tx.now, *relied)
    )
