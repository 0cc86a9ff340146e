"""Parse Python source for checks of what is written."""

import ast
import gc
from collections.abc import Iterator
from pathlib import Path
from typing import Final

BODIES: Final = ("body", "orelse", "finalbody", "handlers", "cases")
"""Fields of a statement, a handler or a case that hold statements."""


def parsed(source: Path | str) -> ast.Module:
    """
    Return the syntax tree of a file or text.

    No garbage is collected meanwhile: where its finaliser logs a traceback, Python 3.11
    parses a line for that, and then fails to make this tree.
    """
    text = source if isinstance(source, str) else source.read_text(encoding="utf-8")
    collects = gc.isenabled()
    gc.disable()
    try:
        return ast.parse(text)
    finally:
        if collects:
            gc.enable()


def statements(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield a tree and all statements in it; expressions, most of a tree, are not looked at."""
    waiting = [tree]
    for node in waiting:  # grows meanwhile
        yield node
        for name in BODIES:
            waiting += getattr(node, name, ())
