"""The judge over logs and effects: a clean history has no fault, and each fault has its name."""

import os
from pathlib import Path

import pytest

from onceward.testing.history import Effect, Log, judge

CLEAN = [Effect("a1", "a", 1), Effect("b1", "b", 1), Effect("a2", "a", 2)]


def test_a_clean_history_has_no_fault() -> None:
    """Lanes may interleave, and what was tried but not promised may have had its effect."""
    assert [] == judge(tried=["a1", "a2", "b1"], promised=["a1", "a2"], effects=CLEAN)


@pytest.mark.parametrize(
    ("tried", "promised", "effects", "found"),
    [
        (["a1"], ["a1"], [], "a1 was promised and had no effect"),
        (["a1"], ["a1"], [Effect("a1", "a", 1)] * 2, "a1 had 2 effects"),
        ([], [], [Effect("a1", "a", 1)], "a1 had an effect and was never sent"),
        (
            ["a1", "a2"],
            [],
            [Effect("a2", "a", 2), Effect("a1", "a", 1)],
            "a1 of lane a took effect after number 2",
        ),
    ],
)
def test_each_fault_has_its_name(
    tried: list[str], promised: list[str], effects: list[Effect], found: str
) -> None:
    """Loss, repetition, invention and disorder are told apart."""
    assert [found] == judge(tried=tried, promised=promised, effects=effects)


def test_a_log_keeps_whole_lines(tmp_path: Path) -> None:
    """A line that its writer could not finish is not a fact; those before it are."""
    log = Log(tmp_path / "facts.log")
    assert [] == list(log)
    log.add("one", ["two", 2])
    with (tmp_path / "facts.log").open("ab") as file:
        os.write(file.fileno(), b'"thr')

    assert ["one", ["two", 2]] == list(log)
