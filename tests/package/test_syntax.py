"""The reader of Python source that the checks share."""

import ast
import gc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.syntax import parsed, statements


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


NESTED = """
class A:
    async def f(self):
        async with a: b
        async for c in d: e
        while f:
            if g: import h
            elif i: j
            else: k
        else: l
        try: m
        except* N: o
        else: p
        finally: q
        match r:
            case [s] if t: u
        return lambda: v
for w in x: y
else:
    with z: del z
"""


def test_every_statement_is_found() -> None:
    """In whatever block it is, as a walk over everything finds it."""
    tree = parsed(NESTED)
    walked = [node for node in ast.walk(tree) if isinstance(node, ast.stmt)]

    assert len(walked) > 20
    assert set(walked) == {node for node in statements(tree) if isinstance(node, ast.stmt)}
