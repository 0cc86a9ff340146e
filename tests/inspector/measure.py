"""
Measure how long every page takes: ``python -m tests.inspector.measure FOLDER [MESSAGES] [AGENTS]``.

In FOLDER, which is new, it makes a file with so many messages and a home of so many agents, by
default a million and a thousand, and prints the least and the most milliseconds of each page,
and of those of a message with a body of 15 MB.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import apsw
from starlette.testclient import TestClient
from tests.inspector.homes import crowd, swollen

from onceward import Postbox
from onceward.ops.inspector import app
from onceward.testing import ManualClock

LAPS = 5
BIG = (
    "/", "/rates.json", "/agents/big", "/agents/big/rates.json", "/agents/big/messages",
    "/agents/big/messages?box=inbox", "/agents/big/messages?box=dead",
    "/agents/big/messages?box=inbox&q=state:pending", "/agents/big/messages?q=nothing",
    "/agents/big/messages?q=until:2026-01-01", "/agents/big/messages?q=type:s*+since:1h",
    "/agents/big/messages/{id}", "/agents/big/conversations/{id}", "/dead", "/search?q=nothing",
    "/search?q={id}",
)  # fmt: skip
MANY = (
    "/", "/?sort=out", "/?show=trouble", "/problems", "/rates.json", "/agents/agent-0001",
    "/agents/agent-0001/messages", "/dead", "/search?q=agent-00", "/search?q=nothing",
)  # fmt: skip
LARGE = (
    "/agents/near/messages/{id}", "/agents/far/messages/{id}", "/agents/near/conversations/{id}",
    "/agents/near/messages?q=nothing", "/agents/far/messages?box=inbox&q=nothing",
    "/search?q=nothing",
)  # fmt: skip


def main() -> None:
    """Make what is asked for, and measure."""
    folder = Path(sys.argv[1])
    messages, agents = (
        int(sys.argv[at]) if len(sys.argv) > at else default
        for at, default in ((2, 1_000_000), (3, 1_000))
    )
    (folder / "big").mkdir(parents=True)
    swollen(folder / "big" / "big.db", messages)
    con = apsw.Connection(str(folder / "big" / "big.db"))
    [(found,)] = con.execute(
        "SELECT id FROM onceward_outbox WHERE seq = ?", (messages // 2,)
    ).fetchall()
    con.close()
    crowd(folder / "many", agents, ManualClock(time.time_ns() // 1_000_000))
    heavy = _heavy(folder / "heavy")
    for place, pages, one in (("big", BIG, found), ("many", MANY, ""), ("heavy", LARGE, heavy)):
        _measure(folder / place, [page.format(id=one) for page in pages])


def _heavy(folder: Path) -> str:
    """Make two agents, and a message between them whose body has 15 MB; return its id."""
    folder.mkdir()
    body = {str(n): "x" * 1000 for n in range(15_000)}
    with (
        Postbox(folder / "near.db", agent="near", max_body=16 << 20) as near,
        Postbox(folder / "far.db", agent="far", start=False, max_body=16 << 20) as far,
    ):
        near.peers.add("far", f"file:{far.file.path}")
        sent = near.send("far", body)
        assert 0 == near.flush(timeout=60)
    return sent


def _measure(place: Path, pages: list[str]) -> None:
    made = app([place])
    began = time.perf_counter()
    made.state.site.refresher.refresh()
    print(f"{1000 * (time.perf_counter() - began):8.1f} ms  first look at {place.name}")  # noqa: T201
    web = TestClient(made, base_url="http://localhost")
    for page in pages:
        laps = sorted(_lap(web, page) for _ in range(LAPS))
        print(f"{laps[0]:8.1f} {laps[-1]:8.1f} ms  {page}")  # noqa: T201
    made.state.site.refresher.stop()


def _lap(web: TestClient, page: str) -> float:
    began = time.perf_counter()
    answer = web.get(page)
    took = time.perf_counter() - began
    assert 200 == answer.status_code, answer.text
    return 1000 * took


if __name__ == "__main__":
    main()
