"""Restores of an agent, searched to the last state: jobs are done, results are there once."""

from collections.abc import Callable

import pytest
from tests.proof.model.restores import Rules, explore

LOSSES = {"restore", "take_over", "greet", "refused"}


@pytest.mark.timeout(600)
def test_every_restore_can_finish(aloud: Callable[[object], None]) -> None:
    """A disk is lost at any moment, also twice and during a restore; the old machine may go on."""
    found = explore(Rules())
    aloud(f"model, restores: {found.states} states")

    assert ("", ()) == (found.wrong, found.path)
    assert set(found.taken) >= LOSSES


@pytest.mark.parametrize(
    ("rule", "harm"),
    [
        ("ordinal", "no way to finish"),
        ("fresh", "twice"),
        ("greeting", "no way to finish"),
        ("generation", "the agent's file lacks"),
    ],
)
def test_a_restore_without_its_rule_does_harm(rule: str, harm: str) -> None:
    """
    Two results with one id, and a result with a new id each time, are found.

    So are a restored file that greets no peer, and an old file that peers go on with.
    """
    assert harm in explore(Rules(broken=rule)).wrong
