"""An assertion that cannot fail proves nothing."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.syntax import parsed, statements

FOLDERS = ("tests", "src/onceward/testing")
CANNOT_FAIL = (ast.IfExp, ast.Tuple, ast.List, ast.Constant)
"""`assert a if b else c == d` compares only in one branch; the others are always true."""


def test_every_assertion_can_fail(root: Path) -> None:
    """No assert of the tests and suites tests a conditional, a tuple, a list or a constant."""
    found = [
        f"{path.relative_to(root)}:{line}"
        for folder in FOLDERS
        for path in sorted((root / folder).rglob("*.py"))
        for line in _vain(parsed(path))
    ]

    assert [] == found


@pytest.mark.parametrize(
    ("statement", "expected"),
    [
        ("assert a if b else c == d", [1]),
        ("assert (a, 'why')", [1]),
        ("assert [a]", [1]),
        ("assert True", [1]),
        ("assert (a if b else c) == d", []),
        ("assert a", []),
    ],
)
def test_vain_assertions_are_found(statement: str, expected: list[int]) -> None:
    """A conditional without brackets is found, one with brackets is not."""
    assert expected == list(_vain(parsed(statement)))


def _vain(tree: ast.Module) -> Iterator[int]:
    for node in statements(tree):
        if isinstance(node, ast.Assert) and isinstance(node.test, CANNOT_FAIL):
            yield node.lineno
