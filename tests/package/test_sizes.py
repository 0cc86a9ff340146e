"""A function does one thing and fits a screen; what is read together is few files."""

import ast
from collections.abc import Iterator
from pathlib import Path
from statistics import median

from tests.syntax import statements

FUNCTION_LINES = 40
MEDIAN_LINES = 8
CORE_FILES = 31  # the watch of the loops on which coroutines run is an idea of its own
FEATURE_FILES = 6


def test_functions_fit_a_screen(trees: dict[str, ast.Module]) -> None:
    """A longer function holds two ideas: split it by its steps, not by line count."""
    long = [f"{name}: {lines} lines" for name, lines in _functions(trees) if lines > FUNCTION_LINES]

    assert [] == long


def test_most_functions_are_small(trees: dict[str, ast.Module]) -> None:
    """The typical function is read at one glance."""
    assert median(lines for _, lines in _functions(trees)) <= MEDIAN_LINES


def test_the_way_of_a_message_is_few_files(modules: dict[str, Path]) -> None:
    """What a message meets on its way is in ``core``; what only some users need is a feature."""
    assert _files(modules, "core.") <= CORE_FILES


def test_a_feature_is_few_files(modules: dict[str, Path]) -> None:
    """A feature can be read, and taken out, as a whole."""
    names = {name.split(".")[1] for name in modules if name.startswith("features.")}

    assert [] == [each for each in names if _files(modules, f"features.{each}.") > FEATURE_FILES]


def _files(modules: dict[str, Path], folder: str) -> int:
    return sum(
        name.startswith(folder) and path.name != "__init__.py" for name, path in modules.items()
    )


def _functions(trees: dict[str, ast.Module]) -> Iterator[tuple[str, int]]:
    for module, tree in trees.items():
        for node in statements(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                yield f"{module}:{node.lineno} {node.name}", _body_lines(node)


def _body_lines(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    body = node.body[1:] if ast.get_docstring(node, clean=False) is not None else node.body
    return (body[-1].end_lineno or body[-1].lineno) - body[0].lineno + 1 if body else 0
