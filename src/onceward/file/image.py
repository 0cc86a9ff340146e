"""
Copy the tables into a new file.

The statements of the schema take longer than all else of an opening. They run once in a process, in
memory; into each new file SQLite copies the pages that they made.

The copy is one transaction: lock the file for writing; see that it is still empty, because another
process may have created its tables meanwhile; copy. It is not synced: the opening's next commit is,
which stores the owner, and syncs both. A process that is killed in between leaves a file with
tables and without an owner, and the next opening stores its own.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Final

import apsw

from onceward.file import migrations
from onceward.file.transaction import StoreTransaction
from onceward.message.clock import Millis

CreateTables = Callable[[StoreTransaction], None]
UNKNOWN: Final[Millis] = 0
"""The time in an image; a file gets its own with its owner."""
PAGE_SIZE: Final = slice(16, 18)
RESERVED: Final = 20
"""Their places in the header of a file."""
DATABASE: Final = 0
WAL: Final = 1
"""The files that ``apsw.Connection.read`` reads."""


def copy_tables(con: apsw.Connection, create: CreateTables) -> None:
    """
    Copy what *create* creates into a file that has no tables; *con* has just switched it to WAL.

    Nothing is copied into a file of another format, or that is not empty any more.
    """
    if con.pragma("journal_mode") != "wal":  # a VFS may have refused it
        return
    made = apsw.Connection(":memory:")
    con.pragma("synchronous", "normal")
    try:
        made.deserialize("main", pages(create))
        if (form := _format(con)) == _format(made):
            with con.backup("main", made, "main") as copy:
                copy.step(0)  # locks the file
                if _is_empty(con, form[0]):
                    copy.step()
    finally:
        made.close()
    con.pragma("synchronous", "full")  # after an error the connection is closed


def _format(con: apsw.Connection) -> tuple[int, int]:
    """Return the size of a page, and the number of its bytes that a VFS keeps for itself."""
    header = con.read("main", DATABASE, 0, 100)[1]
    return int.from_bytes(header[PAGE_SIZE]), header[RESERVED]


def _is_empty(con: apsw.Connection, page: int) -> bool:
    """Return whether a locked file has no commit but that of its first page."""
    if con.read("main", WAL, 0, 1)[0]:  # before the file, into which its commits are moved
        return False
    return not con.read("main", DATABASE, page, 1)[0]


def pages(create: CreateTables) -> bytes:
    """Return a database that has what *create* creates, as bytes."""
    return _pages(create, migrations.migrations())


def forget() -> None:
    """Free the pages that were made; the next new file makes them again."""
    _pages.cache_clear()


@lru_cache(maxsize=2)
def _pages(create: CreateTables, known: tuple[migrations.Migration, ...]) -> bytes:
    """Return the pages of a schema of the *known* steps, 580 KB."""
    del known  # a part of the key
    con = apsw.Connection(":memory:")
    con.pragma("auto_vacuum", 2)
    con.execute("BEGIN")
    create(StoreTransaction(con, UNKNOWN))
    con.execute("COMMIT")
    image = con.serialize("main")
    con.close()
    return image
