"""Messages over HTTP from a sender that is killed: each has one effect."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.proof.kills import http_kill_test
from tests.proof.kills.nats_kill_test import orders_for
from tests.proof.seed import proof_seed, size

ORDERS = size(8_000, 1_600, "ONCEWARD_ORDERS")
KILLS = size(80, 20, "ONCEWARD_KILLS")


@pytest.mark.timeout(1200)
def test_messages_of_a_sender_that_is_killed(
    tmp_path: Path, aloud: Callable[[object], None]
) -> None:
    """Sender and workers are killed behind proxies that spoil; nothing is lost or doubled."""
    seed = proof_seed()
    verdict = http_kill_test.trial(tmp_path, orders=ORDERS, kills=KILLS, seed=seed)
    aloud(f"http: {ORDERS} orders, {verdict.count} kills, {verdict.seconds:.0f} s, seed {seed}")

    assert () == verdict.violations
    assert KILLS == verdict.count


@pytest.mark.timeout(1200)
def test_messages_between_homes_that_are_killed(
    tmp_path: Path, aloud: Callable[[object], None]
) -> None:
    """The same between homes that sign with their own keys, and find their agents by name."""
    seed = proof_seed()
    verdict = http_kill_test.trial(tmp_path, orders=ORDERS, kills=KILLS, seed=seed, of_homes=True)
    aloud(f"homes: {ORDERS} orders, {verdict.count} kills, {verdict.seconds:.0f} s, seed {seed}")

    assert () == verdict.violations
    assert KILLS == verdict.count


@pytest.mark.timeout(600)
@pytest.mark.parametrize("of_homes", [False, True])
def test_a_killed_sender_that_believes_everything_is_found(
    tmp_path: Path, *, of_homes: bool
) -> None:
    """A sender that takes forged refusals gives messages up that would have arrived."""
    plant = http_kill_test.believing_sender, ("forged_gone",)
    verdict = http_kill_test.trial(
        tmp_path,
        orders=800,
        kills=5,
        seed=proof_seed(),
        plant=plant,
        patience=10,
        of_homes=of_homes,
    )

    assert any("effects, in order" in wrong for wrong in verdict.violations)


def test_a_trial_has_orders_for_its_time() -> None:
    """However many kills are asked for, it ends soon after its seconds."""
    assert orders_for(120, 86_400.0) == orders_for(10_000, 40.0)
    assert orders_for(1, 86_400.0) < orders_for(120, 86_400.0)
