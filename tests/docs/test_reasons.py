"""The docs' table of reasons, the vocabulary, and the places in the code that write reasons."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final, get_args

import pytest
from tests.syntax import parsed

from onceward.message.vocabulary import REASONS, Reason, reason_of

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "onceward"
PAGE = ROOT / "docs" / "how-to" / "deal-with-dead-letters.md"
VOCABULARY = PACKAGE / "message" / "vocabulary.py"
PARTS = ("message", "core", "features", "api")
"""Parts of the package that end messages."""
POSITION: Final = {"Dead": 0, "Done": 1, "Receipt": 2, "reason_text": 0, "ParsedFrame": 2}
"""By call: which of its arguments is a reason, or a text that begins with one."""
KEYWORDS: Final = {"bury", "dead_letter", "Dead", "Done", "Receipt"}
"""Calls whose argument ``reason`` is one."""
IN_SQL = re.compile(r"\breason = '([^']+)'")


def test_the_page_explains_every_reason() -> None:
    """Each reason has one row: where, what it means, and what to do."""
    rows = _rows(PAGE.read_text(encoding="utf-8"))

    assert sorted(REASONS) == sorted(name for name, *_ in rows)
    assert [] == [name for name, *cells in rows if len(cells) != 3 or not all(cells)]


def test_the_code_writes_reasons_of_the_vocabulary_only() -> None:
    """A reason that is written literally, in a call or in SQL, is one of the Literal."""
    found = {
        (path.relative_to(ROOT).as_posix(), text)
        for path, tree in _trees()
        for text in _written(tree)
        if reason_of(text) is None
    }

    assert set() == found


def test_every_reason_is_written() -> None:
    """The vocabulary holds no reason that no code gives any more."""
    written = {
        reason_of(text) or reason
        for path, tree in _trees()
        if path != VOCABULARY
        for text in _constants(tree)
        for reason in [text, *IN_SQL.findall(text)]
    }

    assert set() == set(get_args(Reason)) - written


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ('Dead("new", "why")', ["new"]),
        ('states.Dead(reason="new")', ["new"]),
        ('Done("dropped", f"new: {why}")', ["new: "]),
        ('Receipt(i, "dead", "new" if a else b)', ["new"]),
        ('bury(tx, seqs, reason="new")', ["new"]),
        ('''SQL = "UPDATE t SET reason = 'new' WHERE seq = ?"''', ["new"]),
        ('Dead(reason, "why")', []),
        ('Done("dropped")', []),
    ],
)
def test_a_new_reason_is_found(code: str, expected: list[str]) -> None:
    """The search finds a reason by position and keyword, in an f-string, and in SQL."""
    assert expected == list(_written(parsed(code)))


def _rows(text: str) -> list[tuple[str, ...]]:
    """Return the rows of every table of the page whose first column is headed "reason"."""
    found: list[tuple[str, ...]] = []
    for table in re.findall(r"^\| reason \|.*\n\|[ |-]+\n((?:\|.*\n)+)", text, re.MULTILINE):
        for line in table.splitlines():
            name, *cells = (cell.strip() for cell in line.strip("| ").split("|"))
            found.append((name.strip("`"), *cells))
    return found


def _trees() -> Iterator[tuple[Path, ast.Module]]:
    for part in PARTS:
        for path in sorted((PACKAGE / part).rglob("*.py")):
            yield path, parsed(path)


def _written(tree: ast.AST) -> Iterator[str]:
    """Yield every literal text that is given as a reason."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            for argument in _reasons(node):
                yield from _beginnings(argument)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield from IN_SQL.findall(node.value)


def _reasons(call: ast.Call) -> Iterator[ast.expr]:
    name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    position = POSITION.get(name)
    if position is not None and position < len(call.args):
        yield call.args[position]
    if name in KEYWORDS:
        yield from (each.value for each in call.keywords if each.arg == "reason")


def _beginnings(node: ast.expr) -> Iterator[str]:
    """Yield the literal texts with which an expression may begin."""
    match node:
        case ast.Constant(value=str(text)) if text:
            yield text
        case ast.JoinedStr(values=[ast.Constant(value=str(text)), *_]):
            yield text
        case ast.IfExp(body=one, orelse=other):
            yield from (*_beginnings(one), *_beginnings(other))
        case ast.BoolOp(values=values):
            for value in values:
                yield from _beginnings(value)


def _constants(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value
