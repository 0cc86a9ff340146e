"""Arrivals of sessions with runs: a slice in order of arrival, read from few lanes."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from onceward import Agent, Postbox, Run
from onceward.features.runs import session_queues
from onceward.file.transaction import StoreTransaction

ALL = '["*"]'


@pytest.fixture
def arrived(tmp_path: Path) -> Iterator[Any]:
    """Return a function that sends the bodies of sessions and returns the recipient's file."""
    agent = Agent("b")

    @agent.runs()
    def turn(run: Run) -> None:
        del run

    with (
        Postbox(tmp_path / "a.db", agent="a", start=False) as sender,
        Postbox(tmp_path / "b.db", agent=agent, start=False) as recipient,
    ):

        def send(*sessions: str) -> Postbox:
            for name in sessions:
                sender.session(name).send("b", {})
            sender.run_until_idle()
            return recipient

        yield send


def taken(box: Postbox, limit: int, monkeypatch: pytest.MonkeyPatch) -> tuple[list[str], int]:
    """Return the sessions of the next arrivals in order, and how many lanes were read for them."""
    lanes_read = 0
    rows = StoreTransaction.rows

    def counted(tx: StoreTransaction, sql: str, bindings: Any = None) -> list[tuple[Any, ...]]:
        nonlocal lanes_read
        lanes_read += sql == session_queues.ARRIVED
        return rows(tx, sql, bindings)

    monkeypatch.setattr(StoreTransaction, "rows", counted)
    found = box._db.write(lambda tx: session_queues.arrivals(tx, ALL, limit))
    return [each.session for each in found], lanes_read


def test_a_slice_reads_no_lane_behind_it(arrived: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lanes whose first message comes after the last of a full slice are not read."""
    box = arrived("s1", "s1", "s2", "s2", "s3", "s4", "s5")

    assert (["s1", "s1", "s2"], 2) == taken(box, 3, monkeypatch)


def test_a_slice_keeps_the_order_of_arrival(arrived: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of sessions whose messages came in turns the first ones are taken, whatever their lane."""
    box = arrived("s1", "s2", "s3", "s1", "s2", "s3", "s1")

    assert (["s1", "s2", "s3", "s1"], 3) == taken(box, 4, monkeypatch)
