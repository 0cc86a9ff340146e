"""The options of handlers: what each costs in statements, and that others pay nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tests.core.test_statements import Counted

from onceward import Agent, Postbox, Tuning

Open = Callable[..., Postbox]


def handled(opened: Open, messages: int, **options: Any) -> list[str]:
    """Return the statements of a round that claims and handles so many messages of one lane."""
    agent = Agent(f"bob{messages}{len(options)}{'rate' in options}")
    agent.on("job", **options)(lambda _: None)
    box = opened(agent, tuning=Tuning(share_commit_for=60))
    for n in range(messages):
        box.send(agent.name, n, type="job")
    box._dispatcher.run_due()
    [worker] = box._workers
    worker._size = messages
    counted = Counted(box)
    assert messages == worker.round()
    return counted.take()


@pytest.mark.parametrize(
    ("options", "more"),
    [({"concurrency": 1}, 2), ({"rate": "100/s"}, 3), ({"rate": "100/s", "concurrency": 1}, 4)],
)
def test_a_limit_costs_statements_by_the_claim(
    opened: Open, options: dict[str, Any], more: int
) -> None:
    """A rate is read and counted once for all messages of a claim, and so are places and lanes."""
    plain = [len(handled(opened, messages)) for messages in (1, 50)]
    limited = [len(handled(opened, messages, **options)) for messages in (1, 50)]

    assert [each + more for each in plain] == limited


def test_a_key_costs_statements_by_the_claim(opened: Open) -> None:
    """Groups are parked, counted and given their next turns together, however many there are."""
    agent = Agent("bob")
    agent.on("job", key="body.tenant", concurrency=2, rate="1000/s")(lambda _: None)
    agent.on("plain")(lambda _: None)
    box = opened(agent, tuning=Tuning(share_commit_for=60))
    [worker] = box._workers

    def cost(kind: str, messages: int) -> int:
        for n in range(messages):
            key = f"{kind}{messages}.{n}"
            box.send("bob", {"tenant": key}, type=kind, ordering_key=key)
        box._dispatcher.run_due()
        worker._size = messages
        counted = Counted(box)
        assert messages == worker.round()
        return len(counted.take())

    plain, keyed = ([cost(kind, n) for n in (1, 40)] for kind in ("plain", "job"))

    assert plain[1] - plain[0] == keyed[1] - keyed[0]
    assert keyed[0] <= plain[0] + 10


def test_a_batch_costs_statements_by_the_call(opened: Open) -> None:
    """Claiming, handling and settling a hundred messages takes as many as ten."""
    agent = Agent("bob")
    agent.on("job", batch=100)(lambda _: None)
    box = opened(agent, tuning=Tuning(share_commit_for=60))
    costs: list[int] = []
    worker: Any = box._runners[0]
    for count in (10, 100):
        for n in range(count):
            box.send("bob", n, type="job")
        box._dispatcher.run_due()
        worker._most = count
        counted = Counted(box)
        assert count == worker.round()
        costs.append(len(counted.take()))

    assert costs[0] == costs[1] <= 16


def test_lanes_that_wait_are_passed_over_in_pages(opened: Open) -> None:
    """A message behind 3000 lanes that have to wait is claimed at once; none of them is leased."""
    agent, called = Agent("bob"), list[str]()
    agent.on("job", rate="1/h")(lambda _: called.append("job"))
    agent.on("other")(lambda _: called.append("other"))
    box = opened(agent)
    with box.begin() as tx:
        for n in range(3001):
            tx.send("bob", n, type="job", ordering_key=f"k{n}")
    box.run_until_idle()
    box.send("bob", 1, type="other", ordering_key="last")
    box._dispatcher.run_due()
    [worker] = box._workers
    counted = Counted(box)
    worker.round()
    ready = [sql for sql in counted.take() if "AS h ON h.seq = head_seq" in sql]

    assert (["job", "other"], 3) == (called, len(ready))
    assert [(1,)] == box._db.read("SELECT max(token) FROM _onceward_lanes")
