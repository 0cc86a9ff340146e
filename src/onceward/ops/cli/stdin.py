"""Read what a command is given on stdin."""

from __future__ import annotations

import sys

from onceward.ops.cli.exit_codes import Usage


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

    A terminal is read only if *asked*: a command that was given no body would wait for one.

    Raises:
        Usage: stdin is closed, empty or no text, or a terminal that the command was not to read.

    """
    readable = sys.stdin is not None and (asked or not sys.stdin.isatty())
    text = read_stdin() if readable else ""
    if not text:
        cure = "give it, or pipe it in, or write null for a message without content"
        msg = f"there is no body: {cure}"
        raise Usage(msg)
    return text.removesuffix("\n").removesuffix("\r")
