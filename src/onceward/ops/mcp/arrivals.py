"""Detect new messages, and notify subscribed clients."""

from __future__ import annotations

from contextlib import suppress
from typing import Any, Final

import anyio
from anyio.abc import TaskStatus
from mcp.server.context import ServerRequestContext
from mcp.server.mcpserver import MCPServer
from mcp.server.session import ServerSession
from mcp.server.subscriptions import InMemorySubscriptionBus, ResourceUpdated
from mcp.shared.exceptions import MCPError
from mcp_types import (
    INVALID_REQUEST,
    EmptyResult,
    SubscribeRequestParams,
    UnsubscribeRequestParams,
)

from onceward import AsyncPostbox
from onceward.errors import OncewardError
from onceward.ops.mcp.asking import ask
from onceward.ops.views.waiting import arrived, newest

EVERY: Final = 0.25
"""Seconds between two checks; a check reads one row."""
INBOX_URI: Final = "onceward://inbox"
THREAD_URI: Final = "onceward://threads/"
SUBSCRIPTIONS: Final = 100
"""Maximum resources that one client of an older protocol can subscribe to."""


class Arrivals:
    """Notifies waiting calls and subscribed clients of each new message."""

    def __init__(self, box: AsyncPostbox, bus: InMemorySubscriptionBus) -> None:
        self._box, self._bus, self._came = box, bus, anyio.Event()
        self._sessions: dict[int, tuple[ServerSession, set[str]]] = {}

    async def watch(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Check for new messages until cancelled; started after the first check."""
        after = None
        while True:
            with suppress(OncewardError):  # the next check may succeed; calls report the error
                after = await self._look(after)
            task_status.started()
            task_status = anyio.TASK_STATUS_IGNORED
            await anyio.sleep(EVERY)

    async def wait(self, seconds: float) -> None:
        """Wait until a message comes, at most *seconds*."""
        with anyio.move_on_after(seconds):
            await self._came.wait()

    def offer_to(self, made: MCPServer[Any]) -> None:
        """Allow clients of protocols before 2026 to subscribe to resources."""
        lowlevel = made._lowlevel_server
        lowlevel.add_request_handler("resources/subscribe", SubscribeRequestParams, self._subscribe)
        lowlevel.add_request_handler(
            "resources/unsubscribe", UnsubscribeRequestParams, self._unsubscribe
        )

    async def _look(self, after: int | None) -> int:
        if after is None:
            return await ask(self._box, newest)
        came = await ask(self._box, arrived, after)
        if not came:
            return after
        self._came.set()
        self._came = anyio.Event()
        threads = {f"{THREAD_URI}{each.correlation_id or each.id}" for each in came}
        for uri in (INBOX_URI, *sorted(threads)):
            await self._tell(uri)
        return came[-1].seq

    async def _tell(self, uri: str) -> None:
        await self._bus.publish(ResourceUpdated(uri=uri))
        for session, uris in list(self._sessions.values()):
            if uri in uris:
                with anyio.move_on_after(1):  # a client that does not read must not delay others
                    await session.send_resource_updated(uri)

    async def _subscribe(
        self, ctx: ServerRequestContext[Any, Any], params: SubscribeRequestParams
    ) -> EmptyResult:
        connection = ctx.session._connection
        key = id(connection)
        if key not in self._sessions:
            self._sessions[key] = (ctx.session, set())
            connection.exit_stack.callback(self._sessions.pop, key, None)
        uris = self._sessions[key][1]
        if len(uris) >= SUBSCRIPTIONS:
            msg = f"a client can subscribe to at most {SUBSCRIPTIONS} resources: unsubscribe first"
            raise MCPError(INVALID_REQUEST, msg)
        uris.add(str(params.uri))
        return EmptyResult()

    async def _unsubscribe(
        self, ctx: ServerRequestContext[Any, Any], params: UnsubscribeRequestParams
    ) -> EmptyResult:
        found = self._sessions.get(id(ctx.session._connection))
        if found is not None:
            found[1].discard(str(params.uri))
        return EmptyResult()
