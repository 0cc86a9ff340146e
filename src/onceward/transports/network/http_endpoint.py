"""
Accept parcels over HTTP, as an ASGI app that a listener or a web framework serves.

The head of a request is verified before its body is read: its sender has a key here, signed it for
this agent and verb, within the window, and its nonce is new. Only then does it take a slot, and
bytes and time are bounded while it is read. Nothing is decoded before a second signature has
verified the whole body. Requests with an unverified head get identical answers.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from http import HTTPStatus
from threading import Condition, Lock
from typing import Final, Literal, NamedTuple, Protocol, TypeVar

from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from onceward.core.deliver.transport import Accept, TransportContext
from onceward.errors import (
    InvalidParcel,
    NoKey,
    OncewardError,
    Refused,
    StoreClosed,
    StoreError,
    Unreachable,
    UnsafeKey,
)
from onceward.message import wire
from onceward.message.clock import Clock
from onceward.message.log import log
from onceward.message.parcel import Parcel
from onceward.message.times import Span, seconds
from onceward.message.wire import NOTICE_MAX, Notice, NoticeKind, decode_notice, encode_notice
from onceward.transports.network.http_denials import Denials
from onceward.transports.network.http_signing import WINDOW, Signed, signed_headers
from onceward.transports.network.keys import Keys, fingerprint
from onceward.transports.network.poll import HOLD, Place, desks
from onceward.transports.network.poll_marks import Mark, write_mark

NOT_TAKEN: Final = b"not taken\n"
"""Body of every answer to a request that was not verified, or is for another agent."""
DRAINED: Final = 4
"""A body of up to this many times the limit is read and dropped, to answer its sender."""
NONCES_MAX: Final = 10_000
"""Maximum remembered nonces of one sender; above that only its stream detects repetitions."""
AGAIN: Final = {"retry-after": "1"}
CONNECTION: Final = "onceward.connection"
"""Key of a request's state under which our server stores its connection."""
Verb = Literal["parcels", "ping", "collect"]
MEDIA: Final[dict[Verb, str]] = {
    "parcels": wire.CONTENT_TYPE,
    "ping": wire.ANSWER_TYPE,
    "collect": wire.ANSWER_TYPE,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpLimits:
    """The limits of an endpoint's concurrent work and of a listener's connections."""

    parcel_bytes: int = 8 << 20
    """Maximum body of a parcel; a larger one gets a signed answer with this limit."""
    bytes_in_flight: int = 64 << 20
    """Maximum bytes of all bodies that are being read or accepted."""
    body_timeout: Span = 30.0
    """Maximum time for a body to arrive."""
    threads: int = 8
    """Threads that verify and accept."""
    connections: int | None = None
    """
    Maximum connections of an ``HttpListener``, without those that hold a poll.

    Default: a quarter of the files that the process may open, 4,096 at most. Another server limits
    its own connections.
    """
    questions: int | None = None
    """Maximum polls that it holds; default: a quarter of the files, at most 8,192."""
    connections_of_an_address: int | None = None
    """Maximum unverified connections from one address; default: half."""
    header_timeout: Span = 10.0
    """Maximum time for a head to arrive at an ``HttpListener``."""

    def __post_init__(self) -> None:
        """Refuse invalid durations."""
        for name in ("body_timeout", "header_timeout"):
            seconds(name, getattr(self, name))


class _Denied(Exception):
    """A refused request, with its answer."""

    def __init__(
        self, status: int, body: bytes = NOT_TAKEN, headers: dict[str, str] | None = None
    ) -> None:
        super().__init__(status)
        self.status, self.body, self.headers = status, body, headers or {}


class Taken(NamedTuple):
    """The signed part of an answer."""

    status: int
    body: bytes


class Nonces:
    """The nonces of verified requests, as long as their time is within the window."""

    def __init__(self) -> None:
        self._seen: dict[str, OrderedDict[str, int]] = {}
        self._lock = Lock()

    def add(self, signed: Signed, now: float) -> bool:
        """Remember a verified nonce; return whether it is new."""
        with self._lock:
            seen = self._seen.setdefault(signed.sender, OrderedDict())
            if signed.nonce in seen:
                return False
            seen[signed.nonce] = signed.timestamp
            while seen and (len(seen) > NONCES_MAX or _is_over(seen, now)):
                seen.popitem(last=False)
            return True


def _is_over(seen: OrderedDict[str, int], now: float) -> bool:
    return next(iter(seen.values())) < now - WINDOW


@dataclass(slots=True, eq=False)
class Served:
    """A served agent: its function, its home's keys, its clock."""

    name: str
    accept: Accept
    keys: Keys
    clock: Clock
    denials: Denials
    heard: Callable[[str], None]
    users: int = 0
    closed: bool = False
    nonces: Nonces = field(default_factory=Nonces)
    changed: Condition = field(default_factory=Condition)

    def __enter__(self) -> None:
        """Begin a call of ``accept``; raise StoreClosed once it was closed."""
        with self.changed:
            if self.closed:
                msg = f"{self.name} is no longer served"
                raise StoreClosed(msg)
            self.users += 1

    def __exit__(self, *_: object) -> None:
        """End a call of ``accept``."""
        with self.changed:
            self.users -= 1
            self.changed.notify_all()

    def close(self) -> None:
        """Stop accepting, and wait for running calls."""
        with self.changed:
            self.closed = True
            self.changed.wait_for(lambda: not self.users)


Take = Callable[[Served, Signed, bytes], Taken]
"""Accepts a verified body; runs on a thread."""
_Answered = Callable[[Served, Signed, "_Body"], Awaitable[Response]]
T = TypeVar("T")


class HttpEndpoint:
    """
    The agents of this process that accept parcels over HTTP; ``app`` is the ASGI app.

    Give it to each postbox as a listener: ``Postbox(..., listeners=[endpoint])``, and mount
    ``endpoint.app`` in your own app; peers register the url of that mount.
    """

    def __init__(self, limits: HttpLimits | None = None) -> None:
        self.limits = limits or HttpLimits()
        self._agents: dict[str, list[Served]] = {}
        self._pool = ThreadPoolExecutor(self.limits.threads, "onceward-http-in")
        self._in_flight = 0
        self._slots = set[_Slot]()
        self._denials = Denials()
        self.full: Callable[[], bool] = lambda: False
        """Whether the server in front accepts no more connections."""
        self.app = Starlette(
            routes=[
                Route("/v1/agents/{name}/parcels", self._parcels, methods=["POST"]),
                Route("/v1/agents/{name}/ping", self._ping, methods=["POST"]),
                Route("/v1/agents/{name}/collect", self._collect, methods=["POST"]),
                Route("/healthz", self._healthz, methods=["GET"]),
            ]
        )
        # a redirect would send the caller to any host in its request
        self.app.router.redirect_slashes = False
        """The app: ``/v1/agents/NAME/parcels``, ``…/ping``, ``…/collect``, ``/healthz``."""

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

    # -- requests ---------------------------------------------------------------------------

    async def _parcels(self, request: Request) -> Response:
        take = partial(self._taken, _take_parcel)
        return await self._answer(request, "parcels", take, self.limits.parcel_bytes)

    async def _ping(self, request: Request) -> Response:
        return await self._answer(request, "ping", partial(self._taken, _take_ping), NOTICE_MAX)

    async def _collect(self, request: Request) -> Response:
        hold = partial(self._collected, request)
        return await self._answer(request, "collect", hold, self.limits.parcel_bytes)

    async def _answer(
        self, request: Request, verb: Verb, answer: _Answered, limit: int
    ) -> Response:
        """Answer a request whose head is verified, or say why it is denied."""
        try:
            served, signed = self._look(request, verb)
            slot = _slot(request, served, signed, verb)
            body = await self._body(request, slot, served, signed, limit)
            return await answer(served, signed, body)
        except _Denied as denied:
            headers = denied.headers | {"connection": "close"}
            return Response(denied.body, denied.status, headers)
        except ClientDisconnect:
            return Response(status_code=HTTPStatus.BAD_REQUEST)

    def _look(self, request: Request, verb: Verb) -> tuple[Served, Signed]:
        """Verify the head of a request before reading its body."""
        signed, name = Signed.read(request.headers), request.path_params["name"]
        if signed is None:
            raise _Denied(HTTPStatus.UNAUTHORIZED)
        there = self._agents.get(name)
        if not there:
            why = "no such agent is served here"
            self._denials.tell(why, agent=name, peer=signed.sender, known=False)
            raise _Denied(HTTPStatus.UNAUTHORIZED)
        served = there[-1]
        _prove_head(served, signed, verb)
        if (connection := _connection(request)) is not None:
            connection.proved()
        inflated = request.headers.get("content-encoding", "identity") != "identity"
        if inflated or request.headers.get("content-type") != MEDIA[verb]:
            raise _Denied(HTTPStatus.UNSUPPORTED_MEDIA_TYPE)
        return served, signed

    async def _body(
        self, request: Request, slot: _Slot, served: Served, signed: Signed, limit: int
    ) -> _Body:
        """Read a body within all limits; a peer sends one per verb at a time."""
        if slot in self._slots:
            raise _Denied(HTTPStatus.TOO_MANY_REQUESTS, headers=AGAIN)
        body = _Body(self, slot)
        self._slots.add(slot)
        try:
            async with asyncio.timeout(seconds("body_timeout", self.limits.body_timeout)):
                await self._read(request, body, limit)
        except BaseException as error:
            body.release()
            if isinstance(error, TimeoutError):
                raise _Denied(HTTPStatus.REQUEST_TIMEOUT) from error
            if isinstance(error, _Larger):
                raise _too_large(served, signed, limit) from error
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

    async def _taken(self, take: Take, served: Served, signed: Signed, body: _Body) -> Response:
        """Verify and accept on a thread; sign the answer."""
        taken, headers = await self._on_thread(body, partial(_taken, served, signed, take))
        return Response(taken.body, taken.status, headers, wire.ANSWER_TYPE)

    async def _collected(
        self, request: Request, served: Served, signed: Signed, body: _Body
    ) -> Response:
        """Hold the poll of a peer until a parcel waits for it, and answer with that."""
        place, seconds = await self._on_thread(body, partial(_asked, served, signed))
        parcel = await _held(request, place, seconds)
        loop = asyncio.get_running_loop()
        told, headers = await loop.run_in_executor(self._pool, _handed, served, signed, parcel)
        return Response(told, HTTPStatus.OK, headers)

    async def _on_thread(self, body: _Body, work: Callable[[bytes], T]) -> T:
        """Work on a body on a thread, also if the caller leaves; then release it."""
        loop = asyncio.get_running_loop()
        working = loop.run_in_executor(self._pool, work, bytes(body.text))
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


def _slot(request: Request, served: Served, signed: Signed, verb: Verb) -> _Slot:
    return _Slot(signed.sender, served.name, verb, request.client.host if request.client else "")


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
            raise _Denied(HTTPStatus.SERVICE_UNAVAILABLE, headers=AGAIN)
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
        keys, denials = Keys(self._context.folder), self._endpoint._denials
        served = Served(name, accept, keys, self._context.clock, denials, self._context.heard)
        self._served.append(served)
        self._endpoint.add(served)

    def close(self) -> None:
        """Stop accepting; wait for running calls. Safe to call twice."""
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


async def _held(request: Request, place: Place, seconds: float) -> Parcel | None:
    """Return a parcel that waits now or within *seconds*; raise _Denied."""
    loop, woken = asyncio.get_running_loop(), asyncio.Event()
    connection = _connection(request)
    if connection is not None and not connection.hold(woken.set):
        raise _Denied(HTTPStatus.SERVICE_UNAVAILABLE, headers=AGAIN)

    def wake() -> None:
        loop.call_soon_threadsafe(woken.set)

    parcel = place.hold(wake)
    if parcel is None:
        ends = {asyncio.ensure_future(each) for each in (woken.wait(), request.receive())}
        await asyncio.wait(ends, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        for each in ends:
            each.cancel()
        parcel = place.let_go(wake)
    return parcel


# -- on a thread -----------------------------------------------------------------------------------


def _asked(served: Served, signed: Signed, body: bytes) -> tuple[Place, float]:
    """Verify a poll, settle its answer, and return where to hold it."""
    _prove(served, signed, body)
    question, _, answer = body.partition(b"\n")
    try:
        notice = decode_notice(question)
    except InvalidParcel as error:
        raise _Denied(HTTPStatus.UNPROCESSABLE_ENTITY) from error
    _check_names(served, signed, notice.sender, notice.recipient)
    if notice.kind != "collect":
        raise _Denied(HTTPStatus.UNPROCESSABLE_ENTITY)
    home, now = served.keys.folder.parent, served.clock.now()
    write_mark(home, served.name, signed.sender, Mark(now, notice.at - now))
    place = desks.place(home, served.name, signed.sender)
    if place.ask(answer):
        with suppress(OncewardError):  # its parcels then wait as long as before
            served.heard(signed.sender)
    return place, min(notice.limit / 1000, HOLD)


def _handed(served: Served, signed: Signed, parcel: Parcel | None) -> tuple[bytes, dict[str, str]]:
    """Return the answer to a poll, and its signing headers."""
    now = served.clock.now() // 1000
    body = _notice(served, signed, "nothing") if parcel is None else wire.encode_parcel(parcel)
    secrets = _secrets(served, signed)
    return body, signed_headers(secrets, served.name, signed.nonce, now, body)


def _prove_head(served: Served, signed: Signed, verb: Verb) -> None:
    """Raise _Denied unless a peer with a key here signed the head recently, with a new nonce."""
    secrets = _secrets(served, signed)
    if not signed.proves_head(secrets, served.name, verb):
        raise _not_signed(served, signed, secrets)
    off = served.clock.now() // 1000 - signed.timestamp
    if abs(off) > WINDOW:
        raise _unknown(
            served, signed, "clock: the signature is outside the time window", f" by {off} s"
        )
    if not served.nonces.add(signed, served.clock.now() // 1000):
        raise _unknown(served, signed, "it is a repetition")


def _prove(served: Served, signed: Signed, body: bytes) -> tuple[bytes, ...]:
    """Return the secrets of the pair; raise _Denied if the body is not verified."""
    secrets = _secrets(served, signed)
    if not signed.proves(secrets, body):
        raise _not_signed(served, signed, secrets)
    return secrets


def _not_signed(served: Served, signed: Signed, secrets: tuple[bytes, ...]) -> _Denied:
    ours = " or ".join(map(fingerprint, secrets))
    why = "key: it is not signed with the key that is here"
    return _unknown(served, signed, why, f", {ours}: compare onceward keys ls")


def _secrets(served: Served, signed: Signed) -> tuple[bytes, ...]:
    """Return the secrets of the pair; raise _Denied if there is no usable one."""
    try:
        return served.keys.secrets(signed.sender)
    except UnsafeKey as error:
        raise _unknown(served, signed, str(error)) from error
    except NoKey as error:
        why, cure = "name or key: there is no key for it", f": onceward keys add {signed.sender}"
        served.denials.tell(why, agent=served.name, peer=signed.sender, known=False, cure=cure)
        raise _Denied(HTTPStatus.UNAUTHORIZED) from error


def _unknown(served: Served, signed: Signed, why: str, more: str = "") -> _Denied:
    """Log why a peer with a key here is refused; return the answer."""
    served.denials.tell(why, agent=served.name, peer=signed.sender, known=True, cure=more)
    return _Denied(HTTPStatus.UNAUTHORIZED)


def _taken(served: Served, signed: Signed, take: Take, body: bytes) -> tuple[Taken, dict[str, str]]:
    """Verify a body, accept it and sign the answer; raise _Denied if it is not verified."""
    now = served.clock.now() // 1000
    secrets = _prove(served, signed, body)
    try:
        taken = take(served, signed, body)
    except (InvalidParcel, Unreachable) as error:
        raise _Denied(HTTPStatus.UNPROCESSABLE_ENTITY) from error
    except StoreError as error:
        log.failure("warning", "parcel not accepted", error, agent=served.name, peer=signed.sender)
        raise _Denied(HTTPStatus.SERVICE_UNAVAILABLE, headers=AGAIN) from error
    return taken, signed_headers(secrets, served.name, signed.nonce, now, taken.body)


def _take_parcel(served: Served, signed: Signed, body: bytes) -> Taken:
    parcel = wire.decode_parcel(body)
    _check_names(served, signed, parcel.sender, parcel.recipient)
    try:
        with served:
            answer = served.accept(parcel)
    except Refused as error:
        return Taken(HTTPStatus.GONE, _notice(served, signed, "refused", detail=str(error)))
    return Taken(HTTPStatus.OK, wire.encode_answer(answer, parcel))


def _take_ping(served: Served, signed: Signed, body: bytes) -> Taken:
    notice = decode_notice(body)
    _check_names(served, signed, notice.sender, notice.recipient)
    if notice.kind != "ping":
        raise _Denied(HTTPStatus.UNPROCESSABLE_ENTITY)
    return Taken(HTTPStatus.OK, _notice(served, signed, "pong"))


def _check_names(served: Served, signed: Signed, sender: str, recipient: str) -> None:
    """Compare the names in the body with the header that selected the secret, and with the url."""
    if sender != signed.sender:
        raise _unknown(served, signed, "name: its body has a different one")
    if recipient != served.name:
        raise _Denied(HTTPStatus.MISDIRECTED_REQUEST)


def _notice(
    served: Served, signed: Signed, kind: NoticeKind, *, limit: int = 0, detail: str = ""
) -> bytes:
    return encode_notice(
        Notice(
            kind=kind,
            sender=served.name,
            recipient=signed.sender,
            at=served.clock.now(),
            limit=limit,
            detail=detail,
        )
    )


def _too_large(served: Served, signed: Signed, limit: int) -> _Denied:
    """Return the signed answer to an unread body, based only on its size."""
    body = _notice(served, signed, "too_large", limit=limit, detail=f"at most {limit} bytes")
    secrets = _secrets(served, signed)
    now = served.clock.now() // 1000
    headers = signed_headers(secrets, served.name, signed.nonce, now, body)
    return _Denied(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, body, headers)
