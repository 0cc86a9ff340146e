"""The web shop over real HTTP: processes of the server and the worker are killed meanwhile."""

import os
import random
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx2
import pytest
from tests.children import PYTHON, Child
from tests.ports import free_port
from tests.waiting import until

from onceward import Postbox

pytest.importorskip("fastapi", reason="pip install 'onceward[test]' brings it")
SHOP = Path(__file__).parents[2] / "examples" / "web_shop"
ORDERS = 60
KILL_EVERY = 12


@contextmanager
def running(*command: str, folder: Path) -> Iterator[Child]:
    """Run a program of the example in *folder* until the block ends."""
    environment = {**os.environ, "PYTHONPATH": str(SHOP), "ONCEWARD_HOME": str(folder)}
    with Child([*PYTHON, "-m", *command], cwd=folder, env=environment) as process:
        yield process
        process.stop()


def children(process: Child) -> list[int]:
    """Return the processes that a server has started."""
    listed = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text()
    return [pid for pid in map(int, listed.split()) if b"spawn_main" in _command(pid)]


def _command(pid: int) -> bytes:
    with suppress(FileNotFoundError):
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    return b""


def answered(ask: Callable[[], httpx2.Response]) -> httpx2.Response:
    """Ask as a customer does, again and again while the server's processes are killed."""

    def answer() -> httpx2.Response | None:
        with suppress(httpx2.TransportError):
            return found if (found := ask()).status_code < 500 else None
        return None

    found: httpx2.Response = until(answer)
    return found


def place(client: httpx2.Client, order: int, cents: int) -> int:
    """Place an order and return the status of the answer."""
    body = {"id": f"o-{order}", "cents": cents}
    return answered(lambda: client.post("/orders", json=body)).status_code


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="finds children by /proc")
def test_each_confirmed_order_is_charged_once(tmp_path: Path) -> None:
    """Whatever is killed, an order has one row, one message and one charge."""
    port, dice = free_port(), random.Random(7)
    server = ("uvicorn", "shop:app", "--workers", "2", f"--port={port}", "--log-level=error")
    worker = ("onceward", "work", "billing:billing", "--processes", "2")
    with (
        running(*server, folder=tmp_path) as web,
        httpx2.Client(base_url=f"http://127.0.0.1:{port}", timeout=10, trust_env=False) as client,
    ):
        Postbox(tmp_path / "billing.db", agent="billing", start=False).close()
        killed = 0
        with running(*worker, folder=tmp_path) as work:
            for order in range(ORDERS):
                assert 200 == place(client, order, order)
                if order % KILL_EVERY == KILL_EVERY - 1:
                    os.kill(dice.choice(until(lambda: children(web))), signal.SIGKILL)
                    killed += 1
            os.killpg(work.pid, signal.SIGKILL)
        again, other = place(client, 1, 1), place(client, 1, 2)
        shown = answered(lambda: client.get("/orders/o-1"))
        with running(*worker, folder=tmp_path):
            until(lambda: answered(lambda: client.get("/health")).json()["pending"] == 0)
            until(lambda: len(charges(tmp_path)) >= ORDERS)

    assert (200, 409, {"order": "o-1", "cents": 1}) == (again, other, shown.json())
    assert ORDERS // KILL_EVERY == killed
    with (
        Postbox(tmp_path / "shop.db", start=False) as shop,
        Postbox(tmp_path / "billing.db", start=False) as billing,
    ):
        placed = shop.query("SELECT id, cents FROM orders ORDER BY cents")
        assert [(f"o-{order}", order) for order in range(ORDERS)] == placed
        assert placed == sorted(charges(tmp_path), key=lambda row: row[1])
        assert [] == shop.file.check(billing.file)


def charges(folder: Path) -> list[tuple[str, int]]:
    """Return what was charged."""
    with Postbox(folder / "billing.db", start=False) as box:
        return box.query("SELECT order_id, cents FROM charges")
