"""Open an agent's file on a read-only connection for a few quick statements."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from onceward.errors import StoreUnusable
from onceward.file.connection import BusyHandler, SQLError, close, connect, translate_error

Rows = Callable[..., list[tuple[Any, ...]]]
"""Runs a reading statement and returns all of its rows."""
WAIT_FOR: Final = 0.25
"""Seconds. A reader of a WAL waits only for a recovery or for the last connection's close."""


@contextmanager
def reading(path: Path) -> Iterator[Rows]:
    """
    Read a file for a block, all of it as it is at one moment.

    No writer waits for it. The WAL cannot be emptied meanwhile, so the block is to be short.

    Raises:
        StoreUnusable: it has no views of this version, or is none of ours.
        StoreError: it cannot be opened or read.

    """
    patience = BusyHandler()
    patience.deadline = time.monotonic() + WAIT_FOR
    con = connect(path, readonly=True, patience=patience)
    try:
        con.execute("BEGIN")
        yield lambda sql, bindings=None: con.execute(sql, bindings).fetchall()
    except SQLError as error:
        msg = f"{path} has no views of this version: run onceward migrate {path} ({error})"
        raise StoreUnusable(msg) from error
    except Exception as error:
        raise translate_error(error, path) from error
    finally:
        close(con)
