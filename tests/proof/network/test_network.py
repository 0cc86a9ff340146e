"""Over a spoiled network, to a process that is killed, each message has one effect, in order."""

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.proof.network.proxy import FAULTS
from tests.proof.network.trial import trial
from tests.proof.seed import proof_seed, size

from onceward.transports.network.http import HttpTransport

MESSAGES = size(4000, 800, "ONCEWARD_MESSAGES")
KILLS = size(40, 8, "ONCEWARD_NETWORK_KILLS")


@pytest.mark.timeout(600)
def test_each_message_has_one_effect(tmp_path: Path, aloud: Callable[[object], None]) -> None:
    """
    A proxy refuses, cuts, repeats, delays, forges and flips; the recipient is killed.

    Nothing is lost, doubled or out of order, and both files agree.
    """
    seed = proof_seed()
    verdict = trial(MESSAGES, KILLS, seed, tmp_path)
    aloud(
        f"network: {verdict.count} messages, {verdict.kills} kills,"
        f" {sum(verdict.spoiled.values())} spoiled, {verdict.seconds:.0f} s, seed {seed}"
    )

    assert () == verdict.violations, f"seed {seed}"
    assert set() == verdict.spoiled.keys() - set(FAULTS)
    assert sum(verdict.spoiled.values()) > 0


@pytest.mark.timeout(300)
def test_a_sender_that_believes_everything_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sender that takes unsigned answers believes forged refusals, and gives messages up."""
    monkeypatch.setattr(HttpTransport, "_prove", lambda *_: None)

    verdict = trial(300, 2, proof_seed(), tmp_path, faults=("forged_gone",), patience=10)

    assert any("lost" in wrong for wrong in verdict.violations)
