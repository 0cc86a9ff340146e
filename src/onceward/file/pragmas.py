"""
Refuse pragmas that have no effect in a transaction, or one on all users of a connection.

All writers of a process share one connection, whose transactions run the statements of blocks,
handlers, steps and openings. There SQLite ignores ``foreign_keys`` and ``journal_mode`` without a
word, and ``busy_timeout``, ``query_only`` or ``locking_mode`` would change every later commit.
"""

from __future__ import annotations

import re
from typing import Final

from onceward.errors import InvalidArgument
from onceward.message.error_text import Hint

ASKS: Final = frozenset({
    "foreign_key_check", "foreign_key_list", "index_info", "index_list", "index_xinfo",
    "integrity_check", "quick_check", "table_info", "table_list", "table_xinfo",
})  # fmt: skip
"""Pragmas whose argument says what to read."""
CARRIED: Final = frozenset(
    {"application_id", "defer_foreign_keys", "incremental_vacuum", "optimize", "user_version"}
)
"""Pragmas whose effect is a part of the transaction, and committed or rolled back with it."""
ACTS: Final = frozenset({"wal_checkpoint"})
"""Pragmas that change something without an argument."""
CURES: Final = {
    "foreign_keys": f"{Hint.FOREIGN_KEYS}, which its file keeps",
    "journal_mode": "an agent's file is always in WAL mode",
    "synchronous": Hint.DURABILITY,
    "wal_checkpoint": Hint.MAINTAIN,
    "busy_timeout": Hint.BUSY_TIMEOUT,
}
"""The way to what a refused pragma is for."""
ELSE: Final = "the connection serves the whole process; its pragmas are set by the postbox"
FLAGS: Final = re.DOTALL | re.IGNORECASE
WORDLESS: Final = re.compile(
    r"""--[^\n]*|/\*.*?(?:\*/|$)|'(?:[^']|'')*'|"(?:[^"]|"")*"|`(?:[^`]|``)*`|\[[^\]]*\]""", FLAGS
)
"""Comments, strings and quoted names, in which a semicolon ends no statement."""
SETS: Final = re.compile(
    r"\s*(?:explain\s+(?:query\s+plan\s+)?)?pragma\b\s*(?:\w+\s*\.\s*)?(?P<name>\w+)\s*(?P<value>[=(])?",
    FLAGS,
)


def refuse(sql: str) -> None:
    """
    Raise InvalidArgument if a statement of *sql* is a pragma that is out of place in a transaction.

    It is called for texts that contain the word.
    """
    for statement in WORDLESS.sub(_without_quotes, sql).split(";"):
        found = SETS.match(statement)
        if found is None:
            continue
        name = found["name"].lower()
        if name in ACTS or (found["value"] and name not in ASKS | CARRIED):
            cure = CURES.get(name, ELSE)
            raise InvalidArgument(f"PRAGMA {name} is not for a transaction: {cure}")


def _without_quotes(found: re.Match[str]) -> str:
    """Return a quoted name without its quotes; a comment as a space, other text as a word."""
    if found[0].startswith(("--", "/*")):
        return " "
    bare = found[0][1:-1]
    return bare if bare.isidentifier() else "_"
