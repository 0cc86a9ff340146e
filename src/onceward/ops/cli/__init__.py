"""
Run the command ``onceward`` (``main``) and return its help texts (``help_pages``).

Imports the public names, ops, fleet, testing, file and message.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Sequence
from typing import Final

from onceward.errors import MissingExtra
from onceward.message.extras import needs

STREAMS: Final = {0: "stdin", 1: "stdout", 2: "stderr"}
LIBRARIES: Final = frozenset({"cyclopts", "rich"})
"""Libraries of the extra; an agent's module may lack others, and its own error says so."""


def main(tokens: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; without the extra, say what to install."""
    _open_streams()
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


def _open_streams() -> None:
    """
    Open the null device for each closed standard stream, and escape what an output cannot encode.

    The next file that is opened, an agent's perhaps, would get the number of a closed stream.
    """
    while (number := os.open(os.devnull, os.O_RDWR)) in STREAMS:
        pass
    os.close(number)
    for name in STREAMS.values():
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "r+", encoding="utf-8"))  # noqa: SIM115, PTH123
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def help_pages() -> dict[str, str]:
    """Return the plain help text of every command by its full name, the program's own first."""
    from onceward.ops.cli.app import pages  # noqa: PLC0415 - an extra

    return pages()
