"""
Keep one connection of an agent to a NATS server, to call JetStream and store messages.

A broken connection is not repaired: its user opens a new one.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from ssl import SSLContext
from typing import TYPE_CHECKING, Any, Final, TypeVar
from uuid import uuid4

from onceward.errors import InvalidArgument, MissingExtra, Unreachable
from onceward.message.extras import needs
from onceward.message.names import AGENT, quoted
from onceward.transports.network import nats_names as names
from onceward.transports.network.nats_keys import connect_options

if TYPE_CHECKING:
    from nats.aio.client import Client
    from nats.aio.msg import Msg
    from nats.aio.subscription import Subscription

SCHEME: Final = "nats"
URL: Final = re.compile(r"nats://(?P<servers>[^/@?#\s]+)(?:/(?P<agent>[^/@?#\s]*))?/?")
PORT: Final = 4222
CONNECT_WITHIN: Final = 5.0
"""Seconds in which a server accepts a connection."""
CLOSE_WITHIN: Final = 2.0
"""Seconds in which a closing connection sends its remaining data."""
ASK_WITHIN: Final = 10.0
"""Seconds in which a server answers; one with a slow disk syncs a parcel in that time."""
PING_EVERY: Final = 20
"""Seconds between pings; two unanswered ones end a connection."""
HEADERS: Final = 1024
"""Maximum bytes of a message's headers."""
NOT_FOUND: Final = 404
STREAM_IN_USE: Final = 10058
"""Error of a stream that exists with other limits, set by an operator."""
GONE: Final[dict[str, Any]] = {
    "error": {"description": "no stream accepts it; is JetStream enabled?"}
}
"""The reply if no subscriber listens to a subject."""
NEVER: Final = str(1 << 62)
"""A sequence that no subject has: a message that expects it is checked but not stored."""
WRONG_SEQUENCE: Final = "wrong last sequence"
APPLY: Final = "onceward nats setup --keeper NAME --apply"
MADE_BY_KEEPERS: Final = f"a keeper must create it: {APPLY}"
INSUFFICIENT: Final = "insufficient storage"
NO_ROOM: Final = f"the server allows less storage: {APPLY} --max-bytes N"
T = TypeVar("T")
ENDED: Final = "the connection ended"
DENIED: Final = re.compile(r'permissions violation for (?:publish|subscription) to "(?P<to>[^"]+)"')


@dataclass(frozen=True, slots=True)
class Address:
    """The servers and the agent of a url."""

    servers: tuple[str, ...]
    agent: str | None

    @classmethod
    def parse(cls, url: str) -> Address:
        """
        Return the address in ``nats://HOST[:PORT][,HOST[:PORT]...][/AGENT]``.

        Raises:
            InvalidArgument: it is not one; user and password never belong in a url.

        """
        found = URL.fullmatch(url)
        agent = found["agent"] if found else None
        if found is None or (agent and AGENT.fullmatch(agent) is None):
            msg = f"{quoted(url)} is not a url of an agent: write nats://HOST:PORT/AGENT"
            raise InvalidArgument(msg)
        return cls(tuple(map(_server, found["servers"].split(","))), agent or None)


def _server(host: str) -> str:
    name, colon, port = host.rpartition(":")
    if not colon or host.endswith("]"):
        name, port = host, str(PORT)
    if not name or not port.isdecimal() or not 0 < int(port) < 1 << 16:
        raise InvalidArgument(f"{quoted(host)} is not a server: write HOST or HOST:PORT")
    return f"nats://{name}:{port}"


@dataclass(frozen=True, slots=True)
class Credentials:
    """The home of an agent's secrets for NATS servers, and the TLS context of its connections."""

    folder: Path
    """The agent's home, which holds ``nats/AGENT.nk`` or ``nats/AGENT.creds``."""
    tls: SSLContext | None = None
    """With a context, a server that does not encrypt is refused."""


class Link:
    """A connection of one agent, used from the loop that opened it."""

    def __init__(self, client: Client, agent: str, url: str = "") -> None:
        self._client, self._agent, self.url = client, agent, url
        self.broken = asyncio.Event()
        """Set once the connection has ended, by close() or by an error."""
        self._asked: dict[str, set[asyncio.Future[str]]] = {}
        """Futures that fail running requests, by subject in lower case, as in refusals."""
        self._why = ""
        """The last error that the client reported outside its calls."""

    @classmethod
    async def open(cls, servers: tuple[str, ...], agent: str, credentials: Credentials) -> Link:
        """
        Connect to the first of *servers* that answers.

        Raises:
            Unreachable: none does, or none accepts the agent's credentials.

        """
        try:
            client = new_client()
        except MissingExtra as error:
            raise Unreachable(str(error)) from error
        link = cls(client, agent, ",".join(servers))
        options: dict[str, Any] = dict(connect_options(credentials.folder, agent))
        secret = bool(options)
        if credentials.tls is not None:
            options["tls"] = credentials.tls
        try:
            async with asyncio.timeout(CONNECT_WITHIN):
                await client.connect(
                    list(servers),
                    name=f"onceward {agent}",
                    inbox_prefix=names.inbox_prefix(agent),
                    error_cb=link._note,
                    closed_cb=link._end,
                    allow_reconnect=False,
                    max_reconnect_attempts=1,
                    reconnect_time_wait=0,
                    ping_interval=PING_EVERY,
                    **options,
                )
        except BaseException as error:
            await _closed(client)
            if not isinstance(error, Exception):
                raise
            why = _meaning(link._told(error), agent, secret=secret)
            raise Unreachable(f"no connection to {' '.join(servers)}: {why}") from error
        if credentials.tls is not None and not client._server_info.get("tls_required"):
            await link.close()
            msg = f"certificate: {' '.join(servers)} does not encrypt, but a TLS context was given"
            raise Unreachable(msg)
        return link

    @property
    def max_payload(self) -> int:
        """Maximum bytes of a message body that the server accepts with our headers."""
        return self._client.max_payload - HEADERS

    def new_inbox(self) -> str:
        """Return an own subject that no other user can guess."""
        return self._client.new_inbox()

    async def hear(self, subject: str, take: Callable[[Msg], Awaitable[None]]) -> Subscription:
        """Pass each message at *subject* to *take*, in order."""
        return await self._client.subscribe(subject, cb=take)

    async def put(
        self, subject: str, body: bytes = b"", *, reply: str = "", **headers: str
    ) -> None:
        """Publish without waiting for anything."""
        try:
            await self._client.publish(subject, body, reply=reply, headers=headers or None)
        except Exception as error:
            raise self._unreachable(error) from error

    async def store(self, subject: str, body: bytes, headers: Mapping[str, str]) -> None:
        """
        Publish into a stream, recreated if it is gone, and wait until the message is stored.

        Raises:
            Unreachable: it was not stored, or not confirmed in time.

        """
        told = await self._ask_stream(subject, body, {"Nats-Msg-Id": uuid4().hex, **headers})
        if "error" in told:
            raise self._refused(subject, told["error"])

    async def probe(self, subject: str) -> None:
        """
        Check whether a stream accepts our messages at *subject*, without storing one.

        Raises:
            Unreachable: there is no such stream and none can be created, or it is not permitted.

        """
        condition = {"Nats-Expected-Last-Subject-Sequence": NEVER}
        told = await self._ask_stream(subject, b"", condition)
        error = told.get("error", {})
        if not str(error.get("description", "")).startswith(WRONG_SEQUENCE):
            raise self._refused(subject, error)

    async def exchange(
        self, subject: str, heard: str, body: bytes, answers: Callable[[Msg], T | None]
    ) -> T | None:
        """
        Publish, and return the result of *answers* for a message at *heard*.

        Return None if no process listens to the subject.

        Raises:
            Unreachable: it is not permitted, or no answer came in time.

        """
        told: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

        async def take(msg: Msg) -> None:
            found = answers(msg)
            if found is not None and not told.done():
                told.set_result(found)

        async def unheard(_: Msg) -> None:
            if not told.done():
                told.set_result(None)

        inbox = self.new_inbox()
        with self._watching(subject, heard) as failed:
            subscribed = [await self.hear(heard, take), await self.hear(inbox, unheard)]
            try:
                await self.put(subject, body, reply=inbox)
                await _first(told, failed, timeout=ASK_WITHIN)
            finally:
                for each in subscribed:
                    await _quietly(each.unsubscribe())
        if failed.done():
            raise Unreachable(self._prefixed(failed.result()))
        if not told.done():
            raise Unreachable(self._prefixed(f"no answer within {ASK_WITHIN:g} s"))
        found: T | None = told.result()
        return found

    async def api(self, verb: str, request: Mapping[str, Any]) -> dict[str, Any] | None:
        """
        Call the JetStream API; return None if the stream or consumer does not exist.

        Raises:
            Unreachable: it was refused, or not answered in time.

        """
        told = await self._ask(f"$JS.API.{verb}", json.dumps(request).encode())
        error = told.get("error")
        if error is None or error.get("err_code") == STREAM_IN_USE:
            return told
        if error.get("code") == NOT_FOUND:
            return None
        raise self._refused(verb, error)

    async def consume(self, stream: str, filtered: str, config: Mapping[str, Any]) -> int:
        """Create a consumer, and missing streams; return how many messages wait."""
        verb = f"CONSUMER.CREATE.{stream}.{config['name']}.{filtered}"
        request = {"stream_name": stream, "config": {**config, "filter_subject": filtered}}
        made = await self.api(verb, request)
        if made is None:
            await self.make_streams()
            made = await self.api(verb, request)
        if made is None:
            raise Unreachable(f"stream {stream} is gone again")
        return int(made.get("num_pending", 0))

    async def make_streams(
        self, replicas: int = 1, max_bytes: int = names.STREAM_MAX_BYTES
    ) -> None:
        """
        Create the missing streams; existing ones keep their limits.

        Raises:
            Unreachable: this user may not create them, or the server has no space for them.

        """
        for name, config in names.STREAMS.items():
            asked = {"name": name, "num_replicas": replicas, "max_bytes": max_bytes}
            try:
                await self.api(f"STREAM.CREATE.{name}", {**config, **asked})
            except Unreachable as error:
                cure = NO_ROOM if INSUFFICIENT in str(error) else MADE_BY_KEEPERS
                msg = f"{self._agent} cannot create stream {name}, {cure}: {error}"
                raise Unreachable(msg) from error

    async def close(self) -> None:
        """End the connection; safe to call twice."""
        await _closed(self._client)
        await self._end()

    async def _ask_stream(
        self, subject: str, body: bytes, headers: Mapping[str, str]
    ) -> dict[str, Any]:
        """Ask a stream, and again after creating the streams if there is none."""
        told = await self._ask(subject, body, headers)
        if told is GONE:
            await self.make_streams()
            told = await self._ask(subject, body, headers)
        return told

    async def _ask(
        self, subject: str, body: bytes, headers: Mapping[str, str] | None = None
    ) -> dict[str, Any]:
        """Return the server's reply; a refusal of permission or an end fails it at once."""
        asking = asyncio.ensure_future(
            self._client.request(subject, body, ASK_WITHIN, headers=dict(headers or {}) or None)
        )
        try:
            with self._watching(subject) as failed:
                await _first(asking, failed)
        finally:
            asking.cancel()  # has no effect on a finished one
        if failed.done():
            raise Unreachable(self._prefixed(failed.result()))
        try:
            return _json((await asking).data)
        except Exception as error:
            if _is_gone(error):
                return GONE
            raise self._unreachable(error) from error

    @contextmanager
    def _watching(self, *subjects: str) -> Iterator[asyncio.Future[str]]:
        """Yield a future that gets why the server forbids one of *subjects*, or ended."""
        failed: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        names = [subject.lower() for subject in subjects]
        for name in names:
            self._asked.setdefault(name, set()).add(failed)
        try:
            yield failed
        finally:
            for name in names:
                waiting = self._asked.get(name, set())
                waiting.discard(failed)
                if not waiting:
                    self._asked.pop(name, None)

    async def _note(self, error: Exception) -> None:
        """Keep errors that the client reports outside its calls; fail the forbidden requests."""
        self._why = str(error)
        denied = DENIED.search(self._why.lower())
        if denied is not None:
            printed = f"onceward nats setup --user {self._agent} prints"
            cure = f"add the entry that {printed} to its list of users"
            _fail(self._asked.get(denied["to"], ()), f"{self._why}: {cure}")

    async def _end(self) -> None:
        self.broken.set()
        why = f"{ENDED}: {self._why}" if self._why else ENDED
        for each in list(self._asked.values()):
            _fail(each, why)

    def _told(self, error: BaseException) -> str:
        vague = not str(error) or "no servers" in str(error)
        return (self._why or ENDED) if vague else str(error)

    def _unreachable(self, error: BaseException) -> Unreachable:
        return Unreachable(self._prefixed(self._told(error)))

    def _prefixed(self, why: str) -> str:
        return f"{self._agent} at the NATS server: {why}"

    def _refused(self, what: str, error: Mapping[str, Any]) -> Unreachable:
        return Unreachable(f"the NATS server refused {what}: {error.get('description', error)}")


def new_client() -> Client:
    """Return a client; raises MissingExtra."""
    with needs("nats", "a url of nats:"):
        from nats.aio.client import Client  # noqa: PLC0415 - an extra that most programs lack
    return Client()


async def _first(*some: asyncio.Future[Any], timeout: float | None = None) -> None:
    """Wait until one is done."""
    await asyncio.wait(some, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)


async def _closed(client: Client) -> None:
    """Close a client that is connected, is connecting or has ended."""
    await _quietly(client.close())


async def _quietly(ending: Awaitable[None]) -> None:
    """Run a closing call; ignore errors and hangs."""
    with suppress(Exception):
        async with asyncio.timeout(CLOSE_WITHIN):
            await ending


def _fail(asked: Iterable[asyncio.Future[str]], why: str) -> None:
    for each in asked:
        if not each.done():
            each.set_result(why)


def _is_gone(error: Exception) -> bool:
    return type(error).__name__ == "NoRespondersError"  # the extra is not imported for its name


def _meaning(why: str, agent: str, *, secret: bool) -> str:
    """Return why a connection failed, and what to check first."""
    if "authorization" in why.lower():
        if not secret:
            return f"key: {why}: this home has no secret of {agent}: onceward nats setup creates it"
        printed = f"onceward nats setup --user {agent} prints"
        return f"key or name: {why}: add the entry that {printed} to the server's list of users"
    if "CERTIFICATE" in why.upper():
        return f"certificate: {why}"
    return f"server: {why}"


def _json(data: bytes) -> dict[str, Any]:
    try:
        told = json.loads(data)
    except ValueError:
        told = None
    return told if isinstance(told, dict) else {"error": {"description": "the reply is not JSON"}}
