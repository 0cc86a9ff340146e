"""Parse Python source for checks of what is written."""

import ast
import gc
from pathlib import Path


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
