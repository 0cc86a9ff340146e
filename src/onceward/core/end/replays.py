"""Return dead letters to the queue that they came from, with their id; edit or discard them."""

from __future__ import annotations

from collections.abc import Callable

from onceward.core.rows import dead_letters, inbox, lanes, outbox, senders, tickets
from onceward.core.rows.dead_letters import Returning
from onceward.errors import Conflict, InvalidArgument
from onceward.file.connection import ConstraintError
from onceward.file.identity import note_pruned
from onceward.file.transaction import StoreTransaction, bump
from onceward.message.body import Payload
from onceward.message.clock import Millis
from onceward.message.frame import with_body


def replay(
    tx: StoreTransaction,
    seq: int,
    *,
    due_at: Millis | None = None,
    returned: Callable[[StoreTransaction, str, str], None] | None = None,
) -> tuple[str, str]:
    """
    Return a dead letter to the queue that it came from, with its id; return (origin, id).

    *returned* gets the sender and id of one that returns to a mailbox. If its peer has already
    processed the message, it answers so, and the message ends acked. If it fails again, it is one
    dead letter as before, with one more replay.

    Raises:
        InvalidArgument: there is no such dead letter, or it expired before it left, so that the
        peer would refuse it.
        Conflict: its key has since been used for another message.

    """
    dead = dead_letters.returning(tx, seq)
    if dead is None:
        raise InvalidArgument("that dead letter no longer exists: list them again")
    if dead.expired:
        msg = f"{dead.id} has expired, so the peer would refuse it: replay it with as_new=True"
        raise InvalidArgument(msg)
    if dead.origin == "outbox":
        _to_outbox(tx, seq, dead.id, due_at)
    elif dead.boxed:
        inbox.add_returned(tx, seq, lanes.NO_LANE)  # it is read by position again, not by lane
        if returned is not None:
            returned(tx, dead.peer, dead.id)
    else:
        _to_inbox(tx, seq, dead)
    dead_letters.remove(tx, seq)
    bump(tx, replayed=1)
    return dead.origin, dead.id


def _to_outbox(tx: StoreTransaction, seq: int, message_id: str, due_at: Millis | None) -> None:
    try:
        outbox.add_returned(tx, seq, due_at=due_at)
    except ConstraintError as error:
        if "UNIQUE" not in str(error):
            raise
        msg = (
            f"the id or key of {message_id} now belongs to another message: replay it with "
            "as_new=True, or discard it"
        )
        raise Conflict(msg, message_id=message_id, reason="sent again since") from error
    tickets.reopen(tx, message_id)


def _to_inbox(tx: StoreTransaction, seq: int, dead: Returning) -> None:
    senders.unmark(tx, dead.peer, dead.id)
    lane_id = lanes.open_lane(tx, dead.peer, dead.lane, dead.rank, session=dead.session)
    asker = inbox.add_returned(tx, seq, lane_id)
    tickets.pass_on(tx, seq, asker)
    lanes.set_heads(tx, [lane_id])


def edit(tx: StoreTransaction, seq: int, frame: str, body: Payload) -> None:
    """
    Replace the body of a received dead letter whose stored frame is *frame*.

    Raises:
        Conflict: it is gone, or has changed since it was read.

    """
    if not dead_letters.edit(tx, seq, frame, with_body(frame, body, tx.now)):
        raise Conflict("that dead letter is gone, or was edited meanwhile: look at it again")


def discard(tx: StoreTransaction, seq: int) -> bool:
    """
    Delete a dead letter; return whether it existed.

    A sent message is then fully forgotten here, although it may have arrived.
    """
    gone = dead_letters.discard(tx, seq)
    if sent := [at for at in gone if at is not None]:
        note_pruned(tx, max(sent) + 1)
    return bool(gone)
