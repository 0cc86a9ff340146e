"""Give metrics to Prometheus: as text, as an ASGI app, or at an address of its own."""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import Awaitable, Callable, Coroutine, Iterable, MutableMapping
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socket import AF_INET6
from socketserver import TCPServer
from threading import Thread
from typing import Any, Final
from urllib.parse import urlsplit

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder

from onceward import Postbox
from onceward.errors import InvalidArgument, OncewardError

PATH: Final = "/metrics"
LIVE: Final = "/live"
READY: Final = "/ready"
LOOPBACK: Final = frozenset({"localhost", "127.0.0.1", "::1"})
READ_WITHIN: Final = 10.0
"""Seconds in which a request has to be there."""

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Coroutine[Any, Any, None]]


def new_registry() -> CollectorRegistry:
    """Return an empty registry; that of the process has metrics of Python and of others."""
    return CollectorRegistry()


def are_ready(boxes: Iterable[Postbox]) -> bool:
    """Return whether no agent is failing, by ``Postbox.health``."""
    try:
        return all(box.health().verdict != "failing" for box in boxes)
    except OncewardError:
        return False


def text_of(registry: CollectorRegistry, accept: str = "") -> tuple[str, bytes]:
    """Return content type and text of all metrics, in the format that *accept* asks for."""
    encode, content_type = choose_encoder(accept)
    return content_type, encode(registry)


def asgi_app(registry: CollectorRegistry) -> App:
    """
    Return an ASGI app that answers GET with the metrics; mount it where a scraper may come.

    It checks neither address nor token: that is the work of the app that mounts it.
    """

    async def app(scope: Scope, _: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        if scope["method"] not in {"GET", "HEAD"}:
            await _answer(send, HTTPStatus.METHOD_NOT_ALLOWED, "text/plain", b"")
            return
        headers = dict(scope["headers"])
        accept = headers.get(b"accept", b"").decode("latin-1")
        # Files are read: not on the thread of the loop.
        kind, text = await asyncio.to_thread(text_of, registry, accept)
        await _answer(send, HTTPStatus.OK, kind, text if scope["method"] == "GET" else b"")

    return app


async def _answer(send: Send, status: int, kind: str, body: bytes) -> None:
    headers = [(b"content-type", kind.encode()), (b"cache-control", b"no-store")]
    await send({"type": "http.response.start", "status": int(status), "headers": headers})
    await send({"type": "http.response.body", "body": body})


class MetricsServer:
    """
    Serve ``/metrics`` at *address*, ``HOST:PORT``, on threads of its own.

    ``/live`` answers 200 while the process runs, ``/ready`` 200 while *ready* says so, else 503;
    both demand no token, and tell nothing else.

    At a loopback address a request must name a loopback host, so that no web page reads the
    metrics by a name of its own. Any other address demands *token*, as
    ``Authorization: Bearer TOKEN``.

    Raises:
        InvalidArgument: the address is none, cannot be bound, or demands a token.

    """

    def __init__(
        self,
        registry: CollectorRegistry,
        address: str,
        *,
        token: str = "",
        ready: Callable[[], bool] = lambda: True,
    ) -> None:
        host, port = _place(address)
        if host not in LOOPBACK and not token:
            msg = (
                f"metrics at {address} could be read by every machine that reaches it: "
                "set ONCEWARD_METRICS_TOKEN, or listen at 127.0.0.1"
            )
            raise InvalidArgument(msg)
        try:
            self._server = (_Server6 if ":" in host else _Server)((host, port), _Handler)
        except OSError as error:
            msg = f"cannot serve metrics at {address}: {error}"
            raise InvalidArgument(msg) from error
        self._server.registry, self._server.token, self._server.ready = registry, token, ready
        self._server.loopback = host in LOOPBACK
        self._host = host
        self._thread = Thread(
            target=self._server.serve_forever, name="onceward-metrics", daemon=True
        )
        self._thread.start()

    @property
    def url(self) -> str:
        """Return where the metrics are, with the port that the system chose for 0."""
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"http://{host}:{self._server.server_address[1]}{PATH}"

    def close(self) -> None:
        """Serve no more; requests under way are not waited for."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Server(ThreadingHTTPServer):
    registry: CollectorRegistry
    token: str
    ready: Callable[[], bool]
    loopback: bool
    daemon_threads = True
    block_on_close = False

    def server_bind(self) -> None:
        """Bind the address, without asking a name server for the name of the host."""
        TCPServer.server_bind(self)


class _Server6(_Server):
    address_family = AF_INET6


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    timeout = READ_WITHIN
    server_version, sys_version = "onceward", ""

    def do_GET(self) -> None:
        """Answer with the metrics, or with the state of the process."""
        status = self._probed() or self._refusal()
        if status is not None:
            self._reply(status, "text/plain", b"")
            return
        kind, text = text_of(self.server.registry, self.headers.get("Accept", ""))
        self._reply(HTTPStatus.OK, kind, text)

    do_HEAD = do_GET  # noqa: N815 - the base class names it

    def _probed(self) -> HTTPStatus | None:
        """Return the answer to a probe; None where the request is none."""
        path = urlsplit(self.path).path
        if path == READY:
            return HTTPStatus.OK if self.server.ready() else HTTPStatus.SERVICE_UNAVAILABLE
        return HTTPStatus.OK if path == LIVE else None

    def _refusal(self) -> HTTPStatus | None:
        if self.server.loopback and _host(self.headers.get("Host", "")) not in LOOPBACK:
            return HTTPStatus.MISDIRECTED_REQUEST
        given = self.headers.get("Authorization", "").encode("latin-1", "replace")
        if self.server.token and not hmac.compare_digest(
            given, f"Bearer {self.server.token}".encode()
        ):
            return HTTPStatus.UNAUTHORIZED
        return None if urlsplit(self.path).path == PATH else HTTPStatus.NOT_FOUND

    def _reply(self, status: HTTPStatus, kind: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        if status is HTTPStatus.UNAUTHORIZED:
            self.send_header("WWW-Authenticate", "Bearer")
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Write no line for each request."""


def _place(address: str) -> tuple[str, int]:
    try:
        found = urlsplit(f"//{address}")
        host, port = found.hostname or "", found.port
    except ValueError:
        host, port = "", None
    if not host or port is None or found.path:
        msg = f"{address!r} is no address: write HOST:PORT, such as 127.0.0.1:9464"
        raise InvalidArgument(msg)
    return host, port


def _host(header: str) -> str:
    """Return the name in a Host header; empty where it is none."""
    try:
        return urlsplit(f"//{header}").hostname or ""
    except ValueError:
        return ""
