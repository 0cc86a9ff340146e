"""
One message after the other to a peer over HTTP, alone and beside a thousand dead peers.

A dead peer takes the connection and never answers, which holds a push until its time limit.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import closing
from typing import Final

from tests.bench.crew import running, until
from tests.bench.mail import UNBOUNDED, note
from tests.bench.measure import Goal, Result, quantile_ms
from tests.bench.over_http import alone, listen
from tests.bench.plan import Plan

from onceward import Postbox
from onceward.http import HttpListener
from onceward.keys import Keys

DEAD: Final = 1000
DELIVER_TIMEOUT: Final = 3.0
GOALS: Final = (Goal("p50_ms", at_most=100.0),)


def dead_peers(plan: Plan) -> Iterator[Result]:
    """Measure the time from a send to its receipt, before and while dead peers are pushed to."""
    ours = plan.room("ours")
    (ours / "other").mkdir()
    keys, listener = Keys(ours), HttpListener("http://127.0.0.1:0")
    Keys(ours / "other").add("alice", secret := keys.create("bob"))
    names = [f"dead{n}" for n in range(plan.messages(DEAD, per_second=2000))]
    for name in names:
        keys.add(name, secret)
    with (
        closing(socket.create_server(("127.0.0.1", 0), backlog=4096)) as silent,
        Postbox(
            ours / "alice.db",
            agent="alice",
            max_pending=UNBOUNDED,
            listeners=[listener],
            deliver_timeout=DELIVER_TIMEOUT,
        ) as box,
        running(listen, ours, listener.url),
    ):
        box.peers.add("bob", (ours / "url").read_text(encoding="utf-8"))
        plan.settle()
        before = sorted(alone(box, plan)().waits)
        dead = f"http://127.0.0.1:{silent.getsockname()[1]}"
        box.peers.add(dict.fromkeys(names, dead))
        box.send_many([(name, note(1)) for name in names])
        until(lambda: any(peer.failures for peer in box.peers.list()))
        beside = sorted(alone(box, plan)().waits)
    yield Result(
        case="dead-peers",
        durability="safe",
        p50_ms=quantile_ms(beside, 0.5),
        p99_ms=quantile_ms(beside, 0.99),
        more={"dead": len(names), "alone_p50_ms": quantile_ms(before, 0.5)},
        goals=GOALS,
    )
