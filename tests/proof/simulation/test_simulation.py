"""Whole worlds on one thread: whatever a seed thinks of, nothing is lost, doubled, reordered or stranded."""

import os

import pytest

from onceward.testing.simulation import simulate, tell, todays_seed

WORLDS = int(os.environ.get("ONCEWARD_WORLDS", "200"))
FOUND = (100860, 20261121000471)
"""A rollback at the moment of a new epoch; a clock that had been a day ahead, in a file that another process had open too."""
OFTEN_ENOUGH = 1000
"""Worlds after which everything that the weather knows must have happened at least once."""


@pytest.fixture(autouse=True)
def runtime_folder(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the doorbells of many short-lived files hang in a folder that goes away with the test."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path_factory.mktemp("run")))


def test_the_same_seed_tells_the_same_story() -> None:
    """A failure is reproduced by its seed alone, to the last event; other seeds tell other stories."""
    first, again, other = tell(5), tell(5), tell(6)

    assert (first.fingerprint, first.reached) == (again.fingerprint, again.reached)
    assert first.fingerprint != other.fingerprint


@pytest.mark.parametrize("seed", FOUND)
def test_what_was_found_stays_mended(seed: int) -> None:
    """Worlds that showed a mistake once go well now."""
    assert () == tell(seed).wrong


@pytest.mark.timeout(900)
def test_worlds_of_the_day() -> None:
    """Safety after every step, liveness at the end, in as many worlds as fit; a new set each day, by a printed seed."""
    first = todays_seed()
    told = simulate(WORLDS, seed=first)

    print(f"simulation: {told.count} worlds from seed {first} in {told.seconds:.0f} s")
    assert () == told.violations, f"repeat one with: python -m onceward.testing.simulation SEED (the first was {first})"
    assert WORLDS == told.count
    assert [] == [what for what in EXPECTED if WORLDS >= OFTEN_ENOUGH and not told.reached[what]]


EXPECTED = (
    "answer accepted",
    "answer busy",
    "answer duplicate",
    "answer fork",
    "died",
    "ended as dead letter here",
    "gap",
    "guard rang",
    "lease lost in commit",
    "push corrupt",
    "push delay",
    "push drop",
    "push late",
    "push lose",
    "push twice",
    "receipt duplicate",
    "receipt processed",
    "receipt rejected expired",
    "receipt rejected stale",
    "receipt stored",
    "resolved as absent",
    "resolved as there",
    "send ended by Died",
    "send ended by OutcomeUnknown",
    "send refused by Conflict",
    "send refused by Frozen",
    "send refused by QueueFull",
)
"""What a day's worlds must have seen, or they prove less than they say."""
