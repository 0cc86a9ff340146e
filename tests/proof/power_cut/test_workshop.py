"""
Power cuts in handlers with steps, waits, output and cancels: the next life goes on where they were.

The seed is fixed and printed; ``ONCEWARD_SEED`` chooses another.
"""

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.proof.power_cut.explorer import explore
from tests.proof.power_cut.workshop import Workshop
from tests.proof.seed import proof_seed, size

STATES = size(2_000, 100)
STATES_TWO_DEEP = size(600, 40)
FOUND_WITHIN = 120.0
SEED = proof_seed()

pytestmark = pytest.mark.timeout(1200)


@pytest.mark.parametrize("engines", [True, False])
def test_steps_waits_and_output_survive(
    engines: bool, tmp_path: Path, aloud: Callable[[object], None]
) -> None:
    """
    Cut anywhere, in any way: what a step wrote is there once, and each wait has its message.

    No function is called after its result was acted upon, output is whole and in order, and
    what was said to be cancelled stays so.
    """
    shop = Workshop(SEED, engines=engines)
    verdict = explore(shop, states=STATES, keep=tmp_path)
    aloud(verdict)

    assert () == verdict.violations
    assert verdict.count >= STATES * 0.95


@pytest.mark.parametrize("aimed", [False, True])
def test_steps_survive_two_deep(
    aimed: bool, tmp_path: Path, aloud: Callable[[object], None]
) -> None:
    """Cut or killed, started again, and cut while the handlers go on: nothing changes."""
    verdict = explore(Workshop(SEED), states=STATES_TWO_DEEP, depth=2, aimed=aimed, keep=tmp_path)
    aloud(verdict)

    assert () == verdict.violations
    assert verdict.count >= min(STATES_TWO_DEEP * 0.9, 100)


@pytest.mark.parametrize(
    ("weak", "kind"),
    [
        (Workshop(2, durability="fast"), "CALLED_AGAIN"),
        (Workshop(7, mutants=("step-early",)), "UNDONE"),
        (Workshop(7, mutants=("rows-first",)), "DUP_EFFECT"),
        (Workshop(7, mutants=("taken-late",)), "TAKEN"),
        (Workshop(1, mutants=("forgotten-first",)), "CALLED_AGAIN"),
        (Workshop(7, mutants=("unmarked",)), "OUTPUT"),
        (Workshop(7, mutants=("said-early",)), "LOST_CANCEL"),
        (Workshop(7, mutants=("unfenced-cancel",)), "UNDEAD"),
    ],
    ids=lambda given: given if isinstance(given, str) else (*given.mutants, given.durability)[0],
)
def test_weak_steps_are_found(weak: Workshop, kind: str, aloud: Callable[[object], None]) -> None:
    """Each of these loses or repeats what a step or a cancel has done, and is seen to."""
    verdict = explore(weak, states=4_000, until={kind}, seconds=FOUND_WITHIN)
    aloud(verdict)

    assert kind in verdict.kinds
