"""The loop that every engine runs on: when it looks, and how it ends."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from threading import Event

import pytest

from onceward import Agent, Postbox
from onceward.core.rows import peers
from onceward.core.run.engine_loop import EngineLoop
from onceward.errors import StoreClosed
from onceward.file.database import Database

LIMIT = 60.0
"""Seconds that a test waits for what happens at once."""


class Looks:
    """A look that takes what it returns or raises from a script and waits for ever after that."""

    def __init__(self, *script: float | Exception) -> None:
        self.script, self.count, self.over = list(script), 0, Event()

    def __call__(self) -> float | None:
        """Take the next step of the script."""
        self.count += 1
        if not self.script:
            self.over.set()
            return None
        step = self.script.pop(0)
        if isinstance(step, Exception):
            raise step
        return step


@pytest.fixture
def db(tmp_path: Path) -> Iterator[Database]:
    """Return an open file without engines."""
    with Postbox(tmp_path / "a.db", agent="a", start=False) as box:
        yield box._db


def test_a_loop_looks_until_nothing_is_due(db: Database) -> None:
    """A look that returns 0 is followed by the next one at once; None waits for a notification."""
    looks = Looks(0.0, 0.0)
    loop = EngineLoop(db, "test", looks)
    loop.start()
    assert looks.over.wait(LIMIT)
    loop.stop(LIMIT)

    assert 3 == looks.count


def test_a_loop_looks_after_a_notification(db: Database) -> None:
    """A notification of its direction ends the wait of a loop that has nothing due."""
    looks = Looks()
    loop = EngineLoop(db, "test", looks)
    loop.start("in")
    assert looks.over.wait(LIMIT)
    looks.over.clear()
    db.notifier.notify("in")
    assert looks.over.wait(LIMIT)
    loop.stop(LIMIT)

    assert 2 == looks.count


def test_a_loop_goes_on_after_an_error(db: Database, caplog: pytest.LogCaptureFixture) -> None:
    """An error of a look is logged with the loop's name; the next look comes after the pause."""
    looks = Looks(ValueError("bad row"))
    loop = EngineLoop(db, "test", looks, pause=0.001)
    loop.start()
    assert looks.over.wait(LIMIT)
    loop.stop(LIMIT)

    assert "test waits agent=a seconds=0.001 error='ValueError: bad row'" in caplog.text


def test_a_loop_ends_with_its_file(db: Database) -> None:
    """A look that finds its file closed was the last one."""
    looks = Looks(StoreClosed("closed"), 0.0)
    loop = EngineLoop(db, "test", looks)
    loop.start()
    assert loop.stopping.wait(LIMIT)
    loop.stop(LIMIT)

    assert 1 == looks.count


def test_a_stop_during_a_look_makes_it_the_last_one(db: Database) -> None:
    """A loop that is told to look again, and stopped, by its own look does not look again."""
    looks = Looks(0.0, 0.0)
    loop = EngineLoop(db, "test", looks)

    def stop() -> float | None:
        loop.notify()
        loop.stop(LIMIT)
        return looks()

    loop._look = stop
    loop.start()

    assert loop.over.wait(LIMIT)
    assert (False, 1) == (loop.busy, looks.count)


def test_a_loop_with_a_delay_does_not_look_before(db: Database) -> None:
    """A loop that is stopped within its delay has never looked."""
    looks = Looks()
    loop = EngineLoop(db, "test", looks)
    loop.start(delay=3600.0)
    loop.stop(LIMIT)

    assert 0 == looks.count


def test_no_engine_waits_without_limit_while_a_lease_is_held(tmp_path: Path) -> None:
    """A look returns seconds while any lease is held, so the leases of the dead are found."""
    agent = Agent("b")
    agent.on("json")(lambda _: None)
    with Postbox(tmp_path / "b.db", agent=agent, start=False, hold_unknown=True) as box:
        [worker] = box._workers
        idle = worker._look(), box._dispatcher._dispatch_due()
        box.send("b", {})
        box._dispatcher.run_due()
        held = box.receive()
        box._db.write(lambda tx: peers.lease(tx, "c", owner="x", until=tx.now + 60_000))
        leased = box._dispatcher._dispatch_due()
        found = worker._look()

        assert (None, None) == idle
        assert held is not None
        assert [True, True] == [each is not None and 0 < each <= 60 for each in (leased, found)]
