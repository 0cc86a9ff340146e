"""
Whole worlds on one thread.

Whatever a seed thinks of, nothing is lost, doubled, reordered or stranded.
"""

from collections import Counter
from collections.abc import Callable

import pytest
from tests.proof.seed import size
from tests.proof.simulation.campaign import (
    EXPECTED,
    OFTEN_ENOUGH,
    first_seed,
    simulate,
    tell,
    unreached,
)

from onceward.message.handler_options import HandlerOptions, handler_rules

WORLDS = size(2_000, 60, "ONCEWARD_WORLDS")
REPLACED = ("restored", "restored again", "restored to redo", "taken over", "taken over again")
FOUND = (100860, 20261121000471)
"""
A rollback at the moment of a new epoch.

A clock that had been a day ahead, in a file that another process had open too.
"""


@pytest.fixture(autouse=True)
def runtime_folder(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Let the doorbells of many short-lived files hang in a folder that goes away with the test."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path_factory.mktemp("run")))


def test_the_same_seed_tells_the_same_story() -> None:
    """
    A failure is reproduced by its seed alone, to the last event.

    Other seeds tell other stories.
    """
    first, again, other = tell(5), tell(5), tell(6)

    assert (first.fingerprint, first.reached) == (again.fingerprint, again.reached)
    assert first.fingerprint != other.fingerprint


@pytest.mark.parametrize("seed", FOUND)
def test_what_was_found_stays_mended(seed: int) -> None:
    """Worlds that showed a mistake once go well now."""
    assert () == tell(seed, engines=False).wrong


@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    "options",
    [
        {"concurrency": 1, "rate": "20/m"},
        {"concurrency": 2, "rate": "20/m", "key": "session"},
        {"batch": 3, "within": 0.5},
        {"batch": 4, "within": 0},
    ],
    ids=["limits", "groups", "batch", "batch-at-once"],
)
def test_worlds_with_options_of_handlers(options: HandlerOptions) -> None:
    """Messages that wait for a place, a time or company are handled once, in order, as others."""
    first = first_seed()
    wrong = {
        seed: told.wrong
        for seed in range(first, first + size(300, 12))
        if (told := tell(seed, rules=handler_rules(options))).wrong
    }

    assert {} == wrong


@pytest.mark.timeout(1800)
def test_worlds_with_restores() -> None:
    """
    Files that go back to a backup, also twice and with a peer, lose nothing and repeat no result.

    No new message tells their peers of it.
    """
    first, worlds = first_seed(), size(600, 30)
    told = [tell(seed, restores=True) for seed in range(first, first + worlds)]
    reached = sum((each.reached for each in told), Counter[str]())

    assert {} == {each.seed: each.wrong for each in told if each.wrong}
    assert all(reached[what] for what in REPLACED)


@pytest.mark.timeout(1800)
def test_many_worlds(aloud: Callable[[object], None]) -> None:
    """
    Safety after every step, liveness at the end, in every world.

    The seed of the first is printed.
    """
    first = first_seed()
    told = simulate(WORLDS, seed=first)

    aloud(f"simulation: {told.count} worlds from seed {first} in {told.seconds:.0f} s")
    assert () == told.violations, (
        f"repeat one with: python -m tests.proof.simulation SEED (the first was {first})"
    )
    assert () == told.rare.violations
    assert WORLDS == told.count


def test_a_branch_that_was_never_reached_is_a_finding() -> None:
    """
    Many worlds in which something rare never happened prove less than they say, and that is told.

    A few worlds are let off.
    """
    seen = Counter(dict.fromkeys(EXPECTED, 1)) - Counter({"guard rang": 1})

    assert (("never reached: guard rang",), ()) == (
        unreached(seen, OFTEN_ENOUGH),
        unreached(seen, OFTEN_ENOUGH - 1),
    )
