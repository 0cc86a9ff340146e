"""Run an MCP server over stdio or streamable HTTP until a signal or the end of input."""

from __future__ import annotations

import signal
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Thread
from typing import Any, Final, cast

import anyio
import anyio.from_thread
import anyio.lowlevel
import uvicorn
from anyio.lowlevel import EventLoopToken
from anyio.streams.memory import MemoryObjectSendStream
from mcp.server.mcpserver import MCPServer
from mcp.server.stdio import stdio_server
from mcp.server.transport_security import TransportSecuritySettings

from onceward import AsyncPostbox
from onceward.message.hosts import LOOPBACK
from onceward.ops.mcp.options import McpOptions
from onceward.ops.mcp.server import server
from onceward.serving import Guard, configured

MOST_BYTES: Final = 4 * 1024 * 1024
"""Maximum bytes of one request over HTTP."""


async def serve_stdio(path: Path, options: McpOptions) -> int:
    """Serve one client until its input ends; return 0, or the number of a stop signal."""
    ended = list[int]()
    async with (
        AsyncPostbox(path, start=not options.read_only) as box,
        server(box, options) as made,
        anyio.create_task_group() as tasks,
    ):
        tasks.start_soon(_on_signal, ended, tasks.cancel_scope.cancel)
        await _speak(made)
        tasks.cancel_scope.cancel()
    return ended[0] if ended else 0


async def serve_http(
    path: Path, options: McpOptions, listening: socket.socket, *, token: str | None, host: str
) -> int:
    """Serve clients at a socket until a stop signal, and return its number."""
    ended = list[int]()
    async with (
        AsyncPostbox(path, start=not options.read_only) as box,
        server(box, options) as made,
        anyio.create_task_group() as tasks,
    ):
        web = _Web(_web_config(made, host, token))
        tasks.start_soon(_on_signal, ended, web.stop)
        await web.serve(sockets=[listening])
        tasks.cancel_scope.cancel()
    return ended[0] if ended else 0


async def _on_signal(ended: list[int], stop: Callable[[], None]) -> None:
    """Record the number of the first stop signal, and call *stop*."""
    with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async for number in signals:
            ended.append(number)
            stop()


def _web_config(made: MCPServer[Any], host: str, token: str | None) -> uvicorn.Config:
    app = made.streamable_http_app(
        transport_security=_hosts(host, token), max_request_body_size=MOST_BYTES
    )
    return configured(Guard(app, token=token), lifespan="on")


def _hosts(host: str, token: str | None) -> TransportSecuritySettings:
    """Return the host names that requests may use, against foreign web pages."""
    if token is not None:
        return TransportSecuritySettings(enable_dns_rebinding_protection=False)
    hosts = sorted({*LOOPBACK, host})
    names = [f"[{each}]:*" if ":" in each else f"{each}:*" for each in hosts]
    return TransportSecuritySettings(
        allowed_hosts=names, allowed_origins=[f"http://{name}" for name in names]
    )


class _Web(uvicorn.Server):
    """A web server that leaves signals to the program."""

    def stop(self) -> None:
        """Stop soon: running requests get a moment to end."""
        self.should_exit = True

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Capture no signals."""
        yield


class _Lines:
    """Lines of stdin, read by a thread that does not keep a stopping process alive."""

    async def __aiter__(self) -> AsyncIterator[str]:
        """Yield lines until the input ends."""
        send, receive = anyio.create_memory_object_stream[str](0)
        token = anyio.lowlevel.current_token()
        Thread(target=_read, args=(send, token), name="onceward-mcp-stdin", daemon=True).start()
        async with receive:
            async for line in receive:
                yield line


def _read(send: MemoryObjectSendStream[str], token: EventLoopToken) -> None:
    """Pass line by line, each after the previous one was taken."""
    with suppress(anyio.BrokenResourceError, anyio.RunFinishedError, RuntimeError):
        with open(0, "rb", closefd=False) as file:
            for line in file:
                anyio.from_thread.run(send.send, line.decode(errors="replace"), token=token)
        anyio.from_thread.run(send.aclose, token=token)


async def _speak(made: MCPServer[Any]) -> None:
    lowlevel = made._lowlevel_server
    lines = cast("anyio.AsyncFile[str]", _Lines())
    async with stdio_server(stdin=lines) as (read, write):
        await lowlevel.run(read, write, lowlevel.create_initialization_options())
