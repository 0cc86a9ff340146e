"""Read the stdin of a command: a body, or an answer."""

from __future__ import annotations

import sys

from onceward.ops.cli.exit_codes import NothingThere, Usage
from onceward.ops.cli.output import safe


def read_stdin() -> str:
    """Return all of stdin; raise Usage if it is not text in the terminal's encoding."""
    try:
        return sys.stdin.read()
    except UnicodeDecodeError as error:
        msg = f"stdin is not {error.encoding} text: {error.reason} at byte {error.start}"
        raise Usage(msg) from error


def body_from_stdin(*, asked: bool) -> str:
    """
    Return stdin as the text of a body, without its last line end.

    A terminal is read only if *asked*: otherwise a command without a body would wait for input.

    Raises:
        Usage: stdin is closed, empty or not text, or a terminal that was not asked for.

    """
    readable = sys.stdin is not None and (asked or not sys.stdin.isatty())
    text = read_stdin() if readable else ""
    if not text:
        cure = "give it, pipe it in, or write null for a message without content"
        raise Usage(f"the body is missing: {cure}")
    return text.removesuffix("\n").removesuffix("\r")


def confirm(work: str, cure: str) -> None:
    """
    Ask before bulk work.

    Raises:
        Usage: stdin is not a terminal.
        NothingThere: the answer was no.

    """
    if not sys.stdin.isatty():
        raise Usage(f"this would {work}: {cure}")
    sys.stderr.write(f"{safe(work)}? [y/N] ")
    sys.stderr.flush()
    if sys.stdin.readline().strip().lower() not in {"y", "yes"}:
        raise NothingThere("nothing was changed")
