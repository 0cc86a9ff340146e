"""Tell open pages which agents have changed, by server-sent events."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Final

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse

from onceward.inspector.site import Site, site_of

POLL: Final = 0.25
"""Seconds between two looks at the version of the snapshots."""
QUIET: Final = 60
"""Looks without a change after which a comment keeps the connection open."""
MOST: Final = 64
"""Open streams; a page beyond them is refreshed by hand."""
NAMED: Final = 100
"""Agents that one event names; beyond them it says that all may have changed."""


class Streams:
    """The open streams of a program."""

    def __init__(self) -> None:
        self.open = 0
        self.stopped = False

    async def events(self, site: Site) -> AsyncIterator[str]:
        """Yield an event for each change, until the program stops or the page is gone."""
        self.open += 1
        try:
            version = site.refresher.version
            yield "retry: 2000\n\n"
            quiet = 0
            while not self.stopped:
                await asyncio.sleep(POLL)
                version, keys = site.refresher.changed_since(version)
                quiet = 0 if keys is None or keys else quiet + 1
                if quiet == 0:
                    yield _event(None if keys is None or len(keys) > NAMED else sorted(keys))
                elif quiet % QUIET == 0:
                    yield ": still here\n\n"
        finally:
            self.open -= 1


def _event(keys: list[str] | None) -> str:
    return f"event: changed\ndata: {json.dumps(keys)}\n\n"


async def events(request: Request) -> Response:
    """Answer with a stream of events."""
    streams: Streams = request.app.state.streams
    if streams.open >= MOST:
        return PlainTextResponse("too many pages are open", 503)
    headers = {"x-accel-buffering": "no"}
    found = streams.events(site_of(request))
    return StreamingResponse(found, media_type="text/event-stream", headers=headers)
