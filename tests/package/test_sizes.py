"""A function does one thing and fits a screen."""

import ast
from collections.abc import Iterator
from statistics import median

FUNCTION_LINES = 40
MEDIAN_LINES = 8


def test_functions_fit_a_screen(trees: dict[str, ast.Module]) -> None:
    """A longer function holds two ideas: split it by its steps, not by line count."""
    long = [f"{name}: {lines} lines" for name, lines in _functions(trees) if lines > FUNCTION_LINES]

    assert [] == long


def test_most_functions_are_small(trees: dict[str, ast.Module]) -> None:
    """The typical function is read at one glance."""
    assert median(lines for _, lines in _functions(trees)) <= MEDIAN_LINES


def _functions(trees: dict[str, ast.Module]) -> Iterator[tuple[str, int]]:
    for module, tree in trees.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                yield f"{module}:{node.lineno} {node.name}", _body_lines(node)


def _body_lines(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    body = node.body[1:] if ast.get_docstring(node, clean=False) is not None else node.body
    return (body[-1].end_lineno or body[-1].lineno) - body[0].lineno + 1 if body else 0
