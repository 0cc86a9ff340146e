"""
Accept a plain message with the call of its handler: one commit stores, handles and settles it.

Only what is usual goes this way: one new message alone in its parcel, in a lane that is known and
empty, while no other lane is ready. Everything else is refused by ``open``, which has written
nothing then, and takes the usual way: the parcel is stored, and a worker claims its messages.
"""

from __future__ import annotations

from collections.abc import Callable

from onceward.core.accept import judge
from onceward.core.accept.judge import StreamPosition
from onceward.core.accept.policy import InboxPolicy, ParsedFrame
from onceward.core.end import received
from onceward.core.rows import claimable, inbox, lanes, senders
from onceward.core.rows.inbox import InboxRow
from onceward.core.rows.lanes import NO_LEASE, Lease, LeasedMessage
from onceward.core.run.arrival import Arrival
from onceward.errors import LeaseLost
from onceward.file.transaction import StoreTransaction, bump
from onceward.message.clock import Millis
from onceward.message.frame import Frame
from onceward.message.ids import KEYED, OWN_ID
from onceward.message.parcel import Answer, Parcel, Receipt

Row = Callable[[Frame, ParsedFrame, int, Millis], InboxRow]
"""Returns the row of a waiting message, with its lane and the time of its arrival."""


def is_plain(parcel: Parcel, frames: list[ParsedFrame]) -> bool:
    """Return whether a parcel of one frame may go the short way, before the file is read."""
    if parcel.receipts or parcel.greeting or parcel.sender == parcel.recipient:
        return False
    [each] = frames
    of = each.frame
    return (
        of is not None
        and OWN_ID.fullmatch(of.id) is not None
        and not (each.problem or each.carried.redelivered or of.chosenid or of.expirytime)
        and not (of.kind or of.mailbox or of.channel or of.inreplyto)
        and not (of.__pydantic_extra__ and of.ephemeral)
    )


class PlainArrival(Arrival):
    """A parcel with one plain message; see ``is_plain``."""

    def __init__(
        self, parcel: Parcel, policy: InboxPolicy, examined: ParsedFrame, row: Row
    ) -> None:
        super().__init__()
        assert examined.frame is not None  # noqa: S101 - it is plain
        self._parcel, self._policy, self._examined = parcel, policy, examined
        self._frame: Frame = examined.frame
        self._row = row
        self._stream = StreamPosition()
        self._leased = self.message()
        self._until: Millis = 0
        self._receipt = Receipt(self._frame.id, "stored")
        self.id = self._frame.id
        self.asks = received.ASKS in examined.carried.text

    def message(self) -> LeasedMessage:
        """Return the message without a lease, to find its handler."""
        frame, each = self._frame, self._examined
        return LeasedMessage(
            NO_LEASE,
            seq=0,
            sender=self._parcel.sender,
            id=frame.id,
            session=frame.session,
            frame=each.carried.text,
            digest=each.digest,
            expires_at=None,
            attempt=1,
            received_at=0,
        )

    def open(self, tx: StoreTransaction, *, owner: str, until: Millis) -> LeasedMessage | None:
        """
        Return the message as it will be leased; None if the usual way must be taken.

        Nothing is written. *owner* is the worker that would lease it, *until* the end of the lease.
        """
        parcel, frame, policy = self._parcel, self._frame, self._policy
        found = judge.look(tx, parcel)
        if found.verdict != "accepted" or found.judge_all or found.fence is not None:
            return None
        if found.known or found.rated or found.waiting >= policy.max_inbox:
            return None
        if found.rule is not None or policy.network:
            [allowed] = judge.allowed([self._examined], found.rule)
            if allowed.problem:
                return None
        if frame.id.startswith(KEYED) and judge.outlasts_pruning(frame, tx.now):
            return None
        self._stream = found.stream
        name = frame.partitionkey or frame.session
        free = claimable.find_free(tx, parcel.sender, name, frame.priority, session=frame.session)
        if free is None:
            return None
        self._until = until
        held = Lease(free.lane_id, free.token + 1, owner, isolate=False)
        self._leased = self._leased._replace(lane=held, seq=free.next_seq, received_at=tx.now)
        return self._leased

    def store(self, tx: StoreTransaction) -> None:
        """Store it as a waiting message under its lease."""
        leased = self._leased
        self._check(inbox.insert_one(tx, self._waiting()))
        lane_id, token, owner, *_ = leased.lane
        lanes.set_head(tx, lane_id)
        lanes.lease(tx, (lane_id, token - 1, 0), [leased.seq], owner=owner, until=self._until)
        judge.advance(tx, self._stream, self._parcel)
        self._receipt = Receipt(leased.id, "stored")
        tx.take_receipt = self._take_receipt

    def store_handled(self, tx: StoreTransaction) -> None:
        """Store it as a handled message, which needs no lease."""
        leased = self._leased
        self._check(inbox.insert_handled(tx, self._waiting(), leased.attempt))
        senders.mark_one(tx, leased.sender, leased.id, leased.session, "processed")
        judge.advance(tx, self._stream, self._parcel)
        bump(tx, ended=1, processed=1)
        self._receipt = Receipt(leased.id, "processed")

    def _check(self, seq: int) -> None:
        """Raise LeaseLost unless the message got the sequence that its handler was called with."""
        if seq != self._leased.seq:
            msg = f"message {self.id} was stored as {seq}, not as {self._leased.seq}"
            raise LeaseLost(msg)

    def _waiting(self) -> InboxRow:
        leased = self._leased
        return self._row(self._frame, self._examined, leased.lane.lane_id, leased.received_at)

    def _take_receipt(self, peer: str, receipt: Receipt) -> bool:
        """Let the answer carry the receipt of this message; return whether it is that."""
        mine = (peer, receipt.id) == (self._leased.sender, self._leased.id)
        if mine:
            self._receipt = receipt
        return mine

    @property
    def answer(self) -> Answer:
        """The answer to the parcel once what was stored is committed."""
        return Answer(
            verdict="accepted",
            receipts=(self._receipt,),
            durability=self._policy.durability,
            takeover=self._policy.takeover,
        )
