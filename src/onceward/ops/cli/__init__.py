"""
Run the command ``onceward`` (``main``) and return its help texts (``help_pages``).

Imports the public names, ops, fleet, testing, file and message.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Final

from onceward.errors import MissingExtra
from onceward.message.extras import needs

LIBRARIES: Final = frozenset({"cyclopts", "rich"})
"""Libraries of the extra; an agent's module may lack others, and its own error says so."""


def main(tokens: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; without the extra, say what to install."""
    try:
        with needs("cli", "the command line", only=LIBRARIES):
            from onceward.ops.cli.app import run  # noqa: PLC0415 - an extra

            return run(sys.argv[1:] if tokens is None else list(tokens))
    except MissingExtra as error:
        sys.stderr.write(f"{error}\n")
        return 2
    except BrokenPipeError:  # the reader of our output has closed it
        if tokens is None:  # the interpreter flushes stdout again
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


def help_pages() -> dict[str, str]:
    """Return the plain help text of every command by its full name, the program's own first."""
    from onceward.ops.cli.app import pages  # noqa: PLC0415 - an extra

    return pages()
