"""The protocol of a server whose connections are counted, and timed until a head has come."""

from __future__ import annotations

import asyncio
import errno
import ssl
from asyncio import sslproto
from collections.abc import Callable
from time import monotonic
from typing import Any, Final
from weakref import WeakSet

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from onceward.transports.network.http_connections import Connections
from onceward.transports.network.http_endpoint import CONNECTION

HANDSHAKE_TIMEOUT: Final = 10
"""Longest TLS handshake in seconds."""
LINGER: Final = 1.0
"""Seconds for which the client of a connection that was refused may read why."""
TOLD_EVERY: Final = 60.0
"""Seconds between two lines about files that are missing."""
WAITING: Final = "connections wait for files: raise the limit (ulimit -n)"
NO_FILES: Final = frozenset({errno.EMFILE, errno.ENFILE})
REFUSAL: Final = (
    b"HTTP/1.1 503 Service Unavailable\r\n"
    b"retry-after: 1\r\nconnection: close\r\ncontent-length: 10\r\n\r\nnot taken\n"
)


def guarded(*, header_timeout: float, connections: Connections) -> type[asyncio.Protocol]:
    """Return the protocol of a server whose connections are counted in *connections*."""
    return type(
        "GuardedProtocol", (Guarded,), {"header_timeout": header_timeout, "counted": connections}
    )


class Guarded(H11Protocol):
    """Close a connection whose head takes too long; refuse what is beyond the most there may be."""

    header_timeout = 10.0
    counted: Connections
    handshake: Handshake | None = None
    """Counts in place of this connection until TLS is agreed on; None without TLS."""
    _timer: asyncio.TimerHandle | None = None
    _refused = False

    @property
    def place(self) -> str:
        """Return the address of the client."""
        return self.client[0] if self.client else ""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait for a head."""
        super().connection_made(transport)
        self.app_state = self.app_state | {CONNECTION: self}
        self._arm()
        if self.handshake is not None:
            self.counted.discard(self.handshake)
        self.counted.add(self)

    def proved(self) -> None:
        """Count this connection as one of a peer, from a request's head that was proved."""
        self.counted.works(self)

    def hold(self, release: Callable[[], object]) -> bool:
        """Count the question of this connection as held; return whether there is room for it."""
        return self.counted.hold(self, release, self.loop.time())

    def data_received(self, data: bytes) -> None:
        """Wait for the head to be whole; the endpoint bounds the body."""
        if self._refused:
            return
        self.counted.hears(self)
        super().data_received(data)
        if self.conn.their_state is h11.IDLE:
            self._arm()
        else:
            self._disarm()

    def on_response_complete(self) -> None:
        """Close a connection whose request was answered before its body came: it may never come."""
        self.counted.rests(self)
        unread = self.conn.their_state is h11.SEND_BODY
        super().on_response_complete()
        if unread:
            self.transport.close()

    def refuse(self) -> None:
        """Tell the client to come again, and close once it has read that."""
        self._refused = True
        self._disarm()
        if self.cycle is not None:
            self.cycle.disconnected = True  # an answer that is still being made is not written
        self.transport.write(REFUSAL)
        if not self.transport.can_write_eof():  # TLS: what is unread may cost the client the answer
            self.transport.close()
            return
        self.transport.write_eof()
        self._timer = self.loop.call_later(LINGER, self.transport.abort)

    def leave(self) -> None:
        """Close a connection that rests: its client makes another one for its next request."""
        self._disarm()
        self.transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait no longer."""
        self._disarm()
        self.counted.discard(self)
        super().connection_lost(exc)

    def _arm(self) -> None:
        if self._timer is None:
            self._timer = self.loop.call_later(self.header_timeout, self.transport.abort)

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class Handshake(sslproto.SSLProtocol):
    """Agree on TLS with a client whose connection is counted before it has said a word."""

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
        """Close without a word, which could be read over TLS only."""
        self._below.abort()

    def leave(self) -> None:
        """Close."""
        if self._below is not None:
            self._below.abort()

    def connection_lost(self, exc: BaseException | None) -> None:
        """Count it no longer."""
        self._counted.discard(self)
        super().connection_lost(exc)


class GuardedLoop(asyncio.SelectorEventLoop):
    """An event loop whose servers count connections before TLS, and outlive a lack of files."""

    _told_at = -TOLD_EVERY

    def __init__(self) -> None:
        super().__init__()
        self._handshakes = WeakSet[Handshake]()

    def close(self) -> None:
        """End the connections that are left, those of which no server knows yet among them."""
        if not self.is_closed():
            for each in list(self._handshakes):
                each.leave()
            self.run_until_complete(asyncio.sleep(0))
        super().close()

    async def create_server(  # type: ignore[override]
        self, factory: Callable[[], Any], *args: Any, **options: Any
    ) -> asyncio.Server:
        """Create a server whose handshakes are counted, and have a time limit."""
        context = options.pop("ssl", None)
        if context is None:
            return await super().create_server(factory, *args, **options)

        def over_tls() -> Handshake:
            made = Handshake(self, factory(), context)
            self._handshakes.add(made)
            return made

        return await super().create_server(over_tls, *args, **options)

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Tell once a minute that no file is left for a connection; asyncio tries it again."""
        error = context.get("exception")
        if not isinstance(error, OSError) or error.errno not in NO_FILES:
            super().call_exception_handler(context)
        elif monotonic() - self._told_at >= TOLD_EVERY:
            self._told_at = monotonic()
            super().call_exception_handler({"message": WAITING, "exception": error})
