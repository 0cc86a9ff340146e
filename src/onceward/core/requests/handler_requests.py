"""Requests of a handler: it ends while replies are awaited, and is called again with them."""

from __future__ import annotations

from hashlib import sha256
from typing import TYPE_CHECKING, Final, NamedTuple, NoReturn, TypeVar

from onceward.core.requests import stored as requests
from onceward.core.requests.replies import read_reply
from onceward.core.requests.stored import Asker
from onceward.errors import AnswerTimeout, Conflict, HandlerSignal, InvalidArgument, LeaseLost
from onceward.file.connection import ConstraintError
from onceward.file.transaction import StoreTransaction
from onceward.message.body import encode
from onceward.message.clock import Millis
from onceward.message.send_options import MessageOptions
from onceward.message.states import AWAITS
from onceward.message.ticket import Ticket
from onceward.message.times import Span

if TYPE_CHECKING:
    from onceward.core.handle.inbox import LeasedMessage
    from onceward.core.send.outbox import OutgoingMessage
    from onceward.core.send.sender import Sender

T = TypeVar("T")
LOOK_AGAIN: Final = 86_400_000
"""Milliseconds after which a handler is called again that waits for a reply without a deadline."""


class Suspended(BaseException):
    """Ends a call of a handler; ``except Exception`` does not catch it, as no failure happened."""

    def __init__(self, request: str) -> None:
        super().__init__(f"{AWAITS}{request}")
        self.request = request


def cause_of_group(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """Return why tasks ended: what failed, or what the handler says, or the request it awaits."""
    ends, failed = group.split((HandlerSignal, Suspended))
    if ends is None or failed is not None:
        return failed or group
    cause: BaseException = ends.subgroup(HandlerSignal) or ends
    while isinstance(cause, BaseExceptionGroup):
        cause = cause.exceptions[0]
    return cause


class MadeRequest(NamedTuple):
    """A request that this call of the handler has made, and that is not committed."""

    message: OutgoingMessage
    timeout: Span | None
    asker: Asker


class HandlerRequests:
    """
    The requests that the handler of one message makes, told apart by their order.

    A call that finds its request made by an earlier one gets its reply, and
    makes none.
    """

    def __init__(self, sender: Sender, leased: LeasedMessage) -> None:
        self._sender, self._leased = sender, leased
        self._known: dict[int, requests.HandlerRequest] | None = None
        self._count = 0
        self._made: list[MadeRequest] = []
        self._awaited: Suspended | None = None
        """Why this call has ended, also where its handler caught that."""
        self._adopted: dict[int, str] = {}
        """Requests from before a replay that this call has found again, by their number."""

    def find_or_make(
        self, to: str, body: object, timeout: Span | None, options: MessageOptions
    ) -> Ticket | MadeRequest:
        """
        Return the ticket of the request that an earlier call made here, or a new one to be sent.

        Raises:
            Conflict: the earlier call asked something else here.
            InvalidArgument: an option that would make two requests one.

        """
        if {"key", "message_id"} & options.keys():
            msg = "a handler's requests are told apart by their order: leave key and id out"
            raise InvalidArgument(msg)
        index, self._count = self._count, self._count + 1
        asker = Asker(self._leased.seq, index, sha256(repr((to, encode(body))).encode()).digest())
        known = self._earlier().get(index) or self._from_before_replay(index, asker.digest)
        if known is None:
            message = self._sender.compose(self._leased.session, to, body, options)
            self._made.append(made := MadeRequest(message, timeout, asker))
            return made
        if known.digest != asker.digest:
            msg = (
                f"request {index + 1} of this handler was another one when it was called first"
                f" ({known.id} to {known.recipient}): ask the same at each call, and what changes"
                " (time, random numbers, the file) only after the last reply"
            )
            raise Conflict(msg, message_id=known.id)
        return Ticket(known.id, known.recipient)

    def has(self, message_id: str | None) -> bool:
        """Return whether an earlier call of the handler made a request, whose outcome is stored."""
        return any(each.id == message_id for each in self._earlier().values())

    def _from_before_replay(self, index: int, digest: bytes) -> requests.HandlerRequest | None:
        """Return the request that a call made here before the message died, if it is the same."""
        found = self._earlier().get(requests.before_replay(index))
        if found is None or found.digest != digest:
            return None
        self._adopted[index] = found.id
        return found

    def result(self, ticket: Ticket, reply: type[T]) -> T:
        """Return a reply; raise Suspended where it is still awaited."""
        if any(made.message.id == ticket.id for made in self._made):
            self.wait(ticket.id)
        rows = self._sender.db.read(requests.LOOK_WITH_DEADLINE, (ticket.id,))
        if not rows:
            msg = f"no request {ticket.id} here: never sent from this file, or pruned"
            raise InvalidArgument(msg)
        *state, deadline_at, ended_at = rows[0]
        found = requests.ReplyState(*state)
        until = self._sender.db.now() if ended_at is None else ended_at
        if deadline_at is not None and until > deadline_at:
            msg = f"no reply to {ticket.id} in time"
            raise AnswerTimeout(msg, message_id=ticket.id, ticket=ticket, reason=found.state)
        if found.state == "open":
            self._check_own(ticket.id)
            self.wait(ticket.id)
        if found.reason is not None:  # it had failed for the calls before its reply came
            found = found._replace(frame=None)
        return read_reply(ticket.id, found, reply)

    def _check_own(self, request: str) -> None:
        """Raise InvalidArgument for a request whose reply would not call this handler."""
        if all(request != each.id for each in self._earlier().values()):
            msg = (
                f"request {request} was not made by this handler, which waits for its own only:"
                " make it by ctx.request, or ask for its result where it was made"
            )
            raise InvalidArgument(msg)

    def wait(self, request: str) -> NoReturn:
        """End the call, until the reply to a request is there."""
        self._awaited = Suspended(request)
        raise self._awaited

    def end_call(self) -> None:
        """End a call that has returned all the same, where a reply is still awaited."""
        if self._awaited is not None:
            raise self._awaited

    def add(self, tx: StoreTransaction, made: MadeRequest) -> Ticket:
        """
        Store a request in the handler's transaction.

        Raises:
            LeaseLost: another worker handles the message, and has made this request.

        """
        try:
            return self._sender.add_request(tx, made.message, made.timeout, asker=made.asker)
        except ConstraintError as error:
            msg = "another worker has the message, and has asked already"
            raise LeaseLost(msg) from error

    def suspend(self, tx: StoreTransaction, request: str) -> Millis:
        """
        Store what this call has asked; return when the handler is to be called again at the latest.

        A reply calls it earlier: the lane is woken in the commit that stores the reply.
        """
        for made in self._made:
            self.add(tx, made)
        for number, message_id in self._adopted.items():
            requests.adopt(tx, number, message_id)
        [(state, deadline_at)] = tx.rows(requests.STATE, (request,))
        if state != "open":  # the reply came after this call had looked
            return tx.now
        return int(tx.now + LOOK_AGAIN if deadline_at is None else deadline_at + 1)

    def _earlier(self) -> dict[int, requests.HandlerRequest]:
        if self._known is None:
            rows = self._sender.db.read(requests.OF_HANDLER, (self._leased.seq,))
            self._known = {row[0]: requests.HandlerRequest(*row[1:]) for row in rows}
        return self._known
