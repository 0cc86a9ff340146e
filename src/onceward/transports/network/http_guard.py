"""Define the protocol of a server that counts connections and limits the time for a head."""

from __future__ import annotations

import asyncio
import errno
import ssl
from asyncio import sslproto
from collections.abc import Callable
from typing import Any, Final
from weakref import WeakSet

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from onceward.message.clock import monotonic
from onceward.transports.network.http_connections import Connections
from onceward.transports.network.http_endpoint import CONNECTION

HANDSHAKE_TIMEOUT: Final = 10
"""Maximum seconds of a TLS handshake."""
HEAD_MAX: Final = 16 << 10
"""Maximum bytes of a request's head, of its trailers, and of the line before a chunk."""
PIECE: Final = 4096
"""Bytes that are parsed at a time while a head is expected."""
LINGER: Final = 1.0
"""Seconds in which the client of a refused connection may read the reason."""
ACCEPTED_AT_ONCE: Final = 16
"""Connections that are accepted before the heads of others are read."""
TOLD_EVERY: Final = 60.0
"""Seconds between two lines about missing descriptors."""
WAITING: Final = "connections wait for file descriptors: raise the limit (ulimit -n)"
NO_FILES: Final = frozenset({errno.EMFILE, errno.ENFILE})
REFUSAL: Final = (
    b"HTTP/1.1 503 Service Unavailable\r\n"
    b"retry-after: 1\r\nconnection: close\r\ncontent-length: 10\r\n\r\nnot taken\n"
)


def guarded(
    *, header_timeout: float, answer_timeout: float, connections: Connections
) -> type[asyncio.Protocol]:
    """Return the protocol of a server that counts its connections in *connections*."""
    limits = {"header_timeout": header_timeout, "answer_timeout": answer_timeout}
    return type("GuardedProtocol", (Guarded,), limits | {"counted": connections})


class Guarded(H11Protocol):
    """Close a connection that takes too long; refuse connections above the maximum."""

    header_timeout = 10.0
    answer_timeout = 30.0
    counted: Connections
    handshake: Handshake | None = None
    """Counts instead of this connection until the TLS handshake has ended; None without TLS."""
    _timer: asyncio.TimerHandle | None = None
    _unread: asyncio.TimerHandle | None = None
    """Ends the connection of a client that does not read its answers."""
    _refused = False
    _later: bytearray
    """Received bytes that are not parsed yet."""

    @property
    def place(self) -> str:
        """Return the address of the client."""
        return self.client[0] if self.client else ""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start waiting for a head."""
        super().connection_made(transport)
        self._later = bytearray()
        self.app_state = self.app_state | {CONNECTION: self}
        self._arm()
        if self.handshake is not None:
            self.counted.discard(self.handshake)
        self.counted.add(self)

    def proved(self) -> None:
        """Count this connection as a peer's, because a request's head was verified."""
        self.counted.works(self)

    def hold(self, release: Callable[[], object]) -> bool:
        """Count the poll of this connection as held; return whether there is capacity."""
        return self.counted.hold(self, release, self.loop.time())

    def data_received(self, data: bytes) -> None:
        """Wait for the whole head; the endpoint limits the body."""
        if self._refused:
            return
        self.counted.hears(self)
        self._later += data
        self._parse()
        if self.conn.their_state is h11.IDLE:
            self._arm()
        else:
            self._disarm()

    def _parse(self) -> None:
        """
        Pass on received bytes, up to the end of a request; later ones wait for its answer.

        h11 limits only what is incomplete, so it never has more than a whole head at a time.
        """
        while self._later and self.conn.their_state in (h11.IDLE, h11.SEND_BODY):
            size = PIECE if self.conn.their_state is h11.IDLE else HEAD_MAX
            piece = bytes(self._later[:size])
            del self._later[:size]
            super().data_received(piece)
        if self._later:
            self.flow.pause_reading()

    def on_response_complete(self) -> None:
        """Parse the next request; close a connection that was answered before its body came."""
        self.counted.rests(self)
        unread = self.conn.their_state is h11.SEND_BODY
        super().on_response_complete()
        if unread:
            self.transport.close()
            return
        self._parse()
        if self.conn.their_state is h11.IDLE and self.conn.trailing_data[0]:
            self._arm()

    def pause_writing(self) -> None:
        """Start waiting for the client to read."""
        super().pause_writing()
        self._unread = self.loop.call_later(self.answer_timeout, self.transport.abort)

    def resume_writing(self) -> None:
        """Continue to write."""
        super().resume_writing()
        if self._unread is not None:
            self._unread.cancel()

    def refuse(self) -> None:
        """Tell the client to try again, and close once it has read that."""
        self._refused = True
        self._disarm()
        if self.cycle is not None:
            self.cycle.disconnected = True  # do not write an answer that is still being made
        self.transport.write(REFUSAL)
        # TLS: unread data may make the client lose the answer
        if not self.transport.can_write_eof():
            self.transport.close()
            return
        self.transport.write_eof()
        self._timer = self.loop.call_later(LINGER, self.transport.abort)

    def leave(self) -> None:
        """Close an idle connection: its client opens another one for its next request."""
        self._disarm()
        self.transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop waiting."""
        self._disarm()
        self.counted.discard(self)
        super().connection_lost(exc)
        self.resume_writing()

    def _arm(self) -> None:
        if self._timer is None:
            self._timer = self.loop.call_later(self.header_timeout, self.transport.abort)

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class Handshake(sslproto.SSLProtocol):
    """Do the TLS handshake with a client whose connection is already counted."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, guarded: Guarded, context: ssl.SSLContext
    ) -> None:
        super().__init__(
            loop,
            guarded,
            context,
            None,  # type: ignore[arg-type]  # nothing waits for the end of a handshake
            server_side=True,
            ssl_handshake_timeout=HANDSHAKE_TIMEOUT,
        )
        self._counted, self.place = guarded.counted, ""
        self._below: Any = None
        guarded.handshake = self

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Count the connection, and begin."""
        self._below = transport
        self.place = (transport.get_extra_info("peername") or ("",))[0]
        super().connection_made(transport)
        self._counted.add(self)

    def refuse(self) -> None:
        """Close without an answer, which could only be read over TLS."""
        self._below.abort()

    def leave(self) -> None:
        """Close."""
        if self._below is not None:
            self._below.abort()

    def connection_lost(self, exc: BaseException | None) -> None:
        """Stop counting it."""
        self._counted.discard(self)
        super().connection_lost(exc)


class GuardedLoop(asyncio.SelectorEventLoop):
    """An event loop whose servers count connections before TLS and survive a full file table."""

    _told_at = -TOLD_EVERY

    def __init__(self) -> None:
        super().__init__()
        self._handshakes = WeakSet[Handshake]()

    def close(self) -> None:
        """Close the remaining connections, including those that no server knows yet."""
        if not self.is_closed():
            for each in list(self._handshakes):
                each.leave()
            self.run_until_complete(asyncio.sleep(0))
        super().close()

    async def create_server(  # type: ignore[override]
        self, factory: Callable[[], Any], *args: Any, **options: Any
    ) -> asyncio.Server:
        """
        Create a server whose handshakes are counted and have a time limit.

        It reads heads between accepting connections: of a crowd that connects in one moment few are
        unverified at a time.
        """
        context, listening = options.pop("ssl", None), options["sock"]

        def over_tls() -> Handshake:
            made = Handshake(self, factory(), context)
            self._handshakes.add(made)
            return made

        make = factory if context is None else over_tls
        waiting, options["backlog"] = options["backlog"], ACCEPTED_AT_ONCE
        server = await super().create_server(make, *args, **options)
        listening.listen(waiting)
        return server

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Log once a minute that no descriptor is left for a connection; asyncio tries again."""
        error = context.get("exception")
        if not isinstance(error, OSError) or error.errno not in NO_FILES:
            super().call_exception_handler(context)
        elif monotonic() - self._told_at >= TOLD_EVERY:
            self._told_at = monotonic()
            super().call_exception_handler({"message": WAITING, "exception": error})
