"""Run the command ``onceward`` (``main``) and return its help texts (``help_pages``)."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

INSTALL = "pip install 'onceward[cli]'"
LIBRARIES = frozenset({"cyclopts", "rich"})


def main(tokens: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; without the extra, say what to install."""
    try:
        from onceward.ops.cli.app import run  # noqa: PLC0415 - an extra

        return run(sys.argv[1:] if tokens is None else list(tokens))
    except ModuleNotFoundError as error:
        library = (error.name or "").partition(".")[0]
        if library not in LIBRARIES:
            raise
        sys.stderr.write(f"the command line needs {library}, which is not installed: {INSTALL}\n")
        return 1
    except BrokenPipeError:  # the reader of our output has gone
        if tokens is None:  # the interpreter flushes stdout once more
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


def help_pages() -> dict[str, str]:
    """Return the plain help text of every command by its full name, the program's own first."""
    from onceward.ops.cli.app import pages  # noqa: PLC0415 - an extra

    return pages()
