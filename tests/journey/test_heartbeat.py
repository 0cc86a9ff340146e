"""The commit that quick handlers share, seen at the moment when the heartbeat would make it."""

from collections.abc import Callable
from pathlib import Path
from threading import Thread

import pytest

from onceward import Agent, Postbox, Retry
from onceward.core.end.received import SettledMessage
from onceward.core.handle import attempt as attempt_module
from onceward.core.handle import claim
from onceward.core.handle.claim import ClaimRequest
from onceward.core.handle.commit_batch import HandlerCommitBatch
from onceward.core.handle.worker import Worker
from onceward.core.run.engine_loop import EngineLoop
from onceward.core.run.threads import DOZE, QUICK_TICK, TICK
from onceward.message.vocabulary import Done


class Meanwhile(list[SettledMessage]):
    """
    The ended messages; the first look at them is interrupted by another thread.

    It goes on when that thread is through.
    """

    def __init__(self, ended: list[SettledMessage], other: Callable[[], object]) -> None:
        super().__init__(ended)
        self._others = [Thread(target=other)]

    def __len__(self) -> int:
        while self._others:
            other = self._others.pop()
            other.start()
            other.join()
        return super().__len__()


def test_the_heartbeat_takes_nothing_from_under_a_look(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    A worker that asks whether it is time to commit gets an answer.

    It does so also where the heartbeat comes in between; the message ends once.
    """
    with (
        Postbox(tmp_path / "bob.db", agent="bob", start=False) as bob,
        Postbox(tmp_path / "ann.db", agent="ann", start=False) as ann,
    ):
        sent = ann.send("bob", 1)
        ann.run_until_idle()
        wanted = ClaimRequest(messages=1, lanes=1, types=None)
        [[leased]] = bob._db.write(
            lambda tx: claim.claim(tx, wanted, owner="w", until=tx.now + 9000)
        )
        group = HandlerCommitBatch(
            bob._db, share_for=0.0, rest_for=lambda _: 0, told=lambda _: None
        )
        monkeypatch.setattr(group, "_ended", Meanwhile([], group.heartbeat))

        assert group.end(leased, Done("processed"), rest=([leased], 1), events=[])
        group.commit()

        assert [(sent, "processed")] == bob._db.read("SELECT id, state FROM _onceward_inbox")


def test_beats_are_rare_once_a_call_takes_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are frequent while it may be quick, and its timeout is not missed."""
    agent = Agent("a")
    asked: dict[float, float] = {}
    [now] = clock = [1000.0]
    monkeypatch.setattr(attempt_module, "monotonic", lambda: clock[0])

    @agent.on("job", timeout=60)
    def job(_: int) -> None:
        [worker] = [each for each in box._engines if isinstance(each, Worker)]
        for after in (0.0, 0.1, 1.0, 59.875, 70.0):
            clock[0] = now + after
            asked[after] = worker._beat()

    with Postbox(tmp_path / "a.db", agent=agent, start=False) as box:
        box.send("a", 1, type="job")
        box.run_until_idle()

    assert {0.0: QUICK_TICK, 0.1: TICK, 1.0: DOZE, 59.875: 0.125, 70.0: DOZE} == asked


def test_beats_are_not_rarer_than_the_lease_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A short lease is prolonged in time although its handler takes long."""
    agent = Agent("a")
    asked: list[float] = []
    [now] = clock = [1000.0]
    monkeypatch.setattr(attempt_module, "monotonic", lambda: clock[0])

    @agent.on("job")
    def job(_: int) -> None:
        [worker] = [each for each in box._engines if isinstance(each, Worker)]
        clock[0] = now + 1.0
        asked.append(worker._beat())

    with Postbox(tmp_path / "a.db", agent=agent, start=False, lease=0.6) as box:
        box.send("a", 1, type="job")
        box.run_until_idle()

    assert [0.1] == [round(each, 6) for each in asked]


def test_a_lane_that_becomes_due_during_a_long_call_gets_a_worker(tmp_path: Path) -> None:
    """The keeper looks when it is due: no notification comes then, and beats are rare."""
    agent = Agent("a")
    waits: list[float | None] = []

    @agent.on("job", concurrency=2)
    def job(number: int) -> None:
        if number == 1:
            raise Retry(after=5.0)
        [worker] = [each for each in box._engines if isinstance(each, Worker)]
        assert worker._running is not None
        running = worker._running
        assert running is not None
        running.started -= 1.0
        waits.append(worker._keep())

    with Postbox(tmp_path / "a.db", agent=agent, start=False) as box:
        box.send("a", 1, type="job", ordering_key="later")
        box.send("a", 2, type="job")
        box.run_until_idle()

    [wait] = waits
    assert wait is not None
    assert 0 < wait <= 5.0


def test_a_call_after_a_long_one_waits_for_no_rare_beat(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The heartbeat is asked to look soon: the end of the long call may still hold the file."""
    agent = Agent("a")
    clock = [1000.0]
    asked: list[object] = []
    seen: list[int] = []
    monkeypatch.setattr(attempt_module, "monotonic", lambda: clock[0])

    def counted(loop: EngineLoop) -> None:
        asked.append(loop)

    monkeypatch.setattr(EngineLoop, "beat_soon", counted)

    @agent.on("job")
    def job(seconds: float) -> None:
        seen.append(len(asked))
        clock[0] += seconds

    with Postbox(tmp_path / "a.db", agent=agent, start=False) as box:
        for seconds in (0.0, 1.0, 0.0, 0.0):
            box.send("a", seconds, type="job")
        box.run_until_idle()

    assert [0, 0, 1, 1] == seen
