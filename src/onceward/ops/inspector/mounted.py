"""Serve the pages inside another application, which decides who may read them."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Iterable
from inspect import isawaitable, iscoroutinefunction
from pathlib import Path
from typing import Any, Final

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from onceward import AsyncPostbox, Postbox
from onceward.errors import InvalidArgument
from onceward.ops.inspector.application import made_of
from onceward.ops.inspector.guard import with_headers
from onceward.ops.inspector.visit import VISIT, Reader, Visit, prefix_of, rooted

Allowed = Reader | Response | None
Allow = Callable[[Request], Allowed | Awaitable[Allowed]]
Target = Postbox | AsyncPostbox | str | os.PathLike[str]
REFUSED: Final = "you may not read these pages"


def refuse_all(_: Request) -> None:
    """Refuse every reader."""


def inspector(
    *targets: Target,
    allow: Allow = refuse_all,
    audit: str | os.PathLike[str] | None = None,
    redact: Iterable[str] = (),
    report_at: str | os.PathLike[str] | None = None,
    trace_url: str | None = None,
    secret: str | None = None,
) -> ASGIApp:
    """
    Return the inspector as an ASGI application to mount in another one, under any path.

    *targets* are open postboxes, homes and files; a postbox is used by its path only. *allow* is
    called with each request, a function in a thread, and returns its ``Reader``, ``None`` to refuse
    it, or a response, such as a redirect to a log-in page. By default every request is refused.
    Nothing is changed unless *audit* names a file for the log of actions and the reader may write.
    Forms are accepted only from pages of this process, or of all that have the same *secret*. Of
    the others see ``app``. Files are read by threads that start with the first request.

    Raises:
        InvalidArgument: there is no target, or an argument has another type; or a pattern or an
            address is invalid.

    """
    if not callable(allow):
        raise InvalidArgument(f"allow={allow!r} must be a function that returns a Reader")
    made = made_of(
        [_path(each) for each in targets],
        audit=audit,
        redact=redact,
        report_at=report_at,
        trace_url=trace_url,
        secret=secret,
        mounted=True,
    )
    return _Mounted(made, allow)


def _path(target: Target) -> Path:
    if isinstance(target, Postbox | AsyncPostbox):
        return target.file.path
    if not isinstance(target, str | os.PathLike):
        raise InvalidArgument(f"{target!r} is not a postbox, a home or a file")
    return Path(target)


class _Mounted:
    """Asks the application about the reader of each request before it is answered."""

    def __init__(self, made: Starlette, allow: Allow) -> None:
        self._made, self._allow = made, allow

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer or refuse a request."""
        if scope["type"] != "http":
            await self._made(scope, receive, send)
            return
        scope = rooted(scope)
        send = with_headers(scope, send)
        reader = await self._reader(Request(scope))
        if isinstance(reader, Response):
            await reader(scope, receive, send)
            return
        self._made.state.site.refresher.start()
        visit = VISIT.set(Visit(prefix_of(scope), reader))
        try:
            await self._made(scope, receive, send)
        finally:
            VISIT.reset(visit)

    async def _reader(self, request: Request) -> Reader | Response:
        """Return the reader, or the response to a request that is not allowed."""
        try:
            found: Any = await self._asked(request)
        except HTTPException as error:
            return PlainTextResponse(error.detail, error.status_code, error.headers)
        match found:
            case Reader() | Response():
                return found
            case None:
                return PlainTextResponse(REFUSED, 403)
        raise InvalidArgument(f"allow must return a Reader, a response or None, not {found!r}")

    async def _asked(self, request: Request) -> Any:
        called = self._allow
        if iscoroutinefunction(called):
            return await called(request)
        found = await run_in_threadpool(called, request)
        return await found if isawaitable(found) else found
