"""
Accept parcels over HTTP, as an ASGI app that a listener or a web framework serves.

The head of a request is verified before its body is read: its sender has a key here, signed it for
this agent and verb, within the window, and its nonce is new. Only then does it take a slot, and
bytes and time are bounded while it is read. Nothing is decoded before a second signature has
verified the whole body. Requests with an unverified head get identical answers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import Final, Literal, NamedTuple, Protocol, TypeVar

from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from onceward.core.deliver.transport import Accept, TransportContext
from onceward.errors import (
    InvalidParcel,
    MissingExtra,
    OncewardError,
    Refused,
    StoreError,
    UnknownKey,
    Unreachable,
    UnsupportedVersion,
)
from onceward.message import wire
from onceward.message.log import log
from onceward.message.parcel import Parcel
from onceward.message.times import Span, seconds
from onceward.message.wire import NOTICE_MAX
from onceward.transports.network.home_desk import (
    HomeDesk,
    Question,
    decode_question,
    encode_parcels,
)
from onceward.transports.network.homes import LIST_MAX, OF_HOME, HomeKeys
from onceward.transports.network.http import HttpTransport
from onceward.transports.network.http_caller import Caller, Denied, Nonces, Served
from onceward.transports.network.http_denials import Denials, NotServed
from onceward.transports.network.http_signing import Signed
from onceward.transports.network.http_telling import end_telling, tell_all
from onceward.transports.network.identity import encoded
from onceward.transports.network.keys import Keys
from onceward.transports.network.poll import Place, desks
from onceward.transports.network.poll_answers import HOLD
from onceward.transports.network.poll_marks import OF_HOMES, Mark, write_mark

DRAINED: Final = 4
"""A body of up to this many times the limit is read and dropped, to answer its sender."""
AGAIN: Final = {"retry-after": "1"}
CONNECTION: Final = "onceward.connection"
"""Key of a request's state under which our server stores its connection."""
Verb = Literal["parcels", "ping", "collect", "agents"]
MEDIA: Final[dict[Verb, str]] = {
    "parcels": wire.CONTENT_TYPE,
    "ping": wire.ANSWER_TYPE,
    "collect": wire.ANSWER_TYPE,
    "agents": "application/json",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpLimits:
    """The limits of an endpoint's concurrent work and of a listener's connections."""

    parcel_bytes: int = 8 << 20
    """Maximum body of a parcel; a larger one gets a signed answer with this limit."""
    bytes_in_flight: int = 64 << 20
    """Maximum bytes of all bodies that are being read or accepted."""
    body_timeout: Span = 30.0
    """Maximum time for a body to arrive; at an ``HttpListener`` also for a client to read on."""
    threads: int = 8
    """Threads that verify and accept."""
    connections: int | None = None
    """
    Maximum connections of an ``HttpListener``.

    Default: half of the files that the process may open, 12,288 at most. Another server limits
    its own connections.
    """
    questions: int | None = None
    """Maximum connections of these that hold a poll; default: two thirds."""
    connections_of_an_address: int | None = None
    """Maximum unverified connections from one address; default: three quarters."""
    header_timeout: Span = 10.0
    """Maximum time for a head to arrive at an ``HttpListener``."""

    def __post_init__(self) -> None:
        """Refuse invalid durations."""
        for name in ("body_timeout", "header_timeout"):
            seconds(name, getattr(self, name))


T = TypeVar("T")
_Take = Callable[[Caller, bytes], T]
"""Takes a verified body; runs on a thread."""
_Answered = Callable[[Caller, "_Body"], Awaitable[Response]]


class HttpEndpoint:
    """
    The agents of this process that accept parcels over HTTP; ``app`` is the ASGI app.

    Give it to each postbox as a listener: ``Postbox(..., listeners=[endpoint])``, and mount
    ``endpoint.app`` in your own app; peers register the url of that mount.
    """

    def __init__(self, limits: HttpLimits | None = None) -> None:
        self.limits = limits or HttpLimits()
        self._agents: dict[str, list[Served]] = {}
        self._homes: dict[Path, HomeKeys] = {}
        self._pool = ThreadPoolExecutor(self.limits.threads, "onceward-http-in")
        self._in_flight = 0
        self._slots = set[_Slot]()
        self._denials, self._not_served = Denials(), NotServed()
        self._home_nonces = Nonces()
        self.full: Callable[[], bool] = lambda: False
        """Whether the server in front accepts no more connections."""
        self.app = Starlette(
            routes=[
                Route("/v1/agents/{name}/parcels", self._parcels, methods=["POST"]),
                Route("/v1/agents/{name}/ping", self._ping, methods=["POST"]),
                Route("/v1/agents/{name}/collect", self._collect, methods=["POST"]),
                Route("/v1/home", self._home, methods=["GET"]),
                Route("/v1/home/agents", self._told_agents, methods=["POST"]),
                Route("/v1/home/collect", self._collect_of_home, methods=["POST"]),
                Route("/healthz", self._healthz, methods=["GET"]),
            ]
        )
        # a redirect would send the caller to any host in its request
        self.app.router.redirect_slashes = False
        """The app: ``/v1/agents/NAME/parcels``, ``…/ping``, ``…/collect``, ``/v1/home``, …"""

    def __call__(self, context: TransportContext) -> Binding:
        """Return the listener of one postbox."""
        return Binding(self, context)

    def add(self, served: Served) -> None:
        """Serve an agent, before older ones of its name."""
        self._agents.setdefault(served.name, []).append(served)
        desks.serve(served.keys.folder.parent, served.name, 1)

    def remove(self, served: Served) -> None:
        """Stop serving an agent; wait for its running calls."""
        left = [each for each in self._agents.get(served.name, ()) if each is not served]
        self._agents[served.name] = left
        desks.serve(served.keys.folder.parent, served.name, -1)
        desks.give_up(served.keys.folder.parent, served.name)
        served.close()
        if not any(each.homes is served.homes for some in self._agents.values() for each in some):
            self._homes.pop(served.homes.folder, None)
            served.homes.close()

    def homes(self, context: TransportContext) -> HomeKeys:
        """Return the keys of an agent's home, which its agents share here."""
        made = HomeKeys(context.folder, settings=context.settings, clock=context.clock)
        return self._homes.setdefault(context.folder, made)

    # -- requests ---------------------------------------------------------------------------

    async def _parcels(self, request: Request) -> Response:
        take = partial(self._on_thread, _take_parcel)
        return await self._answer(request, "parcels", take, self.limits.parcel_bytes)

    async def _ping(self, request: Request) -> Response:
        take = partial(self._on_thread, _take_ping)
        return await self._answer(request, "ping", take, NOTICE_MAX)

    async def _collect(self, request: Request) -> Response:
        hold = partial(self._collected, request)
        return await self._answer(request, "collect", hold, self.limits.parcel_bytes)

    async def _told_agents(self, request: Request) -> Response:
        take = partial(self._on_thread, _take_agents)
        return await self._answer(request, "agents", take, LIST_MAX)

    async def _collect_of_home(self, request: Request) -> Response:
        hold = partial(self._collected_of_home, request)
        return await self._answer(request, "collect", hold, self.limits.parcel_bytes)

    async def _home(self, _: Request) -> Response:
        """Tell the public keys of the homes that are served, which name no agent."""
        told = list[dict[str, str]]()
        for each in [*self._homes.values()]:
            with suppress(UnknownKey, MissingExtra):
                if (own := each.identity.load()) is not None:
                    told.append({"key": encoded(own.public), "former": own.chain()})
        return JSONResponse({"homes": told})

    async def _answer(
        self, request: Request, verb: Verb, answer: _Answered, limit: int
    ) -> Response:
        """Answer a request whose head is verified, or say why it is denied."""
        try:
            caller = await self._look(request, verb)
            body = await self._body(request, caller, verb, limit)
            return await answer(caller, body)
        except Denied as denied:
            denied.answer.headers["connection"] = "close"
            return denied.answer
        except ClientDisconnect:
            return Response(status_code=HTTPStatus.BAD_REQUEST)

    async def _look(self, request: Request, verb: Verb) -> Caller:
        """Verify the head of a request before reading its body."""
        signed, name = Signed.read(request.headers), request.path_params.get("name")
        if signed is None:
            raise Denied(HTTPStatus.UNAUTHORIZED)
        there = self._of_home(signed) if name is None else self._agents.get(name)
        served = there[-1] if there else self._stand_in(name or OF_HOME)
        caller = Caller(served, signed, of_home=name is None)
        if signed.claim is None:
            caller.prove_head(verb)
        else:  # it may read the directory, or write to it
            loop = asyncio.get_running_loop()
            await loop.run_in_executor(self._pool, _proved, caller, verb)
        if not there:
            raise caller.refused(why="")
        if (connection := _connection(request)) is not None:
            connection.proved()
        inflated = request.headers.get("content-encoding", "identity") != "identity"
        if inflated or request.headers.get("content-type") != MEDIA[verb]:
            raise Denied(HTTPStatus.UNSUPPORTED_MEDIA_TYPE)
        return caller

    def _of_home(self, signed: Signed) -> list[Served]:
        """Return what stands for the home that a request of another home is for."""
        claim = signed.claim
        for served in filter(None, self._agents.values()):
            with suppress(UnknownKey, MissingExtra):
                if claim is None or served[-1].homes.claimed(claim) is None:
                    continue
                return [replace(served[-1], name=OF_HOME, nonces=self._home_nonces)]
        return []

    def _stand_in(self, name: str) -> Served:
        """Return what verifies a request to an agent that is not served, by the same steps."""
        for served in filter(None, self._agents.values()):
            return replace(served[-1], name=name, denials=self._not_served)
        raise Denied(HTTPStatus.UNAUTHORIZED)

    async def _body(self, request: Request, caller: Caller, verb: Verb, limit: int) -> _Body:
        """Read a body within all limits; a peer sends one per verb and place at a time."""
        place = request.client.host if request.client else ""
        sender = caller.home.name if caller.home else caller.name
        slot = _Slot(sender, caller.served.name, verb, place)
        if slot in self._slots:
            raise Denied(HTTPStatus.TOO_MANY_REQUESTS, AGAIN)
        body = _Body(self, slot)
        self._slots.add(slot)
        try:
            async with asyncio.timeout(seconds("body_timeout", self.limits.body_timeout)):
                await self._read(request, body, limit)
        except BaseException as error:
            body.release()
            if isinstance(error, TimeoutError):
                raise Denied(HTTPStatus.REQUEST_TIMEOUT) from error
            if isinstance(error, _Larger):
                raise _too_large(caller, limit) from error
            raise
        return body

    async def _read(self, request: Request, body: _Body, limit: int) -> None:
        declared = request.headers.get("content-length", "")
        length = int(declared[:18]) if declared.isascii() and declared.isdigit() else 0
        if length > limit * DRAINED:
            raise _Larger
        if length <= limit:
            body.reserve(length)
        size = 0
        async for part in request.stream():
            size += len(part)
            if size > limit * DRAINED:
                break
            if max(size, length) <= limit:
                body.text += part
                body.reserve(size)
            else:
                body.text.clear()
        if max(size, length) > limit:
            raise _Larger

    async def _collected(self, request: Request, caller: Caller, body: _Body) -> Response:
        """Hold the poll of a peer until a parcel waits for it, and answer with that."""
        place, seconds = await self._on_thread(_asked, caller, body)
        parcel = await _held(request, place.hold, place.let_go, seconds)
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._pool, _handed, caller, parcel)

    async def _collected_of_home(self, request: Request, caller: Caller, body: _Body) -> Response:
        """Hold the poll of a home until parcels for its agents wait, and answer with these."""
        desk, question = await self._on_thread(self._asked_of_home, caller, body)
        seconds = min(question.hold / 1000, HOLD)
        hold, let_go = partial(desk.hold, question), partial(desk.let_go, question)
        parcels = await _held(request, hold, let_go, seconds)
        loop = asyncio.get_running_loop()
        answer = partial(caller.answer, encode_parcels(parcels or ()))
        return await loop.run_in_executor(self._pool, answer)

    def _asked_of_home(self, caller: Caller, body: bytes) -> tuple[HomeDesk, Question]:
        """Settle the answers in a poll of a home, and return where to hold it."""
        first, _, rest = body.partition(b"\n")
        notice, served, home = caller.notice(first, "collect"), caller.served, caller.home
        question, answers = decode_question(rest)
        folder, now = served.homes.folder, served.clock.now()
        if home is None:
            raise Denied(HTTPStatus.UNAUTHORIZED)
        desk = desks.home(folder, home.name)
        for name in question.agents:
            desk.spoken.hear(name, notice.speaks)
        write_mark(folder, OF_HOMES, home.name, Mark(now, notice.at - now))
        for name in desk.ask(question, answers):
            self._heard(served.homes, name)
        return desk, question

    def _heard(self, homes: HomeKeys, peer: str) -> None:
        """End the backoff of an agent that is back, in the file of each agent of a home."""
        for some in [*self._agents.values()]:
            for served in some:
                if served.homes is homes:
                    with suppress(OncewardError):  # its parcels then wait as long as before
                        served.heard(peer)

    async def _on_thread(self, take: _Take[T], caller: Caller, body: _Body) -> T:
        """Verify and take a body on a thread, also if the caller leaves; then release it."""
        loop = asyncio.get_running_loop()
        working = loop.run_in_executor(self._pool, _taken, take, caller, bytes(body.text))
        working.add_done_callback(lambda _: body.release())
        return await asyncio.shield(working)

    async def _healthz(self, _: Request) -> Response:
        return JSONResponse({"status": "full" if self.full() else "ok"})

    def close(self) -> None:
        """Stop the threads."""
        self._pool.shutdown()


class _Slot(NamedTuple):
    """One request is read at a time for each of these."""

    sender: str
    agent: str
    verb: Verb
    place: str


class _Larger(Exception):
    """A body is too large to read."""


class _Body:
    """A body that is being read, with its slot and its bytes of the budget."""

    def __init__(self, endpoint: HttpEndpoint, slot: _Slot) -> None:
        self._endpoint, self._slot = endpoint, slot
        self.text, self._reserved = bytearray(), 0

    def reserve(self, length: int) -> None:
        """Raise its bytes of the budget to *length*; raise an error if the budget is spent."""
        more = length - self._reserved
        if more <= 0:
            return
        if self._endpoint._in_flight + more > self._endpoint.limits.bytes_in_flight:
            raise Denied(HTTPStatus.SERVICE_UNAVAILABLE, AGAIN)
        self._endpoint._in_flight += more
        self._reserved = length

    def release(self) -> None:
        """Release the slot and the bytes."""
        self._endpoint._slots.discard(self._slot)
        self._endpoint._in_flight -= self._reserved
        self._reserved = 0


class Binding:
    """The listener of one postbox at an endpoint."""

    def __init__(self, endpoint: HttpEndpoint, context: TransportContext) -> None:
        self._endpoint, self._context = endpoint, context
        self._served: list[Served] = []

    def listen(self, name: str, accept: Accept) -> None:
        """Pass parcels for *name* to *accept*."""
        context, endpoint = self._context, self._endpoint
        served = Served(
            name=name,
            accept=accept,
            keys=Keys(context.folder),
            homes=endpoint.homes(context),
            clock=context.clock,
            denials=endpoint._denials,
            heard=context.heard,
        )
        self._served.append(served)
        endpoint.add(served)
        tell_all(context, HttpTransport)

    def close(self) -> None:
        """Stop accepting; wait for running calls. Safe to call twice."""
        end_telling(self._context)
        while self._served:
            self._endpoint.remove(self._served.pop())


class _Counted(Protocol):
    """A connection that our server counts."""

    def proved(self) -> None: ...
    def hold(self, release: Callable[[], object]) -> bool: ...


def _connection(request: Request) -> _Counted | None:
    """Return the connection of a request; None if another server has it."""
    found: _Counted | None = request.scope.get("state", {}).get(CONNECTION)
    return found


async def _held(
    request: Request,
    hold: Callable[[Callable[[], object]], T],
    let_go: Callable[[Callable[[], object]], T],
    seconds: float,
) -> T:
    """Return what waits now or within *seconds*; raise Denied."""
    loop, woken = asyncio.get_running_loop(), asyncio.Event()
    connection = _connection(request)
    if connection is not None and not connection.hold(woken.set):
        raise Denied(HTTPStatus.SERVICE_UNAVAILABLE, AGAIN)

    def wake() -> None:
        loop.call_soon_threadsafe(woken.set)

    found = hold(wake)
    if not found:
        ends = {asyncio.ensure_future(each) for each in (woken.wait(), request.receive())}
        try:
            await asyncio.wait(ends, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        finally:  # also if the server ends it: a poll that is gone would keep others from parcels
            for each in ends:
                each.cancel()
            found = let_go(wake)
    return found


# -- on a thread -----------------------------------------------------------------------------------


def _proved(caller: Caller, verb: Verb) -> None:
    """Verify the head of a request that a home signed; raise Denied."""
    try:
        caller.prove_head(verb)
    except StoreError as error:
        agent = caller.served.name
        log.failure("warning", "directory not read", error, agent=agent, peer=caller.name)
        raise Denied(HTTPStatus.SERVICE_UNAVAILABLE, AGAIN) from error


def _taken(take: _Take[T], caller: Caller, body: bytes) -> T:
    """Verify and take a body; raise Denied if it is not verified, not valid or not stored."""
    caller.prove(body)
    try:
        return take(caller, body)
    except UnsupportedVersion as error:
        status = HTTPStatus.UNPROCESSABLE_ENTITY
        raise Denied(status, answer=caller.tell("unread", status, detail=str(error))) from error
    except (InvalidParcel, Unreachable) as error:
        raise Denied(HTTPStatus.UNPROCESSABLE_ENTITY) from error
    except StoreError as error:
        agent = caller.served.name
        log.failure("warning", "parcel not accepted", error, agent=agent, peer=caller.name)
        raise Denied(HTTPStatus.SERVICE_UNAVAILABLE, AGAIN) from error


def _take_parcel(caller: Caller, body: bytes) -> Response:
    parcel = wire.decode_parcel(body)
    caller.check_names(parcel)
    try:
        with caller.served:
            answer = caller.served.accept(parcel)
    except Refused as error:
        return caller.tell("refused", HTTPStatus.GONE, detail=str(error))
    return caller.answer(wire.encode_answer(answer, parcel))


def _take_agents(caller: Caller, body: bytes) -> Response:
    """Store the agents of another home, and answer with those of this one."""
    homes = caller.served.homes
    if caller.home is None or not homes.told(caller.home, body):
        raise caller.refused("key: its home was removed or rotated in between")
    return caller.answer(homes.own_agents())


def _take_ping(caller: Caller, body: bytes) -> Response:
    caller.notice(body, "ping")
    return caller.tell("pong")


def _asked(caller: Caller, body: bytes) -> tuple[Place, float]:
    """Settle the answer in a poll, and return where to hold it, and for how long."""
    question, _, answer = body.partition(b"\n")
    notice, served = caller.notice(question, "collect"), caller.served
    home, now = served.keys.folder.parent, served.clock.now()
    place = desks.place(home, served.name, caller.name)
    place.spoken.hear(caller.name, notice.speaks)
    write_mark(home, served.name, caller.name, Mark(now, notice.at - now))
    if place.ask(answer):
        with suppress(OncewardError):  # its parcels then wait as long as before
            served.heard(caller.name)
    return place, min(notice.limit / 1000, HOLD)


def _handed(caller: Caller, parcel: Parcel | None) -> Response:
    """Return the answer to a poll."""
    return caller.tell("nothing") if parcel is None else caller.answer(wire.encode_parcel(parcel))


def _too_large(caller: Caller, limit: int) -> Denied:
    """Return the signed answer to an unread body, based only on its size."""
    status, detail = HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"at most {limit} bytes"
    return Denied(status, answer=caller.tell("too_large", status, limit=limit, detail=detail))
