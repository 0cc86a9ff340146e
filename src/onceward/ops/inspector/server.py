"""Serve the inspector from a thread of its own, until it is told to stop."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Thread
from typing import Final

import uvicorn
from starlette.applications import Starlette

STOP_WITHIN: Final = 2
"""Seconds that requests have to end when the program stops."""


def bound(host: str, port: int) -> socket.socket:
    """Return a socket that listens; raise OSError where the address is taken or none."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.create_server((host, port), family=family)


@contextmanager
def serving(made: Starlette, listening: socket.socket) -> Iterator[None]:
    """Serve an application at a socket while the block runs."""
    config = uvicorn.Config(
        made,
        log_config=None,
        access_log=False,
        server_header=False,
        lifespan="on",
        timeout_graceful_shutdown=STOP_WITHIN,
        limit_concurrency=200,
    )
    server = uvicorn.Server(config)
    thread = Thread(target=server.run, args=([listening],), name="onceward-inspector-http")
    thread.start()
    try:
        yield
    finally:
        made.state.streams.stopped = True
        server.should_exit = True
        thread.join()
        listening.close()
