"""Expose metrics to Prometheus: as text, as an ASGI app, or at a separate address."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from http import HTTPStatus
from typing import Final

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from onceward import Postbox
from onceward.errors import InvalidArgument, OncewardError
from onceward.message.hosts import LOOPBACK, is_loopback, place, url_of
from onceward.serving import Guard, ServerThread, bound, configured

PATH: Final = "/metrics"
LIVE: Final = "/live"
READY: Final = "/ready"


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


def endpoint(registry: CollectorRegistry) -> Callable[[Request], Awaitable[Response]]:
    """Return the endpoint of a route that answers with the metrics."""

    async def metrics(request: Request) -> Response:
        # This reads files, so it must not run on the loop's thread.
        accept = request.headers.get("accept", "")
        kind, text = await run_in_threadpool(text_of, registry, accept)
        return Response(text, headers={"content-type": kind, "cache-control": "no-store"})

    return metrics


def asgi_app(registry: CollectorRegistry) -> Starlette:
    """
    Return an ASGI app that answers GET with the metrics, to mount for a scraper.

    It checks neither address nor token: the mounting app must do that.
    """
    return Starlette(routes=[Route("/{path:path}", endpoint(registry))])


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
            raise InvalidArgument(
                f"metrics at {address} could be read by every machine that reaches it: "
                "set ONCEWARD_METRICS_TOKEN, or listen at 127.0.0.1"
            )
        guarded = Guard(
            _routed(registry, ready),
            hosts={*LOOPBACK, self._host} if loopback else None,
            token=token or None,
            open_paths=(LIVE, READY),
        )
        try:
            listening = bound(self._host, port)
        except OSError as error:
            raise InvalidArgument(f"cannot serve metrics at {address}: {error}") from error
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


def _routed(registry: CollectorRegistry, ready: Callable[[], bool]) -> Starlette:
    """Return the app of all paths of a server."""

    def is_live(_: Request) -> Response:
        return Response()

    def is_ready(_: Request) -> Response:
        return Response(status_code=HTTPStatus.OK if ready() else HTTPStatus.SERVICE_UNAVAILABLE)

    routes = {PATH: endpoint(registry), LIVE: is_live, READY: is_ready}
    return Starlette(routes=[Route(path, answer) for path, answer in routes.items()])
