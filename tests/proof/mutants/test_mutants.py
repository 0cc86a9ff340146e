"""Every planted mistake is noticed, and the layer of tests that notices it is named."""

import os
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.proof.mutants.hunt import LIMIT, Copy, Mutant, drawn, hunt, known
from tests.proof.seed import proof_seed, size

ROOT = Path(__file__).resolve().parents[3]
MUTANTS = known(ROOT)
NAMED = [each for each in MUTANTS if re.search(os.environ.get("ONCEWARD_MUTANTS", "."), each.name)]
CHOSEN = drawn(NAMED, proof_seed(), size(len(NAMED), 6))
"""Those that are tried: all, those whose names fit a pattern, or a few of a sampled proof."""


def test_there_are_enough_of_them() -> None:
    """At least thirty, with names of their own, and each promise is broken by three or more."""
    by_promise = {f"P{n}": sum(each.promise == f"P{n}" for each in MUTANTS) for n in range(1, 8)}

    assert len(MUTANTS) == len({each.name for each in MUTANTS})
    assert len(MUTANTS) >= 30
    assert [] == [promise for promise, count in by_promise.items() if count < 3]


@pytest.mark.parametrize("each", MUTANTS, ids=lambda each: each.name)
def test_a_mutant_fits(each: Mutant) -> None:
    """What it replaces stands exactly once in the code of today, and its tests exist."""
    assert 1 == (ROOT / each.file).read_text(encoding="utf-8").count(each.before)
    assert [] == [name for name in each.tests if not (ROOT / name.partition("::")[0]).exists()]


@pytest.mark.broken("mutants leave what they leave")
@pytest.mark.timeout(LIMIT * (1 + len(MUTANTS)))
def test_every_mutant_is_killed(tmp_path: Path, aloud: Callable[[object], None]) -> None:
    """
    Each is planted in a copy and its tests run over it.

    One that goes unnoticed is a hole in the tests. The tests that failed pass in an unchanged
    copy, or their failing would prove nothing.
    """
    found = hunt(ROOT, CHOSEN, aloud=True)
    layers = Counter(each.layer for each in found.killed)

    aloud(f"mutants: {found.count} in {found.seconds:.0f} s, killed by {dict(layers)}")
    assert () == found.violations
    assert len(CHOSEN) == found.count
    killers = sorted({each.killing_tests for each in found.killed})
    assert "" == Copy.of(ROOT, tmp_path / "copy").failing(" ".join(killers))
