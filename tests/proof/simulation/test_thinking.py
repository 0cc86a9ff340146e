"""
Worlds whose handlers take steps, wait for messages and put out chunks.

Mistakes that are planted into steps, waits and output are found in them.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from unittest.mock import patch

import pytest
from tests.proof.plant import replaced
from tests.proof.power_cut.planted import PLANTED
from tests.proof.seed import size
from tests.proof.simulation.campaign import first_seed, tell

from onceward.features.steps import stored as steps
from onceward.features.streams import stored as streams

Plant = Callable[[], AbstractContextManager[object]]
FENCE = "AND l.token = :token AND l.owner = :owner"
UNFENCED = "AND coalesce(:token, :owner) IS NOT NULL"
ENOUGH = 150
"""Worlds in which a planted mistake must show."""


def results_of_late_workers() -> AbstractContextManager[object]:
    """Store the result of a step also after another worker has taken the message."""
    return patch.object(steps, "STORE", replaced(steps.STORE, FENCE, UNFENCED))


def chunks_of_late_workers() -> AbstractContextManager[object]:
    """Store chunks also after another worker has taken the message."""
    return patch.object(streams, "ADD", replaced(streams.ADD, FENCE, UNFENCED))


def steps_of_waiting_messages() -> AbstractContextManager[object]:
    """Prune the steps of messages that are still to be handled."""
    there = "b.sender = s.sender AND b.id = s.message_id"
    pruned = replaced(steps.PRUNE, there, f"{there} AND s.seq IS NULL")
    return patch.object(steps, "PRUNE", pruned)


@pytest.fixture(autouse=True)
def runtime_folder(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Let the doorbells of many short-lived files hang in a folder that goes away with the test."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path_factory.mktemp("run")))


@pytest.mark.timeout(1800)
def test_worlds_with_steps_waits_and_output(aloud: Callable[[object], None]) -> None:
    """Nothing is called after it was acted upon, stored by a late worker, or taken twice."""
    first, worlds = first_seed(), size(60, 40, "ONCEWARD_THINKING_WORLDS")
    told = [tell(seed, thoughtful=True) for seed in range(first, first + worlds)]
    reached = {
        what: sum(one.reached[what] for one in told)
        for what in ("step called", "wait ended by a message", "output judged")
    }

    aloud(f"simulation with steps: {worlds} worlds from seed {first}, {reached}")
    assert {} == {one.seed: one.wrong for one in told if one.wrong}
    assert all(reached.values())


@pytest.mark.parametrize(
    ("plant", "said", "likely"),
    [
        (results_of_late_workers, "late worker has stored the step", 15),
        (chunks_of_late_workers, "late worker has stored chunks", 7),
        (PLANTED["step-early"], "has never returned", 3),
        (PLANTED["rows-first"], "written twice", 26),
        (steps_of_waiting_messages, "after its result was acted upon", 3),
        (PLANTED["unmarked"], "the output of", 10),
    ],
    ids=(
        "late-results",
        "late-chunks",
        "step-early",
        "rows-first",
        "pruned-early",
        "unmarked",
    ),
)
def test_a_planted_mistake_is_found(plant: Plant, said: str, likely: int) -> None:
    """
    Within a few worlds the judge that it concerns says so.

    *likely* is a world that showed it once; where that is another story now, others are told.
    """
    with plant():
        assert any(said in _wrong(seed) for seed in (likely, *range(ENOUGH)))


def _wrong(seed: int) -> str:
    return "\n".join(tell(seed, thoughtful=True).wrong)
