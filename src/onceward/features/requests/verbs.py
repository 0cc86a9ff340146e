"""Add requests to contexts: ``ctx.ask``, ``ctx.request`` and their replies, sync and async."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any, Literal, TypeVar, Unpack, overload

from typing_extensions import TypeForm

from onceward.core.handle.call import CallParts
from onceward.core.run.async_face import AsyncFace, awaitable
from onceward.errors import OncewardError
from onceward.features.requests.handler import HandlerRequests, MadeRequest
from onceward.message.arguments import checked
from onceward.message.handler_options import flag
from onceward.message.options import MessageOptions, SendOptions, asking_options, request_options
from onceward.message.record import Ticket, ticket_id
from onceward.message.times import Span
from onceward.message.vocabulary import QUESTION

T = TypeVar("T")


class WithReplies(CallParts):
    """The requests of a handler and their replies; ``Context`` and ``Run`` have them."""

    @cached_property
    def _requests(self) -> HandlerRequests:
        made: HandlerRequests = self._part("requests", first=True)
        return made

    def request(
        self,
        to: str,
        body: object,
        *,
        reply: TypeForm[object] | None = None,
        timeout: Span | None = None,
        keep: bool = False,
        **options: Unpack[SendOptions],
    ) -> Ticket:
        """
        Send a request, and return the ticket for ``result``.

        It leaves with the processed mark; in a run at once, as a step. If an earlier call made it
        for the same messages, such as before a kill or a retry, its ticket is returned and nothing
        is sent. With *reply* the request carries the schema of the expected reply. If the message
        of the handler is cancelled, the request is cancelled, too; with *keep* it goes on.

        Raises:
            Conflict: the earlier call made another request at this place.
            LeaseLost: the run was ended from outside.

        """
        if keep is not False:
            flag("keep", keep)
        return self._request(to, body, timeout, request_options(options, reply), keep=keep)

    def ask(
        self,
        to: str,
        body: object,
        *,
        reply: TypeForm[T],
        timeout: Span = "1h",
        **options: Unpack[SendOptions],
    ) -> T:
        """
        Send a request and return its reply, read as *reply*: the handler is called again with it.

        Until the reply arrives this call **ends**: the handler's writes are rolled back, its
        requests are committed, no lock is held, and its lane waits. Then the handler is called
        again from its start, and each request that it makes in the same order gets its stored
        reply. This survives restarts, and does not count as an attempt. In a run, the same messages
        get another run; the session begins no other one before that, unless a message steers or
        interrupts it.

        Raises:
            AnswerTimeout: no reply came within *timeout*.
            RequestFailed: the peer gave the request up, or handled it without a reply.
            InvalidMessage: the reply does not fit.
            Conflict: an earlier call made another request at this place.

        """
        asked = self._question(to, body, timeout, asking_options(options, reply))
        return self.result(asked, reply=reply)

    def _request(
        self,
        to: str,
        body: object,
        timeout: Span | None,
        options: MessageOptions,
        *,
        keep: bool = False,
    ) -> Ticket:
        """Send a request that no earlier call has made; return its ticket."""
        made = self._ask(to, body, timeout, options, keep=keep)
        return made if isinstance(made, Ticket) else self._requests.add(self._join(), made)

    def _question(
        self, to: str, body: object, timeout: Span | None, options: MessageOptions
    ) -> Ticket:
        """Return the ticket of a request that leaves when the call waits for it, or earlier."""
        made = self._ask(to, body, timeout, options)
        return made if isinstance(made, Ticket) else Ticket(made.message.id, to)

    def _ask(
        self,
        to: str,
        body: object,
        timeout: Span | None,
        options: MessageOptions,
        *,
        keep: bool = False,
    ) -> Ticket | MadeRequest:
        for part in self._parts:
            part.refuse_inside("a request")
        requests = self._requests
        self._follow(options)
        options.setdefault("reply_to", self._outbox.db.agent)
        options.setdefault("hops", self._hops)
        named: MessageOptions = {**options, "kind": QUESTION}
        return requests.find_or_make(to, body, timeout, named, keep=keep)

    @checked
    def result(self, ticket: Ticket | str, *, reply: TypeForm[T]) -> T:
        """Return the reply to a ticket of ``request``, or to its id, as ``ask`` does."""
        return self._requests.result(ticket_id(ticket), reply)

    @overload
    def gather(
        self,
        tickets: Sequence[Ticket | str],
        *,
        reply: TypeForm[T],
        return_exceptions: Literal[False] = False,
    ) -> list[T]: ...

    @overload
    def gather(
        self,
        tickets: Sequence[Ticket | str],
        *,
        reply: TypeForm[T],
        return_exceptions: bool,
    ) -> list[T | OncewardError]: ...

    @checked
    def gather(
        self,
        tickets: Sequence[Ticket | str],
        *,
        reply: TypeForm[T],
        return_exceptions: bool = False,
    ) -> list[Any]:
        """
        Return the replies to tickets of ``request``, in order, once all have ended.

        Until then the call ends as in ``ask``, and the handler is called again once: with the last
        reply. If requests failed, the error of the first one, in the order of the tickets, is
        raised after all have ended; ``result`` returns the other replies. With *return_exceptions*
        the list has each error in the place of its reply.

        Raises:
            AnswerTimeout: a reply did not come in time.
            RequestFailed: a peer gave one up, or handled it without replying.
            InvalidMessage: a reply does not fit.

        """
        gather = self._requests.gather_each if return_exceptions else self._requests.gather
        return gather([ticket_id(each) for each in tickets], reply)


class AsyncWithReplies(AsyncFace[Any]):
    """The requests of a coroutine and their replies; see ``WithReplies``."""

    request = awaitable(WithReplies.request)
    ask = awaitable(WithReplies.ask)
    result = awaitable(WithReplies.result)

    @overload
    async def gather(
        self,
        tickets: Sequence[Ticket | str],
        *,
        reply: TypeForm[T],
        return_exceptions: Literal[False] = False,
    ) -> list[T]: ...

    @overload
    async def gather(
        self,
        tickets: Sequence[Ticket | str],
        *,
        reply: TypeForm[T],
        return_exceptions: bool,
    ) -> list[T | OncewardError]: ...

    async def gather(
        self,
        tickets: Sequence[Ticket | str],
        *,
        reply: TypeForm[T],
        return_exceptions: bool = False,
    ) -> list[Any]:
        """Return the replies to tickets of ``request``; see ``Context.gather``."""
        named = {"reply": reply, "return_exceptions": return_exceptions}
        found: list[Any] = await _gather(self, tickets, **named)
        return found


_gather: Any = awaitable(WithReplies.gather)
