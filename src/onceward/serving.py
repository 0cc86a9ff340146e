"""Serve an ASGI application from this process: socket, thread, allowed hosts and token."""

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
"""Requests and idle connections that are served at a time; others get status 503."""
STOP_WITHIN: Final = 2
"""Seconds for requests to end when the server stops."""


def bound(host: str, port: int) -> socket.socket:
    """
    Return a listening socket; raise OSError if the address is in use or invalid.

    The protocol is given because asyncio sets TCP_NODELAY only then; without it each response waits
    for 40 ms.
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
    """Return the server configuration of an application: no log, no server header."""
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
    """An application that a separate thread serves at a socket until it is closed."""

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
        """Return the port; for port 0 the system chose it."""
        return int(self._listening.getsockname()[1])

    def close(self) -> None:
        """Stop serving; running requests have a moment to end."""
        self._server.should_exit = True
        self._thread.join()
        self._listening.close()

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=self._loop) as runner:
            runner.run(self._server.serve(sockets=[self._listening]))


def is_token(given: str, token: str) -> bool:
    """Return whether a text is the token, in constant time."""
    return hmac.compare_digest(given.encode("utf-8", "replace"), token.encode())


def route_path(scope: Scope) -> str:
    """Return the path of a request without the prefix under which the application is served."""
    path: str = scope["path"]
    return path.removeprefix(scope.get("root_path", "").rstrip("/"))


class Guard:
    """
    ASGI middleware: refuse host names other than *hosts*, and requests without the token.

    This stops DNS rebinding: a page of another site whose name was made to resolve to this machine
    sends that name. Without *hosts* every name is accepted, without *token* every request;
    *open_paths* need no token.
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
        """Answer or refuse a request."""
        refusal = self.refusal(scope) if scope["type"] == "http" else None
        await (refusal or self._app)(scope, receive, send)

    def refusal(self, scope: Scope) -> Response | None:
        """Return the response to a refused request."""
        headers = Headers(scope=scope)
        if self._hosts is not None and host_of(headers.get("host", "")) not in self._hosts:
            return PlainTextResponse("this host name is not served here", 421)
        if self._token is None or route_path(scope) in self._open:
            return None
        kind, _, given = headers.get("authorization", "").partition(" ")
        if kind.lower() == "bearer" and is_token(given, self._token):
            return None
        return self.without_token(scope)

    def without_token(self, _: Scope) -> Response | None:
        """Return the response to a request without the token."""
        told = "give the token: Authorization: Bearer TOKEN"
        return PlainTextResponse(told, 401, {"www-authenticate": "Bearer"})
