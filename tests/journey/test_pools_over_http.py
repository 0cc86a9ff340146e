"""Members of a pool on two machines, over HTTP: they share its messages, also when one is away."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from tests.ports import free_port
from tests.waiting import until

from onceward import Agent, Context, Postbox, Tuning
from onceward.http import HttpListener
from onceward.keys import Keys

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

JOBS = 24


def member(name: str) -> Agent:
    """Return an agent that notes each job in its file."""
    agent = Agent(name)

    @agent.on("job")
    def job(body: int, ctx: Context) -> None:
        ctx.tx.execute("INSERT INTO ledger VALUES (?)", (body,))

    return agent


@contextmanager
def machine(home: Path, name: str, port: int, shop: str) -> Iterator[Postbox]:
    """Run a member in a home of its own, and serve it at a port."""
    listener = HttpListener(f"http://127.0.0.1:{port}")
    with Postbox(home / f"{name}.db", agent=member(name), listeners=[listener]) as box:
        box.peers.add("shop", shop)
        yield box


def prepare(at_shop: Path, home: Path, name: str) -> None:
    """Create the file of a member, and the key that it shares with its sender."""
    home.mkdir()
    Keys(home).add("shop", Keys(at_shop).create(name))
    with Postbox(home / f"{name}.db", agent=name, start=False) as box, box.begin() as tx:
        tx.execute("CREATE TABLE ledger (n)")


def ledger(home: Path, name: str) -> list[int]:
    """Return the jobs that had their effect at a member."""
    with Postbox(home / f"{name}.db", start=False) as box:
        return [n for (n,) in box.query("SELECT n FROM ledger")]


def acked(shop: Postbox) -> int:
    """Return how many messages have been handled."""
    [(count,)] = shop.query("SELECT count(*) FROM onceward_outbox WHERE state = 'acked'")
    return int(count)


def test_two_machines_share_a_pool_and_one_is_away(tmp_path: Path) -> None:
    """What the absent one cannot know goes to the other; together they handle each job once."""
    at_shop, one, two = (tmp_path / name for name in ("shop", "one", "two"))
    at_shop.mkdir()
    prepare(at_shop, one, "t1")
    prepare(at_shop, two, "t2")
    listener, ports = HttpListener("http://127.0.0.1:0"), (free_port(), free_port())
    with Postbox(
        at_shop / "shop.db", agent="shop", listeners=[listener], tuning=Tuning(breaker_open_for=0.2)
    ) as shop:
        for name, port in zip(("t1", "t2"), ports, strict=True):
            shop.peers.add(name, f"http://127.0.0.1:{port}")
            shop.pools.add("thumbs", name, credits=2)
        with machine(two, "t2", ports[1], listener.url):
            with machine(one, "t1", ports[0], listener.url):
                for n in range(JOBS // 2):
                    shop.send("thumbs", n, type="job")
                until(lambda: acked(shop) == JOBS // 2)
            for n in range(JOBS // 2, JOBS):
                shop.send("thumbs", n, type="job")
            until(lambda: acked(shop) >= JOBS - 2)
            with machine(one, "t1", ports[0], listener.url):
                until(lambda: acked(shop) == JOBS)
    done = ledger(one, "t1"), ledger(two, "t2")

    assert list(range(JOBS)) == sorted(done[0] + done[1])
    assert all(done)
