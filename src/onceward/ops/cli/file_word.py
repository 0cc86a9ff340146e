"""Take the word after a command's name as the agent's file, if it names one."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final

SUFFIXES: Final = frozenset({".db", ".sqlite", ".sqlite3"})
WITHOUT: Final = frozenset(
    {"new", "completion", "init", "demo", "serve", "metrics", "top", "inspect"}
)
"""Commands that work on no file of an agent."""
GROUPS: Final = frozenset({"fleet", "homes", "keys", "nats", "ship"})
"""Commands and groups of them that work on many files, or on none."""
OWN: Final = frozenset({"work", "relay", "migrate", "check", "doctor", "backup", "restore"})
"""Commands that have an argument FILE."""
AGENT: Final = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")
GIVEN: Final = ("--db", "--agent", "--home")


def with_file(name: str, tokens: Sequence[str]) -> list[str]:
    """
    Return the tokens of a command with its first word, if that is a file, as ``--db``.

    A word is a file if it ends in .db, .sqlite or .sqlite3, or is a path with a folder to a file
    that exists. With --db, --agent or --home, and after a double dash, no word is taken.
    """
    parts = name.split()
    left = list(tokens[len(parts) :])
    if name in WITHOUT | OWN or parts[0] in GROUPS or not left or not is_file(left[0]):
        return list(tokens)
    if any(token.partition("=")[0] in GIVEN for token in left):
        return list(tokens)
    return [*parts, f"--db={left[0]}", *left[1:]]


def names_agent(word: str) -> bool:
    """Return whether a word is ``module:agent``, which is never a path."""
    return AGENT.fullmatch(word) is not None


def is_file(word: str) -> bool:
    """Return whether a word is meant as a file: by its suffix, or as a path to one."""
    if names_agent(word):
        return False
    if Path(word).suffix in SUFFIXES:
        return not word.startswith("-")
    return os.sep in word and os.path.isfile(word)  # noqa: PTH113 - any text, with a NUL too
