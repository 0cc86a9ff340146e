"""Events say since when: when a message was sent, when it came, how long its handler ran."""

from itertools import count
from pathlib import Path

import pytest

from onceward import Agent, Postbox, Reject, Retry, Run
from onceward.events import DeadLettered, Event, Processed, Retried, Sent
from onceward.file.transaction import StoreTransaction
from onceward.testing import Controls, ManualClock


def test_events_carry_the_moments_of_a_message(tmp_path: Path) -> None:
    """``sent`` has the commit of the send, ``processed`` that of the acceptance."""
    clock, agent, told = ManualClock(), Agent("b"), list[Event]()
    agent.on("json")(lambda _: None)
    with (
        Postbox(tmp_path / "a.db", agent="a", start=False, testing=Controls(clock=clock)) as a,
        Postbox(tmp_path / "b.db", agent=agent, start=False, testing=Controls(clock=clock)) as b,
    ):
        a.on(Sent, told.append)
        b.on(Processed, told.append)
        sent_at = clock.now()
        a.send("b", 1)
        clock.advance(2)
        a.run_until_idle()
        came_at = clock.now()
        clock.advance(3)
        b.run_until_idle()

    [sent, processed] = told
    assert isinstance(sent, Sent)
    assert isinstance(processed, Processed)
    assert (sent_at, came_at) == (sent.created_at, sent.at)
    assert (came_at, came_at + 3000) == (processed.received_at, processed.at)


@pytest.mark.parametrize("raised", [None, Retry(after=1), Reject("no")])
def test_events_say_how_long_the_handler_ran(
    tmp_path: Path, raised: Exception | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether it returned, asked for a retry or rejected the message."""
    agent = Agent("b")
    monkeypatch.setattr("onceward.core.handle.attempt.monotonic", count(step=0.25).__next__)

    @agent.on("json")
    def handle(_: object) -> None:
        if raised is not None:
            raise raised

    with Postbox(tmp_path / "b.db", agent=agent, start=False) as box:
        told = heard(box)
        box.send("b", 1)
        box.run_until_idle()

    assert [0.25] == took(told)


@pytest.mark.parametrize("raised", [None, Retry(after=1), Reject("no")])
def test_events_say_how_long_a_run_took(
    tmp_path: Path, raised: Exception | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of its messages was handled by one call, however that ended."""
    agent = Agent("b")
    monkeypatch.setattr("onceward.core.handle.attempt.monotonic", count(step=0.25).__next__)

    @agent.runs(mode="collect", debounce=0)
    def serve(_: Run) -> None:
        if raised is not None:
            raise raised

    with Postbox(tmp_path / "b.db", agent=agent, start=False) as box:
        told = heard(box)
        box.send_many([("b", 1), ("b", 2)])
        box.run_until_idle()

    assert [0.25, 0.25] == took(told)


def test_a_message_that_expired_ran_no_handler(tmp_path: Path) -> None:
    """Neither its own time nor that of the handler before it is told."""
    clock, agent = ManualClock(), Agent("b")
    agent.on("json")(lambda _: None)
    with Postbox(tmp_path / "b.db", agent=agent, start=False, testing=Controls(clock=clock)) as box:
        told = heard(box)
        box.send("b", 1)
        box.send("b", 2, ttl=1)
        box.run_until_idle()
        box.send("b", 3, ttl=1)
        clock.advance(2)
        box.run_until_idle()

    assert [False, False, True] == [each is None for each in took(told)]


def heard(box: Postbox) -> list[Event]:
    """Return the list to which all ends of handlers are added."""
    told: list[Event] = []
    box.on(Processed, told.append)
    box.on(Retried, told.append)
    box.on(DeadLettered, told.append)
    return told


def took(told: list[Event]) -> list[float | None]:
    """Return how long the handler of each event ran."""
    return [each.took for each in told if isinstance(each, Processed | Retried | DeadLettered)]


def test_a_commit_can_be_measured(tmp_path: Path) -> None:
    """What measures is called in place of the commit, and makes it."""
    seen: list[bool] = []

    def measured(tx: StoreTransaction) -> None:
        tx.commit()
        seen.append(tx.handle.in_transaction)

    with Postbox(tmp_path / "a.db", agent="a", start=False) as box:
        box._db.writer.measured_commit = measured
        box.send("a", 1)
        box._db.writer.measured_commit = None
        box.send("a", 2)

        assert 2 == box.file.stats()["enqueued"]
    assert [False] == seen
