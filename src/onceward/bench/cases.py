"""Every case by its name; its module is loaded when it is called."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from typing import Final, cast

from onceward.bench.measure import Result
from onceward.bench.plan import Plan

Case = Callable[[Plan], Iterator[Result]]

CASES: Final = {
    "send": "onceward.bench.send:send",
    "send-many": "onceward.bench.send:send_many",
    "group": "onceward.bench.group:group",
    "deliver": "onceward.bench.deliver:deliver",
    "wake": "onceward.bench.wake:wake",
    "backlog": "onceward.bench.backlog:backlog",
    "peers": "onceward.bench.peers:peers",
    "claim-group": "onceward.bench.claims:claim_group",
    "runs": "onceward.bench.runs:runs",
    "history": "onceward.bench.history:history",
    "topics": "onceward.bench.topics:topics",
    "fanout": "onceward.bench.fanout:fanout",
    "memory": "onceward.bench.memory:memory",
    "price": "onceward.bench.price:price",
}

SPARK_CASES: Final = {"fleet": "onceward.bench.fleet:fleet", "fleet-reconcile": "onceward.bench.reconcile:reconcile"}
"""Cases that need the extra ``onceward[spark]``; without it they say that they were skipped."""


def case(name: str) -> Case:
    """Return the case of that name; raises KeyError where there is none."""
    module, _, function = (CASES | SPARK_CASES)[name].partition(":")
    return cast("Case", getattr(importlib.import_module(module), function))
