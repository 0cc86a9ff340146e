"""NATS JetStream beside us: a server process with a file store that is synced at every publish."""

from __future__ import annotations

import asyncio
import importlib
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from tests.bench.rivals import BATCH, LEAST, Rival
from tests.ports import free_port

CONFIG: Final = (
    'listen: "127.0.0.1:{port}"\njetstream {{ store_dir: "{store}", sync_interval: always }}\n'
)
START_FOR: Final = 10.0


class JetStream:
    """A durable pull consumer of one stream; publishes are confirmed, acknowledgements too."""

    name = "NATS JetStream"
    durability = "file store, sync_interval: always"
    promise = LEAST

    def __init__(self, runner: asyncio.Runner, url: str, body: str) -> None:
        self._runner, self._body = runner, body.encode()
        runner.run(self._open(url))

    async def _open(self, url: str) -> None:
        self._nats = await importlib.import_module("nats").connect(url)
        self._stream = self._nats.jetstream()
        await self._stream.add_stream(name="bench", subjects=["bench"])
        self._consumer: Any = await self._stream.pull_subscribe("bench", durable="bench")

    def cycle(self) -> None:
        """Publish, fetch one, acknowledge it and wait for the confirmation."""
        self._runner.run(self._cycle())

    async def _cycle(self) -> None:
        await self._stream.publish("bench", self._body)
        [message] = await self._consumer.fetch(1)
        await message.ack_sync()

    def stream(self, count: int) -> None:
        """Publish a hundred at a time, fetch a hundred at a time, acknowledge together."""
        self._runner.run(self._many(count))

    async def _many(self, count: int) -> None:
        for _ in range(0, count, BATCH):
            await asyncio.gather(*(self._stream.publish("bench", self._body) for _ in range(BATCH)))
        for _ in range(0, count, BATCH):
            left = BATCH
            while left:
                found = await self._consumer.fetch(left)
                await asyncio.gather(*(message.ack_sync() for message in found))
                left -= len(found)

    def close(self) -> None:
        """Leave the server."""
        self._runner.run(self._nats.close())


@contextmanager
def jetstream(folder: Path, body: str) -> Iterator[Rival]:
    """Start a server for a block; raises ImportError where server or client is missing."""
    with server(folder) as url, asyncio.Runner() as runner:
        made = JetStream(runner, url, body)
        try:
            yield made
        finally:
            made.close()


@contextmanager
def server(folder: Path) -> Iterator[str]:
    """Start a server that syncs every message; yield its url."""
    importlib.import_module("nats")
    beside = Path(sys.executable).with_name("nats-server")
    program = str(beside) if beside.exists() else shutil.which("nats-server")
    if program is None:
        msg = "no nats-server: install onceward[bench]"
        raise ImportError(msg)
    port = free_port()
    config = folder / "nats.conf"
    config.write_text(CONFIG.format(port=port, store=folder / "store"), encoding="utf-8")
    process = subprocess.Popen([program, "-c", str(config)], stderr=subprocess.DEVNULL)
    try:
        await_port(port)
        yield f"nats://127.0.0.1:{port}"
    finally:
        process.kill()  # what it holds is thrown away
        process.wait()


def await_port(port: int) -> None:
    """Wait until a server listens; raise TimeoutError if it does not."""
    limit = time.monotonic() + START_FOR
    while time.monotonic() < limit:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.02)
    msg = f"no server listened on port {port} in {START_FOR} s"
    raise TimeoutError(msg)
