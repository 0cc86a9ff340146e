"""``python -m tests.proof`` runs what it is asked for, in its time; it fails on a violation."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.proof import prove as proving
from tests.proof.prove import HARNESSES, Harness, prove
from tests.proof.simulation.campaign import EXPECTED


@dataclass(frozen=True, slots=True)
class Found:
    """What a harness of one test found."""

    count: int
    violations: tuple[str, ...] = ()
    seconds: float = 0.1


def planted(calls: list[Any], *violations: str) -> Callable[[int, float, int], Found]:
    """Return a harness that notes how it was called."""

    def run(size: int, seconds: float, seed: int) -> Found:
        calls.append((size, seconds, seed))
        return Found(size, violations)

    return run


def test_the_model_is_searched_in_its_time(capsys: pytest.CaptureFixture[str]) -> None:
    """A search that would take minutes ends when its time is up, and what it visited is told."""
    code = prove(seconds=0.2, only="protocol", json=True)

    rows = json.loads(capsys.readouterr().out)["harnesses"]
    assert (0, ["protocol", "protocol, put back"]) == (code, [row["harness"] for row in rows])
    assert [True, True] == [0 < row["count"] < 20_000 for row in rows]


def test_time_is_shared_and_full_is_full(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """
    Seconds are shared among the harnesses, and what one leaves is the others'.

    Without them each has its usual size, or its full one.
    """
    calls: list[Any] = []
    monkeypatch.setattr(
        proving,
        "HARNESSES",
        tuple(Harness(name, "cases", 5, 90, planted(calls)) for name in ("one", "two")),
    )

    assert [0, 0, 0] == [prove(seconds=10, seed=7), prove(seed=7), prove(full=True, seed=7)]
    assert [90, 90, 5, 5, 90, 90] == [size for size, _, _ in calls]
    assert [5, 10] + [proving.UNBOUNDED] * 4 == pytest.approx(
        [share for _, share, _ in calls], rel=0.1
    )
    assert {7} == {seed for *_, seed in calls}
    assert "one" in capsys.readouterr().out


def test_a_broken_promise_fails(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit code 1, and the line that says how to see it again."""
    monkeypatch.setattr(
        proving, "HARNESSES", (Harness("one", "cases", 5, 90, planted([], "seed 4: lost")),)
    )

    assert 1 == prove(seed=7)
    assert "one: seed 4: lost" in capsys.readouterr().out


def test_every_harness_has_a_size() -> None:
    """Each is larger in full than by default, and no two have one name."""
    assert len(HARNESSES) == len({each.name for each in HARNESSES})
    assert [] == [each.name for each in HARNESSES if each.full <= each.size]


def test_what_cannot_run_here_says_so(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """
    Planted mistakes need the project's own tests.

    Elsewhere their row says that they were not tried, and nothing fails.
    """
    monkeypatch.chdir(tmp_path)

    assert 0 == prove(only="mutants", json=True)
    [row] = json.loads(capsys.readouterr().out)["harnesses"]
    assert (0, True) == (row["count"], "project's own tests" in row["skipped"])


def test_rare_branches_have_a_row(capsys: pytest.CaptureFixture[str]) -> None:
    """What simulated worlds went through is a row of its own, beside the worlds."""
    assert 0 == prove(only="simulation", seconds=0.01, json=True, seed=7)

    rows = json.loads(capsys.readouterr().out)["harnesses"]
    assert ["simulation", "rare branches"] == [row["harness"] for row in rows]
    assert 0 < rows[1]["count"] < len(EXPECTED)
