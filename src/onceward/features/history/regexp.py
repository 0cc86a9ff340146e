"""Match SQLite's own regular expressions, in linear time for any pattern."""

from __future__ import annotations

from typing import Final

import apsw

from onceward.errors import InvalidArgument
from onceward.message.names import quoted

LONGEST: Final = 1000
STEPS: Final = 250
"""Maximum steps of a pattern with expanded repetitions; matching may take their square."""
LENGTH_LIMIT: Final = 2 * (STEPS - 75)
"""The limit of SQLite from which its matcher derives the maximum number of steps."""
TOO_BIG: Final = "pattern too big"
DIALECT: Final = "literals . [a-z] [^a-z] * + ? {n,m} ( | ) ^ $ \\d \\w \\s \\b"


class Pattern:
    """
    One pattern, searched anywhere in a text.

    The matcher does not backtrack, and its steps are bounded, so no pattern hangs it.

    Raises:
        InvalidArgument: the pattern is not valid, has too many steps, or this build of
            apsw has no matcher.

    """

    def __init__(self, pattern: str) -> None:
        if not isinstance(pattern, str) or not 0 < len(pattern) <= LONGEST or not _plain(pattern):
            rule = f"must be a regular expression of 1 to {LONGEST} characters"
            raise InvalidArgument(f"content {quoted(pattern)} {rule}")
        self._pattern, self._con = pattern, apsw.Connection(":memory:")
        try:
            _load(self._con)
            self._con.limit(apsw.SQLITE_LIMIT_LIKE_PATTERN_LENGTH, LENGTH_LIMIT)
            self.found("")
        except apsw.SQLError as error:
            self.close()
            if TOO_BIG in str(error):
                raise InvalidArgument(
                    f"content {quoted(pattern)} is larger than about {STEPS} steps with expanded "
                    "repetitions: repeat less, or search for a shorter text"
                ) from error
            msg = f"content {quoted(pattern)} is not a regular expression of {DIALECT}: {error}"
            raise InvalidArgument(msg) from error
        except BaseException:
            self.close()
            raise

    def found(self, text: str) -> bool:
        """Return whether the pattern occurs in *text*."""
        return bool(self._con.execute("SELECT ? REGEXP ?", (text, self._pattern)).get)

    def close(self) -> None:
        """Release the matcher."""
        self._con.close()


def _plain(pattern: str) -> bool:
    """Return whether SQL reads a pattern completely: it has no NUL and no half surrogate pair."""
    return "\0" not in pattern and pattern == pattern.encode(errors="ignore").decode()


def _load(con: apsw.Connection) -> None:
    msg = (
        "this build of apsw has no regular expressions:"
        " install an apsw wheel, or filter the messages in Python"
    )
    try:
        from apsw import sqlite_extra  # noqa: PLC0415 - searches by content only
    except ImportError as error:
        raise InvalidArgument(msg) from error
    if sqlite_extra.has("regexp") != "extension":
        raise InvalidArgument(msg)
    sqlite_extra.load(con, "regexp")
