"""The explorer by command: asked for more states than one day has, it tries other days."""

import sys
from collections import Counter
from typing import Any

import pytest
from tests.proof.power_cut import __main__ as command
from tests.proof.power_cut import explorer
from tests.proof.power_cut.explorer import Verdict
from tests.proof.power_cut.workload import Town


@pytest.mark.parametrize(
    ("states", "bad", "expected"),
    [(70, 0, [(5, 70), (6, 40), (7, 10)]), (30, 0, [(5, 30)]), (70, 6, [(5, 70), (6, 40)])],
)
def test_one_day_after_the_other(
    states: int, bad: int, expected: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    Each day has thirty ends here.

    The command stops when it has enough, or at the first day with a violation.
    """
    asked: list[tuple[int, int]] = []

    def explore(town: Town, *, states: int, **_: Any) -> Verdict:
        asked.append((town.seed, states))
        found = ("state 1: LOST",) if town.seed == bad else ()
        return Verdict(
            harness="power cuts",
            count=30,
            violations=found,
            seconds=0.0,
            seed=town.seed,
            operations=1,
            in_full=1,
            kinds=Counter(),
        )

    monkeypatch.setattr(explorer, "explore", explore)
    monkeypatch.setattr(sys, "argv", ["power_cut", "--seed", "5", "--states", str(states)])

    assert (bad > 0) == command.main()
    assert expected == asked
