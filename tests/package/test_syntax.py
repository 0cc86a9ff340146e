"""The reader of Python source that the checks share."""

import ast
import gc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.syntax import parsed


@pytest.fixture
def eager() -> Iterator[None]:
    """Collect garbage all the time, and parse something at each collection."""

    def parse(*_: Any) -> None:
        ast.parse("a + b")

    known = gc.get_threshold()
    gc.set_threshold(50)
    gc.callbacks.append(parse)
    yield
    gc.callbacks.remove(parse)
    gc.set_threshold(*known)


@pytest.mark.usefixtures("eager")
def test_garbage_that_parses_does_not_disturb() -> None:
    """A finaliser that parses, as one that logs a traceback does, runs after the tree is made."""
    tree = parsed(Path(__file__))

    assert "eager" in [node.name for node in tree.body if isinstance(node, ast.FunctionDef)]
    assert gc.isenabled()
