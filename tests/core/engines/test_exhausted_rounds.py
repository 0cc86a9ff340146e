"""A worker that has ended all that was ready: it looks no more, and misses nothing."""

from __future__ import annotations

from threading import Event
from typing import TYPE_CHECKING, Any

import pytest
from tests.waiting import until

from onceward import Agent, Postbox, Retry, Tuning
from onceward.core.handle import claim
from onceward.core.rows import claimable
from onceward.core.run import engine_loop as engine
from onceward.events import Received

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

LONG = 3600.0
LIMIT = 60.0


@pytest.fixture(autouse=True)
def only_notified(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no engine look by itself: what has neither notification nor timer waits for ever."""
    monkeypatch.setattr(engine, "MAX_IDLE_SECONDS", LONG)


def opened(path: Path, handle: Callable[[Any], object], **options: Any) -> Postbox:
    """Open a postbox that handles what it sends to itself."""
    agent = Agent("shop")
    agent.on("json")(handle)
    return Postbox(path / "shop.db", agent=agent, tuning=Tuning(poll_interval=0), **options)


@pytest.mark.parametrize("short", [False, True], ids=["stored first", "stored with its call"])
def test_a_message_costs_one_look(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, short: bool
) -> None:
    """
    The worker asks once what there is; the claim and its end tell it the rest.

    It does not ask at all if it is called for a message that arrives.
    """
    looks: list[int] = []
    agenda = claimable.agenda

    def counted(read: Any) -> Any:
        looks.append(1)
        return agenda(read)

    monkeypatch.setattr(claimable, "agenda", counted)
    with opened(tmp_path, lambda _: None) as box, Postbox(tmp_path / "b.db", agent="b") as other:
        laps: list[int] = []
        if not short:
            box.on(Received, lambda _: None)  # it is told before the call
        for n in range(12):
            before = len(looks)
            sent = other.send("shop", n)
            until(lambda sent=sent: other.state(sent) == "acked")  # type: ignore[misc]
            laps.append(len(looks) - before)

    assert int(not short) == min(laps[4:])


def test_a_message_that_comes_while_another_is_handled_is_handled(tmp_path: Path) -> None:
    """Its notification is heard, also where the round has asked meanwhile for a pause."""
    handled: list[int] = []
    first, more = Event(), Event()

    def handle(number: int) -> None:
        if number == 2:
            first.set()
            assert more.wait(LIMIT)
        handled.append(number)

    with opened(tmp_path, handle) as box, Postbox(tmp_path / "b.db", agent="b") as other:
        for number in (0, 1):  # so that the next claim has room for several
            other.send("shop", number)
            until(lambda number=number: number in handled)  # type: ignore[misc]
        with other.begin() as tx:
            tx.send("shop", 2)
            tx.send("shop", 3)
        assert first.wait(LIMIT)
        other.send("shop", 4)
        until(lambda: box.query("SELECT count(*) FROM onceward_inbox") == [(5,)])
        more.set()
        until(lambda: handled == [0, 1, 2, 3, 4])

    assert [0, 1, 2, 3, 4] == handled


def test_a_message_that_is_retried_is_handled_again(tmp_path: Path) -> None:
    """The round that put it off leaves a timer behind."""
    handled: list[int] = []

    def handle(number: int) -> None:
        handled.append(number)
        if handled.count(2) == 1 and number == 2:
            raise Retry(after=0.2)

    with opened(tmp_path, handle) as box:
        for number in (0, 1, 2):
            box.send("shop", number)
            until(lambda number=number: number in handled)  # type: ignore[misc]
        until(lambda: handled == [0, 1, 2, 2])

    assert [0, 1, 2, 2] == handled


def test_a_claim_frees_a_lane_that_is_due_beside_a_ready_one(tmp_path: Path) -> None:
    """Both are claimed, and after that nothing is left to free."""
    with Postbox(tmp_path / "a.db", agent="a", start=False) as box:
        for session in ("one", "two"):
            box.session(session).send("a", session)
            box.run_until_idle()
        box._db.write(
            lambda tx: tx.run("UPDATE _onceward_lanes SET due_at = 1 WHERE session = 'one'")
        )
        claimed = box._db.write(
            lambda tx: claim.claim(
                tx, claim.ClaimRequest(messages=10), owner="me", until=tx.now + 30_000
            )
        )

    assert ["one", "two"] == [lane[0].session for lane in claimed]
