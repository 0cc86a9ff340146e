"""Bound the connections of a server: their number, and the time for a head or a handshake."""

from __future__ import annotations

import asyncio
from typing import Any, Final

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

HANDSHAKE_TIMEOUT: Final = 10.0
"""Longest TLS handshake in seconds."""


def guarded(*, header_timeout: float, connections: int) -> type[asyncio.Protocol]:
    """Return the protocol of a server with at most so many connections."""
    return type(
        "GuardedProtocol",
        (_Guarded,),
        {"header_timeout": header_timeout, "most_connections": connections},
    )


class _Guarded(H11Protocol):
    """Close a connection whose head takes too long, and any beyond the most there may be."""

    header_timeout = 10.0
    most_connections = 200
    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait for a head."""
        super().connection_made(transport)
        if len(self.connections) > self.most_connections:
            transport.abort()
            return
        self._arm()

    def data_received(self, data: bytes) -> None:
        """Wait for the head to be whole; the endpoint bounds the body."""
        super().data_received(data)
        if self.conn.their_state is h11.IDLE:
            self._arm()
        else:
            self._disarm()

    def on_response_complete(self) -> None:
        """Close a connection whose request was answered before its body came: it may never come."""
        unread = self.conn.their_state is h11.SEND_BODY
        super().on_response_complete()
        if unread:
            self.transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait no longer."""
        self._disarm()
        super().connection_lost(exc)

    def _arm(self) -> None:
        if self._timer is None:
            self._timer = self.loop.call_later(self.header_timeout, self.transport.abort)

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class GuardedLoop(asyncio.SelectorEventLoop):
    """An event loop whose servers end a TLS handshake that takes too long."""

    async def create_server(self, *args: Any, **options: Any) -> asyncio.Server:
        """Create a server with a time limit for handshakes."""
        if options.get("ssl") is not None:
            options.setdefault("ssl_handshake_timeout", HANDSHAKE_TIMEOUT)
        return await super().create_server(*args, **options)
