"""Notify open pages of changed agents, by server-sent events."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from itertools import count
from typing import Final

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse

from onceward.ops.inspector.refresher import INTERVAL
from onceward.ops.inspector.site import Site, site_of

POLL: Final = 0.25
"""Seconds between two checks of the snapshots' version."""
QUIET: Final = 60
"""Checks without a change after which a comment keeps the connection open."""
MOST: Final = 64
"""Maximum open streams; further pages must be refreshed manually."""
SOME: Final = 4
"""Maximum files of one page that are checked more often if a full check takes long."""
LOOKS: Final = 4
"""Checks of the version per check of those files."""
NAMED: Final = 100
"""Maximum agents in one event; above that it says that all may have changed."""


MOUNTED: Final = 20
"""Checks after which a stream inside another application ends: a server that stops waits for it."""


class Streams:
    """The open streams of a program; each ends after *most* checks, and its page opens another."""

    def __init__(self, most: int | None = None) -> None:
        self.open, self._most = 0, most
        self.stopped = False

    def stop(self) -> None:
        """End the streams: the program stops."""
        self.stopped = True

    async def events(self, site: Site, keys: list[str], since: int | None) -> AsyncIterator[str]:
        """Yield an event for each change *since* a version, until the page or program is gone."""
        self.open += 1
        try:
            version = site.refresher.version if since is None else since
            yield f"retry: 2000\nid: {version}\n\n"
            quiet = 0
            for _ in count() if self._most is None else range(self._most):
                if self.stopped:
                    break
                await asyncio.sleep(POLL)
                if site.refresher.pause > INTERVAL and quiet % LOOKS == LOOKS - 1:
                    await run_in_threadpool(site.refresher.refresh_some, keys)
                version, changed = site.refresher.changed_since(version)
                quiet = 0 if changed is None or changed else quiet + 1
                if quiet == 0:
                    some = changed is not None and len(changed) <= NAMED
                    yield _event(version, sorted(changed or ()) if some else None)
                elif quiet % QUIET == 0:
                    yield ": still here\n\n"
        finally:
            self.open -= 1


def _event(version: int, keys: list[str] | None) -> str:
    return f"event: changed\nid: {version}\ndata: {json.dumps(keys)}\n\n"


async def events(request: Request) -> Response:
    """Answer with a stream of events."""
    streams: Streams = request.app.state.streams
    if streams.open >= MOST:
        return PlainTextResponse("too many pages are open", 503)
    headers = {"x-accel-buffering": "no"}
    keys = request.query_params.getlist("key")[:SOME]
    last = request.headers.get("last-event-id", "")
    since = int(last) if last.isascii() and last.isdigit() else None
    found = streams.events(site_of(request), keys, since)
    return StreamingResponse(found, media_type="text/event-stream", headers=headers)
