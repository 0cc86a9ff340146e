"""A home with alice, whose file an MCP server has, and bob, who writes to it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from mcp import Client
from onceward import AsyncPostbox, Postbox
from onceward.message.clock import SystemClock
from onceward.ops.mcp import McpOptions, server
from onceward.testing import Controls, ManualClock

Serve = Callable[..., AbstractAsyncContextManager[Client]]


class Refused(Exception):
    """A tool answered with an error; its text is the message."""


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """Return a home with the file of alice."""
    Postbox(tmp_path / "alice.db", agent="alice", start=False).close()
    return tmp_path


@pytest.fixture
def bob(home: Path) -> Iterator[Postbox]:
    """Yield the file of bob, open with its engines."""
    with Postbox(home / "bob.db", agent="bob") as box:
        yield box


@pytest.fixture
def clock() -> ManualClock:
    """Return a clock that stands still: now, as bob's stamps in the file are."""
    return ManualClock(SystemClock().now())


@pytest.fixture
def serve(home: Path, clock: ManualClock) -> Serve:
    """Return a call that serves alice within this process and yields a client."""

    @asynccontextmanager
    async def serving(
        mode: Any = "auto", *, hear: Any = None, start: bool = False, **options: Any
    ) -> AsyncIterator[Client]:
        async with (
            AsyncPostbox(home / "alice.db", testing=Controls(clock=clock), start=start) as box,
            server(box, McpOptions(**options)) as made,
            Client(made, mode=mode, message_handler=hear) as client,
        ):
            yield client

    return serving


async def call(client: Client, tool: str, *, meta: Any = None, **given: Any) -> Any:
    """Call a tool and return its structured answer; raise Refused with the text of an error."""
    answer = await client.call_tool(tool, given, meta=meta)
    if answer.is_error:
        raise Refused("".join(getattr(part, "text", "") for part in answer.content))
    return answer.structured_content
