"""
Carry parcels through NATS JetStream; sender and recipient need not run at the same time.

A parcel waits in a stream until its recipient has committed it and stored the answer; its sender
repeats the push until the answer arrives, so a server that loses its store loses no message.
"""

from __future__ import annotations

import asyncio
import hashlib
from dataclasses import dataclass
from ssl import SSLContext
from typing import TYPE_CHECKING, Final
from uuid import uuid4

from onceward.core.deliver.transport import Features, TransportContext
from onceward.errors import (
    InvalidArgument,
    InvalidParcel,
    ParcelTooLarge,
    Refused,
    Unreachable,
    UnsupportedVersion,
)
from onceward.message.clock import Millis
from onceward.message.error_text import message_of
from onceward.message.parcel import Answer, Parcel, in_version
from onceward.message.protocol import Speaks, Spoken
from onceward.message.wire import decode_answer, decode_notice, encode_parcel
from onceward.transports.network import nats_names as names
from onceward.transports.network.loop_thread import LoopThread
from onceward.transports.network.nats_link import (
    HEADERS,
    SCHEME,
    Address,
    Credentials,
    Link,
    new_client,
)
from onceward.transports.network.nats_ping import ping

if TYPE_CHECKING:
    from nats.aio.msg import Msg

PARCEL: Final = "Onceward-Parcel"
"""Header that names the content of a parcel; its answer has the same."""
OUTCOME: Final = "Onceward-Outcome"
"""Header with the kind of an answer."""
ANSWERED: Final = "answer"
REFUSED: Final = "refused"
"""The recipient will never accept this parcel; the body says why."""
READY: Final = "ready"
"""The recipient has received a bell: its process listens, and takes the parcel itself."""
BELL: Final = "bell"
"""Content of a message that asks for ``READY`` in place of a parcel."""
SMALL: Final = 8192
"""
Bytes of a parcel that may wait at the server for an absent recipient.

Of a larger one only a bell waits, so that the parcels of absent agents do not fill the server.
"""
UNREAD: Final = "unread"
"""The recipient needs a newer onceward for it; the body is the notice that says so."""
UNABLE: Final = "unable"
"""The recipient could not accept the parcel this time; the body says why."""
MAX_BYTES: Final = (1 << 20) - HEADERS
"""Largest parcel that a server with the default ``max_payload`` accepts."""
HEARTBEAT: Final = 3.0
"""Seconds after which an idle consumer sends a heartbeat."""
UNHEARD: Final = 5.0
"""Seconds without a subscriber after which a consumer ends."""
SILENT: Final = 3
"""Missed heartbeats after which a consumer counts as gone."""
REPLAY_WITHIN: Final = 2.0
"""Seconds to wait for the answers that were stored before; a later one also counts."""
BROKEN: Final = "the connection to the server ended"
GRACE: Final = 0.9
"""Fraction of ``deliver_timeout`` after which an exchange ends with its own reason."""


class NatsTransport:
    """Delivers to ``nats://HOST:PORT/AGENT``; several servers are separated by commas."""

    features = Features(schemes=frozenset({SCHEME}), max_bytes=MAX_BYTES, network=True)

    def __init__(self, context: TransportContext, *, tls: SSLContext | None = None) -> None:
        self._agent, self._clock = context.agent, context.clock
        self._credentials = Credentials(context.folder, tls)
        self._spoken = Spoken()
        self._limit = GRACE * context.settings.deliver_timeout
        self._loop = LoopThread("onceward-nats", self._close_links)
        self._opening: dict[tuple[tuple[str, ...], str], asyncio.Lock] = {}
        self._answers: dict[tuple[tuple[str, ...], str], _Answers] = {}
        self._taken: dict[tuple[str, str], str] = {}
        """The id of the last returned answer, by sender and recipient."""

    def check(self, url: str) -> None:
        """Raise InvalidArgument for a url without server or agent, or without the extra."""
        new_client()
        if Address.parse(url).agent is None:
            raise InvalidArgument(f"{url} does not name an agent: write {url.rstrip('/')}/AGENT")

    def deliver(self, url: str, parcel: Parcel) -> Answer:
        """
        Leave the parcel at the server and wait for the recipient's answer.

        A parcel without an answer stays there. A later push of the same content gets an answer that
        has come in between. A large parcel for a recipient that answered no push over this
        connection is preceded by a bell; without an answer only the bell stays.

        Raises:
            Unreachable: the server or the recipient gave no answer in time.
            Refused: the recipient will never accept this parcel.
            ParcelTooLarge: the server does not accept a message of this size.
            UnsupportedVersion: one side must be upgraded before.

        """
        parcel = in_version(parcel, self._spoken.version(parcel.recipient))
        servers, body = _servers(url, parcel.recipient), encode_parcel(parcel)
        lack = f"no answer from {parcel.recipient}"
        return self._loop.run(self._exchange(servers, parcel, body), self._limit, lack)

    def ping(self, url: str, peer: str) -> Millis:
        """
        Ping a process that listens for *peer*, and return how far its clock is ahead.

        Raises:
            Unreachable: says what is missing: server, key, stream, permission, or listener.

        """
        asking = self._ping(_servers(url, peer), peer)
        return self._loop.run(asking, self._limit, f"no answer from {peer}")

    def speaks(self, peer: str) -> Speaks | None:
        """Return what a peer said to this process that it speaks."""
        return self._spoken.said(peer)

    def close(self) -> None:
        """End running pushes and every connection; safe to call twice."""
        self._loop.close()

    async def _close_links(self) -> None:
        for answers in self._answers.values():
            await answers.link.close()

    async def _ping(self, servers: tuple[str, ...], peer: str) -> Millis:
        """Use everything that a push uses, without storing a message."""
        answers = await self._open(servers, self._agent)
        await answers.link.probe(names.subject("parcel", peer, self._agent))
        told = await ping(answers.link, self._agent, peer, self._clock)
        self._spoken.hear(peer, told.speaks)
        return told.ahead

    async def _exchange(self, servers: tuple[str, ...], parcel: Parcel, body: bytes) -> Answer:
        answers = await self._open(servers, parcel.sender)
        if len(body) > answers.link.max_payload:
            limit = answers.link.max_payload
            msg = f"a parcel of {len(body)} bytes; the server accepts {limit}"
            raise ParcelTooLarge(msg, limit=limit)
        told = await answers.ask(parcel, body)
        self._taken[parcel.sender, parcel.recipient] = told.id
        if told.outcome == REFUSED:
            raise Refused(told.reason)
        if told.outcome == UNREAD:
            self._spoken.hear(parcel.recipient, told.speaks)
            raise UnsupportedVersion(f"{parcel.recipient} did not read it: {told.reason}")
        if told.answer is None:
            raise Unreachable(f"{parcel.recipient} cannot accept the parcel: {told.reason}")
        self._spoken.hear(parcel.recipient, None, newest=told.answer.newest)
        return told.answer

    async def _open(self, servers: tuple[str, ...], sender: str) -> _Answers:
        """Return the open subscription to the answers of *sender*; open one if there is none."""
        key = servers, sender
        async with self._opening.setdefault(key, asyncio.Lock()):
            answers = self._answers.get(key)
            if answers is not None and answers.alive:
                return answers
            if answers is not None:
                await answers.link.close()
            link = await Link.open(servers, sender, self._credentials)
            answers = _Answers(link, sender, self._taken)
            try:
                await answers.open()
            except BaseException:
                await link.close()
                raise
            self._answers[key] = answers
            return answers


@dataclass(frozen=True, slots=True)
class _Told:
    """A received answer, raw and decoded."""

    id: str
    outcome: str
    reason: str
    answer: Answer | None
    speaks: Speaks | None = None


@dataclass(slots=True, eq=False)
class _Asked:
    """A push that waits for its answer."""

    parcel: Parcel
    told: asyncio.Future[_Told | None]
    """None once the connection has ended."""


class _Answers:
    """The answers to one agent at one server: stored ones, then new ones."""

    def __init__(self, link: Link, name: str, taken: dict[tuple[str, str], str]) -> None:
        self.link, self._name, self._taken = link, name, taken
        self._asked: dict[tuple[str, str], set[_Asked]] = {}
        """Pushes by recipient and content of their parcel."""
        self._stored: dict[str, Msg] = {}
        """The last answer that no push waited for, by recipient."""
        self._takers: set[str] = set()
        """Recipients that answered the last push, or a bell that has had no parcel since."""
        self._ready: dict[str, asyncio.Event] = {}
        """Set as an answer to a bell comes, by recipient; for pushes that wait for one."""
        self._replayed = asyncio.Event()
        self._before = 0
        """Number of answers that were stored before and have not come yet."""
        self._heard_at = 0.0

    @property
    def alive(self) -> bool:
        """Whether the connection is open and the consumer sent a heartbeat recently."""
        silence = asyncio.get_running_loop().time() - self._heard_at
        return not self.link.broken.is_set() and silence < SILENT * HEARTBEAT

    async def open(self) -> None:
        """Create the consumer, and wait for the stored answers."""
        inbox = self.link.new_inbox()
        await self.link.hear(inbox, self._take)
        config = {
            "name": f"answers-{names.token(self._name)}-{uuid4().hex}",
            "deliver_subject": inbox,
            "deliver_policy": "last_per_subject",
            "ack_policy": "none",
            "idle_heartbeat": round(HEARTBEAT * names.NANOSECONDS),
            "inactive_threshold": round(UNHEARD * names.NANOSECONDS),
            "mem_storage": True,
        }
        waiting = await self.link.consume(
            names.ANSWERS, names.subjects_to("answer", self._name), config
        )
        self._before += waiting
        self._heard_at = asyncio.get_running_loop().time()
        if self._before > 0:
            try:
                async with asyncio.timeout(REPLAY_WITHIN):
                    await self._replayed.wait()
            except TimeoutError:  # one of them was replaced in between: the newer one comes
                pass
        self._watch = asyncio.ensure_future(self._fail_when_broken())

    async def ask(self, parcel: Parcel, body: bytes) -> _Told:
        """Return the answer to a parcel: the stored one if there is one, else after a push."""
        content = _content(parcel)
        if (stored := self._look(parcel, content)) is not None:
            return stored
        key = parcel.recipient, content
        asked = _Asked(parcel, asyncio.get_running_loop().create_future())
        self._asked.setdefault(key, set()).add(asked)
        try:
            subject = names.subject("parcel", parcel.recipient, parcel.sender)
            if len(body) > SMALL and parcel.recipient not in self._takers:
                await self._ring(subject, parcel.recipient)
            self._takers.discard(parcel.recipient)
            await self.link.store(subject, body, {PARCEL: content})
            told = await asked.told
            if told is None:
                raise Unreachable(BROKEN)
            self._takers.add(parcel.recipient)
            return told
        finally:
            waiting = self._asked.get(key, set())
            waiting.discard(asked)
            if not waiting:
                self._asked.pop(key, None)

    async def _ring(self, subject: str, recipient: str) -> None:
        """Store a bell, which replaces a parcel that waits, until the recipient answers it."""
        ready = self._ready.setdefault(recipient, asyncio.Event())
        ready.clear()
        await self.link.store(subject, b"", {PARCEL: BELL})
        ended = asyncio.ensure_future(self.link.broken.wait())
        answered = asyncio.ensure_future(ready.wait())
        try:
            await asyncio.wait({ended, answered}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            ended.cancel()
            answered.cancel()
        if not ready.is_set():
            raise Unreachable(BROKEN)

    def _hear_ready(self, recipient: str) -> None:
        """Let the next push to a recipient store its parcel."""
        self._takers.add(recipient)
        if recipient in self._ready:
            self._ready[recipient].set()

    def _look(self, parcel: Parcel, content: str) -> _Told | None:
        """Return the stored answer to a parcel, unless a full inbox may now have capacity."""
        stored = self._stored.pop(parcel.recipient, None)
        if stored is None or (stored.headers or {}).get(PARCEL) != content:
            return None
        told = _read(stored, parcel)
        if told is None or told.answer is None or told.answer.verdict == "busy":
            return None
        return told

    async def _take(self, msg: Msg) -> None:
        """Receive an answer or a heartbeat."""
        self._heard_at = asyncio.get_running_loop().time()
        sender = names.publisher(msg.subject, names.subjects_to("answer", self._name))
        headers = msg.headers or {}
        if sender is None:
            return
        key = sender, headers.get(PARCEL, "")
        heard = headers.get(OUTCOME) == READY
        if heard:
            self._hear_ready(sender)
        for asked in list(self._asked.get(key, ())):
            told = _read(msg, asked.parcel)
            if told is not None and not asked.told.done():
                asked.told.set_result(told)
                heard = True
        if not heard and headers.get("Nats-Msg-Id") != self._taken.get((self._name, sender)):
            self._stored[sender] = msg
        self._before -= 1
        if self._before == 0:
            self._replayed.set()

    async def _fail_when_broken(self) -> None:
        await self.link.broken.wait()
        for waiting in self._asked.values():
            for asked in waiting:
                if not asked.told.done():
                    asked.told.set_result(None)  # the push may have failed and read no answer


def _read(msg: Msg, parcel: Parcel) -> _Told | None:
    """Return a decoded answer; None for bytes that do not answer this parcel."""
    headers = msg.headers or {}
    outcome, reason, answer, speaks = headers.get(OUTCOME, ""), "", None, None
    try:
        if outcome == ANSWERED:
            answer = decode_answer(msg.data, parcel)
        elif outcome == UNREAD:
            notice = decode_notice(msg.data)
            reason, speaks = notice.detail, notice.speaks
        elif outcome in {REFUSED, UNABLE}:
            reason = msg.data.decode()
        else:
            return None
    except UnsupportedVersion as error:  # the answer itself is of a newer onceward
        outcome, reason = UNABLE, message_of(error)
    except (InvalidParcel, UnicodeDecodeError):
        return None
    return _Told(headers.get("Nats-Msg-Id", ""), outcome, reason, answer, speaks)


def _content(parcel: Parcel) -> str:
    """Return the digest of a whole parcel: pushes of one number may differ in receipts."""
    frames = [(frame.id, frame.digest, frame.redelivered) for frame in parcel.frames]
    rest = (
        parcel.sender, parcel.recipient, parcel.epoch, parcel.number, parcel.previous,
        parcel.durability, parcel.base_position, parcel.unsettled, parcel.stream_position,
        parcel.greeting, parcel.takeover, parcel.known_takeover,
    )  # fmt: skip
    held = repr((rest, frames, [tuple(receipt) for receipt in parcel.receipts]))
    return hashlib.sha256(held.encode()).hexdigest()


def _servers(url: str, recipient: str) -> tuple[str, ...]:
    """Return the servers in the url of *recipient*."""
    address = Address.parse(url)
    if address.agent not in {None, recipient}:
        raise Unreachable(f"name: {url} is the url of {address.agent}, not of {recipient}")
    return address.servers
