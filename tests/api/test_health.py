"""The verdict of ``health``: what probes and people read of a file."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from onceward import Postbox
from onceward.features.checks import health
from onceward.ops.observe.exposition import are_ready
from onceward.testing import Controls, ManualClock

BREAKER = "UPDATE _onceward_peers SET breaker = 'open' WHERE name = 'b'"


@pytest.fixture
def clock() -> ManualClock:
    """Return a clock that stands still."""
    return ManualClock()


@pytest.fixture
def box(tmp_path: Path, clock: ManualClock) -> Any:
    """Return a postbox that may send to any name."""
    with Postbox(
        tmp_path / "a.db", agent="a", start=False, hold_unknown=True, testing=Controls(clock=clock)
    ) as made:
        yield made


def wait(box: Postbox, clock: ManualClock) -> None:
    """Leave a message to be handled for more than five minutes."""
    box.send("a", 1)
    box.run_until_idle()
    clock.advance(301)


def send(box: Postbox, clock: ManualClock) -> None:
    """Leave a message to be sent for more than five minutes."""
    box.send("b", 1)
    clock.advance(301)


def fail(box: Postbox, clock: ManualClock) -> None:
    """Open the breaker of a peer."""
    box.peers.add("b", "memory:nowhere")
    with box.begin() as tx:
        tx.execute(BREAKER)


def go_back(box: Postbox, clock: ManualClock) -> None:
    """Set the wall clock back."""
    box.send("b", 1)
    clock.step(-61)


def bury(box: Postbox, clock: ManualClock) -> None:
    """Make a dead letter."""
    box.send("a", 1)
    box.run_until_idle()
    message = box.receive()
    assert message is not None
    message.reject("no")


def nothing(box: Postbox, clock: ManualClock) -> None:
    """Leave the file as it is."""


def pause(box: Postbox, clock: ManualClock) -> None:
    """Pause the agent."""
    box.file.pause()


@pytest.mark.parametrize(
    ("trouble", "verdict", "reason"),
    [
        (nothing, "ok", ""),
        (bury, "ok", ""),
        (pause, "failing", "the file is paused"),
        (wait, "degraded", "messages have waited for five minutes to be handled"),
        (send, "degraded", "messages have waited for five minutes to be sent"),
        (fail, "degraded", "1 breakers are open"),
        (go_back, "degraded", "the file's time is a minute ahead of the wall clock"),
    ],
)
def test_a_verdict_names_its_reasons(
    box: Postbox,
    clock: ManualClock,
    trouble: Callable[[Postbox, ManualClock], object],
    verdict: str,
    reason: str,
) -> None:
    """Only a failing agent is not ready; dead letters wait for a person."""
    trouble(box, clock)
    found = box.file.health()

    assert (verdict, tuple(filter(None, [reason]))) == (found.verdict, found.reasons)
    assert (verdict != "failing") == are_ready([box])


def test_a_pinned_wal_counts_when_it_is_large(
    box: Postbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A small one is emptied later."""
    with box._db.readers.lend(60) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM onceward_outbox").fetchall()
        box.send("b", 1)
        before = box.file.health().verdict
        monkeypatch.setattr(health, "LARGE_WAL", 0)
        after = box.file.health()
        reader.execute("ROLLBACK")

    assert ("ok", "degraded", ("a reader keeps a WAL of 256 MiB",)) == (
        before, after.verdict, after.reasons,
    )  # fmt: skip
