"""Serve an application of ASGI from this process: a socket, a thread, and who may ask."""

from __future__ import annotations

import asyncio
import hmac
import socket
from collections.abc import Callable, Iterable
from threading import Thread
from typing import Any, Final

import uvicorn
from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from onceward.message.hosts import host_of

BACKLOG: Final = 256
CONNECTIONS: Final = 200
"""Requests and idle connections that are served at a time; others are told to come again."""
STOP_WITHIN: Final = 2
"""Seconds that requests have to end when the server stops."""


def bound(host: str, port: int) -> socket.socket:
    """
    Return a socket that takes connections; raise OSError where the address is taken or none.

    Its protocol is named: asyncio sets TCP_NODELAY only then, and each answer of a connection
    without it waits for 40 ms.
    """
    [(family, _, _, _, address), *_] = socket.getaddrinfo(
        host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )
    made = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind(address)
        made.listen(BACKLOG)
    except OSError:
        made.close()
        raise
    return made


def configured(app: ASGIApp, **more: Any) -> uvicorn.Config:
    """Return how an application is served: it logs nothing and does not say what serves it."""
    settings: dict[str, Any] = {
        "log_config": None,
        "access_log": False,
        "server_header": False,
        "proxy_headers": False,
        "timeout_graceful_shutdown": STOP_WITHIN,
        "limit_concurrency": CONNECTIONS,
    }
    return uvicorn.Config(app, **(settings | more))


class ServerThread:
    """An application that is served at a socket by a thread of its own, until it is closed."""

    def __init__(
        self,
        config: uvicorn.Config,
        listening: socket.socket,
        name: str,
        *,
        loop: Callable[[], asyncio.AbstractEventLoop] | None = None,
    ) -> None:
        self._server, self._listening, self._loop = uvicorn.Server(config), listening, loop
        self._thread = Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    @property
    def port(self) -> int:
        """Return the port, which the system chose for 0."""
        return int(self._listening.getsockname()[1])

    def close(self) -> None:
        """Serve no more; requests under way have a moment to end."""
        self._server.should_exit = True
        self._thread.join()
        self._listening.close()

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=self._loop) as runner:
            runner.run(self._server.serve(sockets=[self._listening]))


def is_token(given: str, token: str) -> bool:
    """Return whether a text is the token; how much of it is right cannot be measured."""
    return hmac.compare_digest(given.encode("utf-8", "replace"), token.encode())


class Guard:
    """
    ASGI middleware: refuse other host names than *hosts*, and requests without the token.

    A page of another site whose name was made to mean this machine bears that name. Without
    *hosts* each name is answered, without *token* each request; *open_paths* need no token.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        hosts: Iterable[str] | None = None,
        token: str | None = None,
        open_paths: Iterable[str] = (),
    ) -> None:
        self._app, self._token, self._open = app, token, frozenset(open_paths)
        self._hosts = None if hosts is None else frozenset(host.lower() for host in hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer, or refuse."""
        refusal = self.refusal(scope) if scope["type"] == "http" else None
        await (refusal or self._app)(scope, receive, send)

    def refusal(self, scope: Scope) -> Response | None:
        """Return the answer to a request that may not pass."""
        headers = Headers(scope=scope)
        if self._hosts is not None and host_of(headers.get("host", "")) not in self._hosts:
            return PlainTextResponse("nothing is served under this host name", 421)
        if self._token is None or scope["path"] in self._open:
            return None
        kind, _, given = headers.get("authorization", "").partition(" ")
        if kind.lower() == "bearer" and is_token(given, self._token):
            return None
        return self.without_token(scope)

    def without_token(self, _: Scope) -> Response | None:
        """Return the answer to a request without the token."""
        told = "give the token: Authorization: Bearer TOKEN"
        return PlainTextResponse(told, 401, {"www-authenticate": "Bearer"})
