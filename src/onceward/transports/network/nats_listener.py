"""Accept parcels from NATS JetStream: commit, store the answer, acknowledge."""

from __future__ import annotations

import asyncio
import json
from concurrent.futures import CancelledError, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from ssl import SSLContext
from typing import TYPE_CHECKING, Final

from onceward.core.deliver.transport import Accept, TransportContext
from onceward.core.run.event_loop import start_loop
from onceward.core.run.shared import Shared
from onceward.errors import (
    InvalidParcel,
    OncewardError,
    Refused,
    Unreachable,
    UnsupportedVersion,
)
from onceward.file import forks
from onceward.message.clock import Clock
from onceward.message.error_text import error_text, message_of
from onceward.message.log import Level, log
from onceward.message.parcel import Answer, Parcel
from onceward.message.wire import Notice, decode_parcel, encode_answer, encode_notice
from onceward.transports.network import nats_names as names
from onceward.transports.network.nats import (
    ANSWERED,
    BELL,
    OUTCOME,
    PARCEL,
    READY,
    REFUSED,
    UNABLE,
    UNREAD,
)
from onceward.transports.network.nats_link import Address, Credentials, Link, new_client
from onceward.transports.network.nats_ping import pong
from onceward.transports.network.nats_setup import NatsStream, streams_at

if TYPE_CHECKING:
    from nats.aio.msg import Msg

THREADS: Final = 8
"""Parcels that are accepted at the same time."""
PULL_FOR: Final = 30
"""Seconds after which a request for parcels is repeated."""
HEARTBEAT: Final = 5
"""Seconds after which a server without parcels sends a heartbeat."""
SILENT: Final = 3.0 * HEARTBEAT
ACK_WAIT: Final = 10
"""Seconds after which the parcel of a dead process is delivered again."""
STILL_AT_IT: Final = 4.0
"""Seconds after which the server is notified that a parcel is still being accepted."""
AGAIN_MAX: Final = 30
"""Maximum seconds until a parcel that the file could not accept comes again; 1 at first."""
PAUSES: Final = (0.2, 0.5, 1.0, 2.0)
"""Seconds before each new attempt to reach the server; the last is repeated."""
REASON_MAX: Final = 80
"""Characters of each reason in an answer that would be too large for the server."""
CLOSE_WITHIN: Final = 30.0
"""Seconds that ``close`` waits for parcels that are being accepted."""
STREAMS_WITHIN: Final = 3.0
"""Seconds in which ``streams`` returns; a scraper waits 10 s by default."""
CANCEL_AGAIN: Final = CLOSE_WITHIN + 5
"""Seconds after which ``close`` repeats the cancellation."""

PULL: Final = json.dumps(
    {
        "batch": THREADS,
        "expires": PULL_FOR * names.NANOSECONDS,
        "idle_heartbeat": HEARTBEAT * names.NANOSECONDS,
    }
).encode()
ACKS: Final = "$JS.ACK."
"""Prefix of the subject at which the server receives acknowledgements."""
DELIVERED: Final = 4
WITH_DOMAIN: Final = 11
"""Index of the delivery count in such a subject; with a domain, two more parts precede it."""
ACK: Final = b"+ACK"
NEVER: Final = b"+TERM"
GIVEN_BACK: Final = b"-NAK"
WORKING: Final = b"+WPI"


class NatsListener:
    """
    Accept parcels from ``nats://HOST:PORT``; pass it to postboxes as a listener.

    Each agent has its own connection, with the secret in its home. Any number of processes may
    listen for an agent: each parcel goes to one of them. If the server is unreachable, it is
    retried until the postbox closes. With a TLS context, a server that does not encrypt is refused.
    All postboxes of one listener share its threads.
    """

    def __init__(self, url: str, *, tls: SSLContext | None = None) -> None:
        self.url, self.servers, self._tls = url, Address.parse(url).servers, tls
        self.shared = Shared(_start, _stop)
        """The loop and the threads of all postboxes."""
        self.links: dict[Link, asyncio.AbstractEventLoop] = {}
        """Open connections of agents that may examine the streams, as far as is known."""

    def __call__(self, context: TransportContext) -> NatsBinding:
        """Return the listener of one postbox; raises InvalidArgument without the extra."""
        new_client()
        return NatsBinding(self, context, Credentials(context.folder, self._tls))

    def streams(self) -> list[NatsStream]:
        """
        Ask the server for its streams over the connection of an agent that may see them.

        Return none if there is no such connection, or no answer within 3 s. With users only a
        keeper may see them; another agent is refused once for each connection.
        """
        for link, loop in self.links.copy().items():
            asked = asyncio.run_coroutine_threadsafe(streams_at(link), loop)
            try:
                found = asked.result(STREAMS_WITHIN)
            except (TimeoutError, CancelledError):
                asked.cancel()
                return []
            if all(each.level != "hidden" for each in found):
                return found
            if any("permissions violation" in each.found.lower() for each in found):
                self.links.pop(link, None)
        return []


class NatsBinding:
    """The listener of one postbox."""

    def __init__(
        self, listener: NatsListener, context: TransportContext, credentials: Credentials
    ) -> None:
        self._listener, self._clock, self._credentials = listener, context.clock, credentials
        self._lock = forks.new_lock()
        self._agents: list[tuple[asyncio.AbstractEventLoop, asyncio.Task[None]]] = []

    def listen(self, name: str, accept: Accept) -> None:
        """Pass parcels for *name* to *accept*."""
        loop, pool = self._listener.shared.enter()
        inbox = _Inbox(name, accept, pool, self._clock)
        began = asyncio.run_coroutine_threadsafe(self._begin(inbox), loop)
        with self._lock:
            self._agents.append((loop, began.result()))

    def close(self) -> None:
        """Stop accepting; wait for parcels that are being accepted. Safe to call twice."""
        with self._lock:
            agents, self._agents = self._agents, []
        for loop, serving in agents:
            asyncio.run_coroutine_threadsafe(_ended(serving), loop).result()
            self._listener.shared.leave()

    async def _begin(self, inbox: _Inbox) -> asyncio.Task[None]:
        return asyncio.ensure_future(self._serve(inbox))

    async def _serve(self, inbox: _Inbox) -> None:
        """Accept parcels until cancelled, over one connection after another."""
        failures = 0
        while True:
            _raise_lost_cancellation()
            try:
                link = await Link.open(self._listener.servers, inbox.name, self._credentials)
                try:
                    await inbox.open(link)
                    _raise_lost_cancellation()
                    failures = 0
                    self._listener.links[link] = asyncio.get_running_loop()
                    await inbox.take_all(link)
                except asyncio.CancelledError:
                    await inbox.end(link)
                    raise
                finally:
                    self._listener.links.pop(link, None)
                    await link.close()
            except Unreachable as error:
                level: Level = "debug" if failures else "warning"
                log.failure(level, "listener waits for the server", error, agent=inbox.name)
            except Exception as error:  # noqa: BLE001 - a listener survives every error
                log.failure("error", "listener failed", error, agent=inbox.name)
            await asyncio.sleep(PAUSES[min(failures, len(PAUSES) - 1)])
            failures += 1


@dataclass(frozen=True, slots=True)
class _Reply:
    """The destination of the answer to one parcel."""

    link: Link
    subject: str
    content: str

    async def store(self, body: bytes, outcome: str) -> None:
        """Store an answer; raise Unreachable."""
        await self.link.store(self.subject, body, {PARCEL: self.content, OUTCOME: outcome})


class _Inbox:
    """The parcels of one agent over one connection after another."""

    def __init__(self, name: str, accept: Accept, pool: ThreadPoolExecutor, clock: Clock) -> None:
        self.name, self._accept, self._pool, self._clock = name, accept, pool, clock
        self._came: asyncio.Queue[Msg] = asyncio.Queue()
        self._under_way: set[asyncio.Task[None]] = set()

    async def open(self, link: Link) -> None:
        """Create the agent's consumer; another process may already have created it."""
        self._came = asyncio.Queue()
        config = {
            "name": names.consumer(self.name),
            "durable_name": names.consumer(self.name),
            "deliver_policy": "all",
            "ack_policy": "explicit",
            "ack_wait": ACK_WAIT * names.NANOSECONDS,
            "max_deliver": -1,
            "inactive_threshold": names.CONSUMER_KEPT_FOR,
        }
        await link.consume(names.PARCELS, names.subjects_to("parcel", self.name), config)
        self._inbox = link.new_inbox()
        await link.hear(self._inbox, self._came.put)
        await link.hear(
            names.subjects_to("ping", self.name), partial(pong, link, self.name, self._clock)
        )

    async def take_all(self, link: Link) -> None:
        """Accept parcels until the connection or the consumer is gone, then raise Unreachable."""
        subject = f"$JS.API.CONSUMER.MSG.NEXT.{names.PARCELS}.{names.consumer(self.name)}"
        while True:
            await link.put(subject, PULL, reply=self._inbox)
            left = THREADS
            while left:
                msg = await self._next(link)
                status = (msg.headers or {}).get("Status") if not msg.data else None
                if status is None:
                    left -= 1
                    await self._begin(link, msg)
                elif status in {"404", "408"}:
                    break  # no parcel came, or fewer than requested
                elif status != "100":
                    why = (msg.headers or {}).get("Description", status)
                    text = f"the server delivers no parcels: {why}"
                    raise Unreachable(text)

    async def end(self, link: Link) -> None:
        """Wait for parcels that are being accepted; return the others to the server."""
        while not self._came.empty():
            msg = self._came.get_nowait()
            if msg.reply.startswith(ACKS):
                await self._quietly(link, msg, GIVEN_BACK)
        if self._under_way:
            await asyncio.wait(self._under_way, timeout=CLOSE_WITHIN)

    async def _next(self, link: Link) -> Msg:
        coming = asyncio.ensure_future(self._came.get())
        ending = asyncio.ensure_future(link.broken.wait())
        try:
            await asyncio.wait(
                {coming, ending}, timeout=SILENT, return_when=asyncio.FIRST_COMPLETED
            )
            if coming.done():
                return coming.result()
        finally:
            coming.cancel()
            ending.cancel()
        text = "the connection to the server ended or became silent"
        raise Unreachable(text)

    async def _begin(self, link: Link, msg: Msg) -> None:
        """Handle a parcel concurrently, once a thread is free."""
        if len(self._under_way) >= THREADS:
            await asyncio.wait(self._under_way, return_when=asyncio.FIRST_COMPLETED)
        task = asyncio.ensure_future(self._handle(link, msg))
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)

    async def _handle(self, link: Link, msg: Msg) -> None:
        """Commit a parcel, store its answer and acknowledge it, in this order."""
        sender = names.publisher(msg.subject, names.subjects_to("parcel", self.name))
        if sender is None or not msg.reply.startswith(ACKS):
            return
        told = _Reply(link, names.subject("answer", sender, self.name), _content(msg))
        try:
            how = await self._answer(link, msg, told, sender)
        except Exception as error:  # noqa: BLE001 - the parcel comes again, others continue
            level: Level = "warning" if isinstance(error, OncewardError) else "error"
            log.failure(level, "parcel waits", error, agent=self.name, peer=sender)
            if not _hangs(error):
                with suppress(Unreachable):
                    await told.store(error_text(error).encode(), UNABLE)
            how = _again(msg)
        await self._quietly(link, msg, how)

    async def _answer(self, link: Link, msg: Msg, told: _Reply, sender: str) -> bytes:
        """Store the answer to one parcel; return how its message ends."""
        if told.content == BELL:
            await told.store(b"", READY)
            return ACK
        try:
            parcel = _parcel(msg, self.name, sender)
            answer = await self._accepted(link, msg, parcel)
        except Refused as error:
            await told.store(message_of(error).encode(), REFUSED)
            return ACK
        except UnsupportedVersion as error:
            unread = Notice(
                kind="unread", sender=self.name, recipient=sender, detail=message_of(error)
            )
            await told.store(encode_notice(unread), UNREAD)
            return ACK
        except (InvalidParcel, Unreachable) as error:  # these bytes will never become valid
            log.failure("warning", "parcel refused", error, agent=self.name, peer=sender)
            with suppress(Unreachable):  # they go also if we may not answer their sender
                await told.store(message_of(error).encode(), UNABLE)
            return NEVER
        await told.store(_fitting(answer, parcel, link.max_payload), ANSWERED)
        return ACK

    async def _accepted(self, link: Link, msg: Msg, parcel: Parcel) -> Answer:
        """Return the answer of the agent's file, reporting progress to the server meanwhile."""
        loop = asyncio.get_running_loop()
        accepting = loop.run_in_executor(self._pool, self._accept, parcel)
        while True:
            done, _ = await asyncio.wait({accepting}, timeout=STILL_AT_IT)
            if done:
                return accepting.result()
            await self._quietly(link, msg, WORKING)

    async def _quietly(self, link: Link, msg: Msg, how: bytes) -> None:
        """Acknowledge a message to the server; otherwise it comes again."""
        try:
            await link.put(msg.reply, how)
        except Unreachable:
            log.debug("a parcel will come again: the server is unreachable", agent=self.name)


def _start() -> tuple[asyncio.AbstractEventLoop, ThreadPoolExecutor]:
    loop = start_loop("onceward-nats-listener")
    return loop, ThreadPoolExecutor(THREADS, thread_name_prefix="onceward-accept")


def _stop(made: tuple[asyncio.AbstractEventLoop, ThreadPoolExecutor]) -> None:
    loop, pool = made
    loop.call_soon_threadsafe(loop.stop)
    pool.shutdown(wait=False)


def _raise_lost_cancellation() -> None:
    """Raise the CancelledError that Python 3.11's ``wait_for`` lost in a call of the client."""
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError


async def _ended(serving: asyncio.Task[None]) -> None:
    while not serving.done():
        serving.cancel()
        await asyncio.wait({serving}, timeout=CANCEL_AGAIN)


def _hangs(error: Exception) -> bool:
    """Return whether the server did not reply in time."""
    return isinstance(error, Unreachable) and isinstance(error.__cause__, TimeoutError)


def _parcel(msg: Msg, recipient: str, sender: str) -> Parcel:
    """Return the parcel of a message; its names must be the ones that the server has checked."""
    parcel = decode_parcel(msg.data)
    if (parcel.recipient, parcel.sender) != (recipient, sender):
        text = (
            f"a parcel from {parcel.sender} to {parcel.recipient} was published under the names "
            f"{sender} and {recipient}"
        )
        raise InvalidParcel(text)
    return parcel


def _content(msg: Msg) -> str:
    return (msg.headers or {}).get(PARCEL, "")


def _again(msg: Msg) -> bytes:
    """Return the reply that delays a parcel, longer after each delivery."""
    parts = msg.reply.split(".")
    times = parts[DELIVERED if len(parts) < WITH_DOMAIN else DELIVERED + 2]
    pause = min(AGAIN_MAX, 2 ** min(int(times) - 1, 10))
    return f'-NAK {{"delay": {pause * names.NANOSECONDS}}}'.encode()


def _fitting(answer: Answer, parcel: Parcel, limit: int) -> bytes:
    """Encode an answer; truncate its reasons if it is too large for the server."""
    body = encode_answer(answer, parcel)
    if len(body) <= limit:
        return body
    cut = tuple(
        each._replace(reason=each.reason and each.reason[:REASON_MAX]) for each in answer.receipts
    )
    return encode_answer(replace(answer, receipts=cut), parcel)
