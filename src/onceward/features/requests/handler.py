"""
Make the requests of a handler once, and end its call while it waits for their replies.

A wait is stored with its request, so that it survives a restart of the asker: the handler is called
again with the replies.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from hashlib import sha256
from typing import Final, NamedTuple, NoReturn, TypeVar

from typing_extensions import TypeForm

from onceward.core.handle.call import CallHome, HandlerDeps, Suspended
from onceward.core.rows import tickets
from onceward.core.rows.outbox import OutgoingMessage
from onceward.core.send.add import Asker, add_request
from onceward.errors import (
    AnswerTimeout,
    Conflict,
    InvalidArgument,
    InvalidMessage,
    LeaseLost,
    OncewardError,
)
from onceward.features.requests import replies
from onceward.features.requests.replies import LOOK, ReplyState
from onceward.file.connection import ConstraintError
from onceward.file.transaction import StoreTransaction
from onceward.message.body import canonical, encode
from onceward.message.clock import Millis
from onceward.message.options import MessageOptions
from onceward.message.record import Ticket
from onceward.message.times import Span, seconds
from onceward.message.vocabulary import AWAITS

T = TypeVar("T")
LOOK_AGAIN: Final = 86_400_000
"""Milliseconds after which a handler that waits without a deadline is called again."""
STATE: Final = "SELECT state, deadline_at FROM _onceward_pending_replies WHERE id = ?"
OF_HANDLER: Final = """
SELECT asker_index, id, recipient, asker_digest
  FROM _onceward_pending_replies
 WHERE asker_seq = ?
"""
NEXT_NUMBER: Final = """
SELECT coalesce(max(asker_index), -1) + 1 FROM _onceward_pending_replies WHERE asker_seq = ?
"""
LOOK_WITH_DEADLINE: Final = LOOK.replace("b.frame\n", "b.frame, t.deadline_at, t.ended_at\n", 1)


class HandlerRequest(NamedTuple):
    """A request that an earlier call of a handler made."""

    id: str
    recipient: str
    digest: bytes


class MadeRequest(NamedTuple):
    """An uncommitted request of this call of the handler."""

    message: OutgoingMessage
    timeout: float | None
    """Seconds."""
    asker: Asker


def _likeness(to: str, body: object) -> bytes:
    """Return a digest that equal bodies to one agent share."""
    media, text, kind = encode(body)
    return sha256(repr((to, media, kind, canonical(text))).encode()).digest()


class HandlerRequests:
    """
    The requests of the handler of one message, identified by their order.

    A call whose request an earlier call has made gets its reply, and sends none.
    """

    def __init__(self, deps: HandlerDeps, home: CallHome) -> None:
        self._outbox, self._handled = deps.outbox, home.leased
        self._ids = None if home.ids is None else home.ids.within("request")
        self._known: dict[int, HandlerRequest] | None = None
        self._count = 0
        self._made: list[MadeRequest] = []
        self._awaited: Suspended | None = None
        """Why this call has ended, even if its handler caught that."""
        self._adopted: dict[int, str] = {}
        """Requests from before a replay that this call has reused, by their number."""

    def find_or_make(
        self,
        to: str,
        body: object,
        timeout: Span | None,
        options: MessageOptions,
        *,
        keep: bool = False,
    ) -> Ticket | MadeRequest:
        """
        Return the ticket of an earlier call's request at this place, or of a new one to send.

        Raises:
            Conflict: the earlier call made another request here.
            InvalidArgument: an option that would merge two requests.

        """
        if {"key", "message_id"} & options.keys():
            msg = "a handler's requests are identified by their order: omit key and id"
            raise InvalidArgument(msg)
        index, self._count = self._count, self._count + 1
        asker = Asker(self._handled.seq, index, _likeness(to, body), keep)
        known = self._earlier().get(index) or self._from_before_replay(index, asker.digest)
        if known is None:
            if self._ids is not None:
                options = {**options, "ids": partial(self._ids, number=index)}
            message = self._outbox.compose(self._handled.session, to, body, options)
            wait = None if timeout is None else seconds("timeout", timeout, error=InvalidMessage)
            self._made.append(made := MadeRequest(message, wait, asker))
            return made
        if known.digest != asker.digest:
            msg = (
                f"request {index + 1} of this handler differs from that of its first call "
                f"({known.id} to {known.recipient}): make the same requests at each call, and use "
                "changing values (time, random numbers, the file) only after the last reply"
            )
            raise Conflict(msg, message_id=known.id)
        return Ticket(known.id, known.recipient)

    def has(self, message_id: str | None) -> bool:
        """Return whether an earlier call of the handler made a request, whose outcome is stored."""
        return any(each.id == message_id for each in self._earlier().values())

    def _from_before_replay(self, index: int, digest: bytes) -> HandlerRequest | None:
        """Return the equal request that a call made here before the message died, if any."""
        found = self._earlier().get(-1 - index)  # the number that a replay gave it
        if found is None or found.digest != digest:
            return None
        self._adopted[index] = found.id
        return found

    def result(self, request: str, reply: TypeForm[T]) -> T:
        """Return a reply; raise Suspended while it is awaited."""
        return self.gather([request], reply)[0]

    def gather(self, requests: Sequence[str], reply: TypeForm[T]) -> list[T]:
        """Return the replies to requests; raise Suspended while one is awaited."""
        found = zip(requests, self._all_ended(requests), strict=True)
        return [_reply(each, ended, reply) for each, ended in found]

    def gather_each(self, requests: Sequence[str], reply: TypeForm[T]) -> list[T | OncewardError]:
        """Return the replies to requests, or the errors in their places, as ``gather`` does."""
        found = zip(requests, self._all_ended(requests), strict=True)
        return [replies.or_error(_reply, each, ended, reply) for each, ended in found]

    def _all_ended(self, requests: Sequence[str]) -> list[ReplyState | AnswerTimeout]:
        """Return the outcomes of requests; raise Suspended while one is awaited."""
        ended: list[ReplyState | AnswerTimeout] = []
        awaited: list[str] = []
        for each in requests:
            found = self._ended(each)
            if found is None:
                awaited.append(each)
            else:
                ended.append(found)
        if awaited:
            self.wait(*awaited)
        return ended

    def _ended(self, request: str) -> ReplyState | AnswerTimeout | None:
        """Return the outcome of a request for its handler; None while its reply is awaited."""
        if any(made.message.id == request for made in self._made):
            return None
        rows = self._outbox.db.read(LOOK_WITH_DEADLINE, (request,))
        if not rows:
            raise replies.unknown(request)
        *state, deadline_at, ended_at = rows[0]
        found = ReplyState(*state)
        until = self._outbox.db.now() if ended_at is None else ended_at
        if deadline_at is not None and until > deadline_at:
            msg = f"no reply to {request} in time"
            return AnswerTimeout(msg, message_id=request, reason=found.state)
        if found.state == "open":
            self._check_own(request)
            return None
        # A request with a reason had failed for earlier calls, before its reply came.
        return found if found.reason is None else found._replace(frame=None)

    def _check_own(self, request: str) -> None:
        """Raise InvalidArgument for a request whose reply would not call this handler."""
        if all(request != each.id for each in self._earlier().values()):
            raise InvalidArgument(
                f"request {request} was not made by this handler, which can wait only for its own "
                "requests: make it with ctx.request, or ask for its result where it was made"
            )

    def wait(self, *requests: str) -> NoReturn:
        """End the call, until all of these requests have ended."""
        more = f" and {len(requests) - 1} others" if len(requests) > 1 else ""
        until = partial(self._until, requests=requests)
        self._awaited = Suspended(f"{AWAITS}{requests[0]}{more}", until)
        raise self._awaited

    def end_call(self) -> None:
        """End a call that returned although it still awaits a reply."""
        if self._awaited is not None:
            raise self._awaited

    def add(self, tx: StoreTransaction, made: MadeRequest) -> Ticket:
        """
        Store a request in the handler's transaction.

        Raises:
            LeaseLost: another worker handles the message, and has made this request.

        """
        try:
            return add_request(tx, self._outbox, made.message, made.timeout, made.asker)
        except ConstraintError as error:
            msg = "another worker has the message, and has already made the request"
            raise LeaseLost(msg) from error

    def add_now(
        self, tx: StoreTransaction, message: OutgoingMessage, timeout: Span | None, *, keep: bool
    ) -> Ticket:
        """Store a request in a separate commit, which identifies it."""
        seq = self._handled.seq
        [(number,)] = tx.rows(NEXT_NUMBER, (seq,))
        self._known = None
        return add_request(tx, self._outbox, message, timeout, Asker(seq, number, b"", keep))

    def keep(self, tx: StoreTransaction) -> None:
        """Store the requests of this call, which ends to wait."""
        for made in self._made:
            self.add(tx, made)
        for number, message_id in self._adopted.items():
            tickets.adopt(tx, message_id, number)

    def refuse_inside(self, what: str) -> None:
        """Allow *what*: a request has no inside."""

    def close(self) -> None:
        """Do nothing: the next call finds the requests."""

    def _until(self, tx: StoreTransaction, requests: Sequence[str]) -> Millis:
        """
        Return the latest time at which to call a handler that waits for replies again.

        The last reply makes that earlier: the commit that stores it wakes the lane.
        """
        dates = [_open_until(tx, each) for each in requests]
        awaited = [each for each in dates if each is not None]
        if not awaited:  # the replies came after this call had looked
            return tx.now
        if len(requests) > 1:
            tickets.gather(tx, requests)
        return min(awaited)

    def _earlier(self) -> dict[int, HandlerRequest]:
        if self._known is None:
            rows = self._outbox.db.read(OF_HANDLER, (self._handled.seq,))
            self._known = {row[0]: HandlerRequest(*row[1:]) for row in rows}
        return self._known


def _open_until(tx: StoreTransaction, request: str) -> Millis | None:
    """Return when to check an open request again; None for others."""
    [(state, deadline_at)] = tx.rows(STATE, (request,))
    if state != "open":
        return None
    return int(tx.now + LOOK_AGAIN if deadline_at is None else deadline_at + 1)


def _reply(request: str, found: ReplyState | AnswerTimeout, reply: TypeForm[T]) -> T:
    if isinstance(found, AnswerTimeout):
        raise found
    return replies.read_reply(request, found, reply)
