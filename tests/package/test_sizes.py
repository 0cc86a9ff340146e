"""A function does one thing and fits a screen; a folder has a budget of lines."""

import ast
import tokenize
from collections import Counter
from collections.abc import Iterator
from io import StringIO
from pathlib import Path
from statistics import median
from typing import TypeGuard

from tests.syntax import statements

FUNCTION_LINES = 40
MEDIAN_LINES = 8
BUDGET = {
    "file": 5_110,  # homes; files that sleep; a new file gets its tables by one copy
    "core": 11_256,  # bodies in files; limits set while they run; ids of restores, of keys
    "features": 11_080,  # keys of stored bodies; lanes of other code; set limits; groups; status
    "message": 4_246,  # wire versions; status of a message; validators known to forks
    "api": 2_627,  # the postbox of a handler; status; typed gather; handlers that send
    "transports": 4_898,  # wire versions; webhooks
    "ops": 12_172,  # pages of groups; limits of handlers in forms; a drill of backups
    "fleet": 6_563,  # messages judged in a quarter less time: tables by side; other contents
    "testing": 1_623,
    "": 752,  # deprecations; an unsupported version; webhooks; a body of another version
    "integrations": 3_738,  # webhooks; Django: a database, its tasks, a command, the admin
}
"""Most code lines of each folder of the package; "" is the package itself."""
BLANK = {
    tokenize.COMMENT,
    tokenize.DEDENT,
    tokenize.ENCODING,
    tokenize.ENDMARKER,
    tokenize.INDENT,
    tokenize.NEWLINE,
    tokenize.NL,
}

LONG_FILE = 500
LONG_FILES = {
    "core.handle.worker",
    "core.rows.outbox",  # a table has one module that writes it
}
"""Modules of the core that are longer; none may join."""


def test_functions_fit_a_screen(trees: dict[str, ast.Module]) -> None:
    """A longer function holds two ideas: split it by its steps, not by line count."""
    long = [f"{name}: {lines} lines" for name, lines in _functions(trees) if lines > FUNCTION_LINES]

    assert [] == long


def test_most_functions_are_small(trees: dict[str, ast.Module]) -> None:
    """The typical function is read at one glance."""
    assert median(lines for _, lines in _functions(trees)) <= MEDIAN_LINES


def test_a_folder_keeps_its_budget(trees: dict[str, ast.Module], modules: dict[str, Path]) -> None:
    """A feature raises the budget of its folder in its own commit, which says why."""
    lines = Counter[str]()
    for module, path in modules.items():
        folder = module.partition(".")[0]
        lines[folder if folder in BUDGET else ""] += code_lines(trees[module], path)

    assert {} == {name: count for name, count in lines.items() if count > BUDGET[name]}


def test_few_modules_of_the_core_are_long(modules: dict[str, Path]) -> None:
    """A module holds one idea, and a long one seldom does."""
    lines = {name: len(path.read_text().splitlines()) for name, path in modules.items()}

    assert LONG_FILES == {
        name for name, count in lines.items() if name.startswith("core.") and count > LONG_FILE
    }


def test_docstrings_comments_and_imports_are_free() -> None:
    """Only lines with code count, those inside of a statement's text too."""
    text = '"""Do."""\n\nimport os\n# why\nA = """\none\n\n"""\n\n\n'
    text += 'def f():\n    """Do."""\n    return A\n'

    assert 6 == len(_code(text, ast.parse(text)))


def code_lines(tree: ast.Module, path: Path) -> int:
    """Count the lines of a module with a token of code, without imports and docstrings."""
    return len(_code(path.read_text(encoding="utf-8"), tree))


def _code(text: str, tree: ast.Module) -> set[int]:
    free: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom) or _is_text(node):
            free |= {*range(node.lineno, (node.end_lineno or 0) + 1)}
    tokens = tokenize.generate_tokens(StringIO(text).readline)
    found = [range(each.start[0], each.end[0] + 1) for each in tokens if each.type not in BLANK]
    return {line for each in found for line in each} - free


def _is_text(node: ast.AST) -> TypeGuard[ast.Expr]:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _functions(trees: dict[str, ast.Module]) -> Iterator[tuple[str, int]]:
    for module, tree in trees.items():
        for node in statements(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                yield f"{module}:{node.lineno} {node.name}", _body_lines(node)


def _body_lines(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    body = node.body[1:] if ast.get_docstring(node, clean=False) is not None else node.body
    return (body[-1].end_lineno or body[-1].lineno) - body[0].lineno + 1 if body else 0
