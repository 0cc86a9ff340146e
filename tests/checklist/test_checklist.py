"""Every line that five other systems state has its test here, or says what is different."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest
from tests.checklist import checklist
from tests.syntax import parsed, statements

ROOT = Path(__file__).parents[2]
STATED = {"M": 64, "Z": 74, "C": 72, "A": 50, "N": 28}
"""How many lines each system states, counted from 1."""


@pytest.mark.parametrize("letter", STATED)
def test_every_line_is_there_once_and_in_order(letter: str) -> None:
    """No line was left out, added or put elsewhere."""
    assert [f"{letter}{number}" for number in range(1, STATED[letter] + 1)] == [
        line.name for line in checklist.lines(letter)
    ]


@pytest.mark.parametrize("letter", STATED)
def test_every_line_is_shown_or_differs(letter: str) -> None:
    """A line says what is stated, and names a test or a difference."""
    assert [] == [
        line.name
        for line in checklist.lines(letter)
        if not line.says or not (line.tests or line.differs)
    ]


@pytest.mark.parametrize("letter", STATED)
def test_every_named_test_exists(letter: str) -> None:
    """A line names only tests that exist and that are expected to pass."""
    named = [(line.name, test) for line in checklist.lines(letter) for test in line.tests]

    assert [] == [
        f"{name}: {test}"
        for name, test in named
        if test.partition("::")[2] not in _proofs(test.partition("::")[0])
    ]


def test_a_failing_proof_is_none(tmp_path: Path) -> None:
    """Only tests that are expected to pass count."""
    (tmp_path / "test_x.py").write_text(
        "import pytest\ndef test_good(): ...\n"
        "@pytest.mark.xfail(strict=True)\ndef test_bad(): ...\n"
        "@pytest.mark.skip\ndef test_no(): ...\n",
        encoding="utf-8",
    )

    assert {"test_good"} == _proofs(str(tmp_path / "test_x.py"))


@cache
def _proofs(path: str) -> set[str]:
    file = ROOT / path
    if not path or not file.is_file():
        return set()
    functions = (node for node in statements(parsed(file)) if isinstance(node, ast.FunctionDef))
    return {
        node.name
        for node in functions
        if node.name.startswith("test_") and not any(map(_excused, node.decorator_list))
    }


def _excused(decorator: ast.expr) -> bool:
    return re.search(r"\bmark\.(xfail|skip)\b", ast.unparse(decorator)) is not None
