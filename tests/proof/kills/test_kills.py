"""
Real processes, SIGKILL and SIGSTOP at random.

Each promise has exactly one effect, in order, and nothing is stranded.
"""

import os
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.proof.kills import kill_test
from tests.proof.seed import proof_seed, size

from onceward import Agent, Context
from onceward.testing import kills
from onceward.testing.history import Log

KILLS = size(500, 100, "ONCEWARD_KILLS")
SEED = proof_seed()
STRAYED = """
SELECT 1 FROM onceward_inbox
 WHERE type = 'order' AND state = 'processed' AND id NOT IN (SELECT id FROM effects)
"""
ENDED = "SELECT id FROM onceward_outbox WHERE recipient = 'bob' AND state = 'acked'"


@pytest.mark.timeout(60 + KILLS)
def test_traders_survive(tmp_path: Path, aloud: Callable[[object], None]) -> None:
    """
    Eight processes in six roles are killed again and again.

    The logs, the effects and both files agree afterwards.
    """
    verdict = kill_test.trial(kills=KILLS, seed=SEED, folder=tmp_path)
    aloud(
        f"kills: {verdict.count} kills, {verdict.stops} stops, {verdict.orders} orders,"
        f" {verdict.seconds:.0f} s, seed {SEED}"
    )

    assert () == verdict.violations, f"seed {SEED}"
    assert verdict.count >= KILLS
    assert verdict.orders > KILLS


def test_a_long_trial_begins_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    More kills than one set of files is for are tried in several, each judged by itself.

    What is wrong names its own seed.
    """
    trials: list[tuple[int, int, bool]] = []

    def short(kills: int, seed: int, folder: Path, seconds: float) -> kill_test.Verdict:
        trials.append((kills, seed, folder.is_dir() and seconds > 0))
        return kill_test.Verdict(
            "kills", kills, ("lost",) if seed == 11 else (), 0.0, seed, stops=1, orders=2
        )

    monkeypatch.setattr(kill_test, "FRESH", 4)
    monkeypatch.setattr(kill_test, "_trial", short)
    found = kill_test.trial(kills=10, seed=7)

    assert [(4, 7, True), (4, 11, True), (2, 15, True)] == trials
    assert (10, ("seed 11: lost",), 3, 6) == (
        found.count,
        found.violations,
        found.stops,
        found.orders,
    )


def hasty(folder: Path, name: str) -> None:
    """Promise before the commit: the mistake that the trial must find."""
    with kill_test.open_box(folder, kill_test.ANN, start=False) as box:
        promised = kill_test.log(folder, "promised")
        kill_test.log(folder, "tried").add(f"{name}:0000001")
        with box.session(name).begin() as tx:
            tx.send(
                kill_test.BOB, kill_test.Order(lane=name, number=1), message_id=f"{name}:0000001"
            )
            promised.add(f"{name}:0000001")
            os.kill(os.getpid(), 9)


def forgetful(folder: Path, name: str) -> None:
    """Work outside of the message's transaction: a second mistake that the trial must find."""
    del name
    bob = Agent(kill_test.BOB)

    @bob.on(kill_test.Order)
    def fulfil(order: kill_test.Order, ctx: Context) -> None:
        Log(folder / "strayed.log").add([ctx.message.id, order.lane, order.number])

    with kill_test.open_box(folder, bob, start=True):
        signal.pause()


def promised(folder: Path) -> bool:
    """Return whether a sender has promised."""
    return any(kill_test.log(folder, "promised"))


def strayed(folder: Path) -> bool:
    """Return whether a worker has ended an order without its effect."""
    with kill_test.open_box(folder, kill_test.BOB, start=False) as box:
        return bool(box.query(STRAYED))


@dataclass(frozen=True)
class Planted:
    """A role with a mistake, when it has made it, and a word of what the judge says then."""

    role: str
    play: kills.Role
    made: Callable[[Path], bool]
    word: str


@pytest.mark.parametrize(
    "planted",
    [
        Planted("sender", hasty, promised, "promised"),
        Planted("worker", forgetful, strayed, "effect"),
    ],
    ids=lambda planted: planted.play.__name__,
)
def test_a_planted_mistake_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, planted: Planted
) -> None:
    """
    An early promise and an effect outside the commit are found.

    An answer before its commit is not: the next parcel shows it, and what was lost is sent again.
    """
    for number in (1, 2):
        monkeypatch.setitem(kill_test.ROLES, f"{planted.role}-{number}", planted.play)

    verdict = kill_test.trial(kills=10, seed=SEED, folder=tmp_path, until=planted.made)

    assert any(planted.word in wrong for wrong in verdict.violations)
