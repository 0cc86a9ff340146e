"""Expose metrics to Prometheus: as text, as an ASGI app, or at a separate address."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable, MutableMapping
from http import HTTPStatus
from typing import Any, Final

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder

from onceward import Postbox
from onceward.errors import InvalidArgument, OncewardError
from onceward.message.hosts import LOOPBACK, is_loopback, place, url_of
from onceward.serving import Guard, ServerThread, bound, configured

PATH: Final = "/metrics"
LIVE: Final = "/live"
READY: Final = "/ready"

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Coroutine[Any, Any, None]]


def new_registry() -> CollectorRegistry:
    """Return an empty registry; the process's own has metrics of Python and other libraries."""
    return CollectorRegistry()


def are_ready(boxes: Iterable[Postbox]) -> bool:
    """Return whether no agent is failing, by ``box.file.health``."""
    try:
        return all(box.file.health().verdict != "failing" for box in boxes)
    except OncewardError:
        return False


def text_of(registry: CollectorRegistry, accept: str = "") -> tuple[str, bytes]:
    """Return content type and text of all metrics, in the format that *accept* asks for."""
    encode, content_type = choose_encoder(accept)
    return content_type, encode(registry)


def asgi_app(registry: CollectorRegistry) -> App:
    """
    Return an ASGI app that answers GET with the metrics, to mount for a scraper.

    It checks neither address nor token: the mounting app must do that.
    """

    async def app(scope: Scope, _: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        if scope["method"] not in {"GET", "HEAD"}:
            await _answer(send, HTTPStatus.METHOD_NOT_ALLOWED, "text/plain", b"")
            return
        headers = dict(scope["headers"])
        accept = headers.get(b"accept", b"").decode("latin-1")
        # This reads files, so it must not run on the loop's thread.
        kind, text = await asyncio.to_thread(text_of, registry, accept)
        await _answer(send, HTTPStatus.OK, kind, text if scope["method"] == "GET" else b"")

    return app


async def _answer(send: Send, status: int, kind: str, body: bytes) -> None:
    headers = [(b"content-type", kind.encode()), (b"cache-control", b"no-store")]
    await send({"type": "http.response.start", "status": int(status), "headers": headers})
    await send({"type": "http.response.body", "body": body})


class MetricsServer:
    """
    Serve ``/metrics`` at *address*, ``HOST:PORT``, on a separate thread.

    ``/live`` answers 200 while the process runs, ``/ready`` 200 while *ready* returns True, else
    503; both need no token, and reveal nothing else.

    At a loopback address a request must name a loopback host, so that no web page reads the metrics
    through its own host name. Any other address requires *token*, as ``Authorization: Bearer
    TOKEN``.

    Raises:
        InvalidArgument: the address is invalid, cannot be bound, or requires a token.

    """

    def __init__(
        self,
        registry: CollectorRegistry,
        address: str,
        *,
        token: str = "",
        ready: Callable[[], bool] = lambda: True,
    ) -> None:
        self._host, port = place(address)
        loopback = is_loopback(self._host)
        if not loopback and not token:
            msg = (
                f"metrics at {address} could be read by every machine that reaches it: "
                "set ONCEWARD_METRICS_TOKEN, or listen at 127.0.0.1"
            )
            raise InvalidArgument(msg)
        guarded = Guard(
            _routed(registry, ready),
            hosts={*LOOPBACK, self._host} if loopback else None,
            token=token or None,
            open_paths=(LIVE, READY),
        )
        try:
            listening = bound(self._host, port)
        except OSError as error:
            msg = f"cannot serve metrics at {address}: {error}"
            raise InvalidArgument(msg) from error
        self._served = ServerThread(
            configured(guarded, lifespan="off"), listening, "onceward-metrics"
        )

    @property
    def url(self) -> str:
        """Return the url of the metrics, with the port that the system chose for 0."""
        return url_of(self._host, self._served.port, PATH)

    def close(self) -> None:
        """Stop serving; running requests get a moment to end."""
        self._served.close()


def _routed(registry: CollectorRegistry, ready: Callable[[], bool]) -> App:
    """Return the app of all paths of a server."""
    metrics = asgi_app(registry)

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        status = HTTPStatus.OK
        if scope["path"] == PATH:
            await metrics(scope, receive, send)
            return
        if scope["path"] == READY and not await asyncio.to_thread(ready):
            status = HTTPStatus.SERVICE_UNAVAILABLE
        elif scope["path"] not in {LIVE, READY}:
            status = HTTPStatus.NOT_FOUND
        await _answer(send, status, "text/plain", b"")

    return app
