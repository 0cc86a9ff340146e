"""Groups that take turns, in every order of arrivals, claims, ends, failures and deaths."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.proof.model import turns
from tests.proof.model.search import Machine, explore
from tests.proof.model.turns import Rules

TURNS = Machine(turns.start, turns.steps, turns.wrong, turns.finished)
TWO = Rules(groups=(1, 1, 2), messages=5)
THREE = Rules(groups=(1, 1, 2, 3), messages=5)


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "rules",
    [
        TWO,
        TWO._replace(rate=True),
        TWO._replace(at_once=2),
        THREE._replace(batch=1),
        THREE._replace(rate=True),
        THREE._replace(batch=3, at_once=2),
    ],
    ids=repr,
)
def test_groups_take_turns(rules: Rules, aloud: Callable[[object], None]) -> None:
    """
    No lane is forgotten, no group runs more than it may, and none is passed twice by another.

    All messages can be handled from every state.
    """
    found = explore(rules, machine=TURNS)
    aloud(f"model, turns: {found.count} states in {found.seconds:.0f} s")

    assert () == found.violations
    assert {"claim", "end", "fail", "die", "retry"} <= set(found.taken)


@pytest.mark.parametrize(
    ("rule", "rules", "harm"),
    [
        ("late", TWO, "no turn"),
        ("emptied", TWO, "no turn"),
        ("first", TWO._replace(at_once=2, batch=1), "passed twice"),
        ("uncounted", TWO, "more calls"),
        ("asleep", TWO._replace(rate=True), "no way to finish"),
    ],
)
def test_turns_without_their_rule_do_harm(rule: str, rules: Rules, harm: str) -> None:
    """
    A turn in a later commit, or one that is deleted while lanes wait, leaves lanes behind.

    A group that keeps its place passes others, leases that are not counted are too many, and a rest
    that no claim ends lasts for ever.
    """
    found = explore(rules._replace(broken=rule), machine=TURNS)

    assert found.path
    assert harm in found.violations[0]
