"""Messages through a NATS server that is killed, as both agents are: each has one effect."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.proof.kills import nats_kill_test
from tests.proof.seed import proof_seed, size

ORDERS = size(20_000, 2_400, "ONCEWARD_ORDERS")
KILLS = size(80, 30, "ONCEWARD_KILLS")


@pytest.mark.timeout(1200)
def test_messages_by_way_of_a_server_survive(
    tmp_path: Path, aloud: Callable[[object], None]
) -> None:
    """Server, sender and workers are killed, stores are lost, old and spoiled messages come."""
    seed = proof_seed()
    verdict = nats_kill_test.trial(tmp_path, orders=ORDERS, kills=KILLS, seed=seed)
    aloud(f"nats: {ORDERS} orders, {verdict.count} kills, {verdict.seconds:.0f} s, seed {seed}")

    assert () == verdict.violations
    assert KILLS == verdict.count
