"""Every case by its name; its module is loaded when it is called."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from typing import Final, cast

from tests.bench.measure import Result
from tests.bench.plan import Plan

Case = Callable[[Plan], Iterator[Result]]

CASES: Final = {
    "send": "tests.bench.send:send",
    "send-many": "tests.bench.send:send_many",
    "group": "tests.bench.group:group",
    "deliver": "tests.bench.deliver:deliver",
    "http": "tests.bench.over_http:over_http",
    "nats": "tests.bench.over_nats:over_nats",
    "slow-disk": "tests.bench.slow_disk:slow_disk",
    "dead-peers": "tests.bench.dead_peers:dead_peers",
    "wake": "tests.bench.wake:wake",
    "backlog": "tests.bench.backlog:backlog",
    "peers": "tests.bench.peers:peers",
    "step": "tests.bench.steps:steps",
    "processes": "tests.bench.processes:processes",
    "claim-group": "tests.bench.claims:claim_group",
    "runs": "tests.bench.runs:runs",
    "history": "tests.bench.history:history",
    "topics": "tests.bench.topics:topics",
    "fanout": "tests.bench.fanout:fanout",
    "recipients": "tests.bench.recipients:recipients",
    "large-body": "tests.bench.large_body:large_body",
    "memory": "tests.bench.memory:memory",
    "growth": "tests.bench.growth:growth",
    "fleet-lanes": "tests.bench.lanes:lanes",
    "fleet-log": "tests.bench.shipped:shipped",
    "price": "tests.bench.price:price",
}

SPARK_CASES: Final = {
    "fleet": "tests.bench.fleet:fleet",
    "fleet-reconcile": "tests.bench.reconcile:reconcile",
}
"""Cases that need the extra ``onceward[spark]``; without it they say that they were skipped."""


def case(name: str) -> Case:
    """Return the case of that name; raises KeyError where there is none."""
    module, _, function = (CASES | SPARK_CASES)[name].partition(":")
    return cast("Case", getattr(importlib.import_module(module), function))
