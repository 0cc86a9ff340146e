"""
Refuse parcels of a file, or for a file, after another machine has taken over its agent.

Each takeover has a text, and the newest one is the greatest. A sender says from which one its file
comes, and which one of the recipient it knows; an answer says from which one its file comes. So a
peer knows the new file after one exchange with it, in either direction, and a file that was
superseded learns it by its next push, or by the next parcel that it gets; then it stops
permanently.
"""

from __future__ import annotations

from typing import Final

from onceward.file import identity
from onceward.file.transaction import StoreTransaction
from onceward.message.clock import Millis
from onceward.message.parcel import Answer, Parcel

RETRY_AFTER: Final[Millis] = 60_000
"""When a sender tries again that has reached the old file: it may know the new one by then."""


def refusal(
    tx: StoreTransaction,
    parcel: Parcel,
    of_sender: str | None,
    own: str | None,
    superseded_by: str | None,
) -> Answer | None:
    """
    Return the answer to a parcel that an older file has sent or got; None for any other.

    *of_sender*, *own* and *superseded_by* are the takeovers that this file knows: of the sender, of
    its own agent, and the one after which it is not used any more.
    """
    if (parcel.known_takeover or "") > (own or ""):
        identity.supersede(tx, str(parcel.known_takeover))
        return Answer(verdict="busy", retry_after=RETRY_AFTER)
    if superseded_by is not None:
        return Answer(verdict="busy", retry_after=RETRY_AFTER)
    if (parcel.takeover or "") < (of_sender or ""):
        return Answer(verdict="superseded", takeover=of_sender)
    if parcel.takeover is not None and parcel.takeover != of_sender:
        identity.note_takeover(tx, parcel.sender, parcel.takeover)
    return None
