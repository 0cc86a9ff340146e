"""
Power cuts of a life that is restored twice, greets, and finds what it had sent, page by page.

The seed is fixed and printed; ``ONCEWARD_SEED`` chooses another.
"""

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.proof.power_cut.explorer import explore
from tests.proof.power_cut.restored import PLANTED, Restored
from tests.proof.seed import proof_seed, size

FOUND_WITHIN = 120.0
SEED = proof_seed()

pytestmark = pytest.mark.timeout(1200)


@pytest.mark.parametrize("depth", [1, 2])
def test_restores_survive(depth: int, tmp_path: Path, aloud: Callable[[object], None]) -> None:
    """
    Cut anywhere, in any way, and again while the next life greets and finds.

    Each job is done once, and its sender knows those that were done before it repeats any.
    """
    states = size(2_000, 100, "ONCEWARD_STATES") // depth
    verdict = explore(Restored(SEED), states=states, depth=depth, keep=tmp_path)
    aloud(verdict)

    assert () == verdict.violations
    assert verdict.count >= states * 0.9


@pytest.mark.parametrize("mutant", [name for name in PLANTED if name])
def test_what_is_committed_late_is_found(mutant: str, aloud: Callable[[object], None]) -> None:
    """A greeting, a question and a page belong into the commit that they follow from."""
    verdict = explore(Restored(7, mutant), states=2_000, until={"NOT_FOUND"}, seconds=FOUND_WITHIN)
    aloud(verdict)

    assert "NOT_FOUND" in verdict.kinds
