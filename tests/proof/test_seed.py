"""Seeds and sizes follow the environment, never the date unless it is asked for."""

import pytest
from tests.proof.seed import FIXED, PROOF, SEED, proof_seed, size


def test_the_seed_is_fixed_unless_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without ONCEWARD_SEED the seed is the same each day; a number or `today` replaces it."""
    monkeypatch.delenv(SEED, raising=False)
    assert FIXED == proof_seed()
    monkeypatch.setenv(SEED, "42")
    assert 42 == proof_seed()
    monkeypatch.setenv(SEED, "today")
    assert 8 == len(str(proof_seed()))


@pytest.mark.parametrize(
    ("proof", "named", "expected"), [("", "", 9), ("sample", "", 3), ("sample", "7", 7)]
)
def test_a_sample_is_smaller(
    proof: str, named: str, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ONCEWARD_PROOF=sample chooses the small size; a variable of the harness goes before both."""
    monkeypatch.setenv(PROOF, proof)
    monkeypatch.setenv("ONCEWARD_CASES", named)

    assert expected == size(9, 3, "ONCEWARD_CASES")
