"""
Power cuts around large bodies: no message is there without its body.

The seed is fixed and printed; ``ONCEWARD_SEED`` chooses another.
"""

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.proof.power_cut.archive import PLANTED, Archive
from tests.proof.power_cut.explorer import explore
from tests.proof.seed import proof_seed, size

FOUND_WITHIN = 120.0
SEED = proof_seed()

pytestmark = pytest.mark.timeout(1200)


@pytest.mark.parametrize("depth", [1, 2])
def test_bodies_survive(depth: int, tmp_path: Path, aloud: Callable[[object], None]) -> None:
    """
    Cut anywhere, in any way, and again while the next life sweeps and sends.

    Each message has its whole body, and is handled once.
    """
    states = size(2_000, 100, "ONCEWARD_STATES") // depth
    verdict = explore(Archive(SEED), states=states, depth=depth, keep=tmp_path)
    aloud(verdict)

    assert () == verdict.violations
    assert verdict.count >= states * 0.9


@pytest.mark.parametrize("mutant", PLANTED)
def test_a_missing_sync_is_found(mutant: str, aloud: Callable[[object], None]) -> None:
    """That of a body, of its name, and of the name of its folder."""
    weak = Archive(7, mutant)
    verdict = explore(weak, states=2_000, until={"LOST_BODY"}, seconds=FOUND_WITHIN)
    aloud(verdict)

    assert "LOST_BODY" in verdict.kinds
