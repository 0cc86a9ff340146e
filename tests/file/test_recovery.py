"""A file that an error closed is opened again by the next reader, engine or postbox."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from queue import Queue

import pytest

from onceward import Agent, Context, Msg, Postbox, Retry, Tuning
from onceward.errors import OncewardError, StoreError
from onceward.file.database import LONGEST_PAUSE, Database
from onceward.testing import Controls, ManualClock

Open = Callable[..., Postbox]
PATIENCE = 60.0
"""Seconds after which a test that waits for an engine fails; maintenance comes much later."""


class Job(Msg, type="job"):
    """Work that a handler does."""

    n: int


@contextmanager
def trouble(box: Postbox) -> Iterator[None]:
    """Take the file of *box* away for a block, and let a commit notice it."""
    hidden = box.file.path.with_name("hidden")
    box.file.path.rename(hidden)
    with pytest.raises(OncewardError):
        box.send("b", "into nowhere")
    yield
    hidden.rename(box.file.path)


def test_a_read_opens_the_file_again(opened: Open, clock: ManualClock) -> None:
    """A read after the trouble and the pause of an earlier read finds what was committed."""
    box = opened(testing=Controls(clock=clock))
    kept = box.send("b", 1)
    with trouble(box), pytest.raises(StoreError, match="is no longer there"):
        box.file.stats()
    clock.advance(LONGEST_PAUSE)

    assert kept in {past.id for past in box.history().messages}


def test_every_kind_of_read_opens_the_file_again(opened: Open) -> None:
    """A snapshot, a user's statement and a checkpoint do as the reads of the library do."""
    box = opened()
    calls: list[Callable[[], object]] = [
        box.file.check,
        lambda: box.query("SELECT count(*) FROM onceward_outbox"),
        lambda: box._db.snapshot(lambda tx: tx.rows("SELECT 1")),
        lambda: box._db.checkpoint(truncate=False),
        box.file.health,
        box.run_until_idle,
    ]
    for call in calls:
        with trouble(box):
            pass
        call()

        assert box._db._con is not None


def test_reads_of_a_file_that_stays_closed_back_off(
    opened: Open, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reads tell the error at once; only the first after each pause, which doubles, tries again."""
    box = opened(testing=Controls(clock=clock))
    tries = list[float]()
    attempt = Database._connect

    def counted(db: Database, deadline: float) -> object:
        tries.append(clock.monotonic())
        return attempt(db, deadline)

    monkeypatch.setattr(Database, "_connect", counted)
    with trouble(box):
        tries.clear()
        for _ in range(100):
            with pytest.raises(StoreError, match="is no longer there"):
                box.file.stats()
            clock.advance(0.05)

    pauses = [later - sooner for sooner, later in pairwise(tries)]
    assert [0.05, 0.1, 0.2, 0.4, 0.8, 1.0, 1.0] == pytest.approx(pauses[:7], abs=0.06)


def test_asking_the_engines_does_not_wait_for_the_pause(opened: Open, clock: ManualClock) -> None:
    """``run_until_idle`` tries at once, however often reads have failed, and does what is due."""
    opened("b").close()
    box = opened(testing=Controls(clock=clock))
    kept = box.send("b", 1)
    with trouble(box):
        for _ in range(5):
            with pytest.raises(StoreError):
                box.file.stats()
            clock.advance(1)
        with pytest.raises(StoreError, match="is no longer there"):
            box.run_until_idle()

    assert 1 == box.run_until_idle()
    assert "sent" == box.state(kept)


def test_a_cache_of_a_closed_file_is_read_again(box: Postbox) -> None:
    """The version of a file that was opened again is none that was seen before."""
    before = box._db.version()
    with trouble(box):
        pass
    box.file.stats()

    assert before != box._db.version()


def test_engines_go_on_before_maintenance_comes(tmp_path: Path, clock: ManualClock) -> None:
    """A worker recovers by itself: what became due while the file was closed is handled."""
    agent, attempts = Agent("a"), Queue[int]()

    @agent.on(Job)
    def work(job: Job, ctx: Context) -> None:
        attempts.put(ctx.message.attempt)
        if ctx.message.attempt == 1:
            raise Retry("not yet", after=60)

    with Postbox(
        tmp_path / "a.db",
        agent=agent,
        testing=Controls(clock=clock),
        tuning=Tuning(maintenance_interval=600.0),
        hold_unknown=True,
    ) as box:
        box.send("a", Job(n=1))
        assert 1 == attempts.get(timeout=PATIENCE)
        until = time.monotonic() + PATIENCE
        while not box.query("SELECT 1 FROM _onceward_lanes WHERE owner IS NULL AND due_at > 0"):
            assert time.monotonic() < until, "the retry was not stored"
            time.sleep(0.01)
        with trouble(box):
            pass
        clock.advance(61)

        assert 2 == attempts.get(timeout=PATIENCE)
