"""The module of PEP 249 that an ORM works with."""

from __future__ import annotations

from typing import Final, NoReturn

import apsw

from onceward.integrations.dbapi.connections import Connection, Cursor
from onceward.integrations.dbapi.errors import (
    DatabaseError,
    DataError,
    Error,
    IntegrityError,
    InterfaceError,
    InternalError,
    NotSupportedError,
    OperationalError,
    ProgrammingError,
    Warning,  # noqa: A004 - PEP 249 names it
)

__all__ = [
    "Binary",
    "Connection",
    "Cursor",
    "DataError",
    "DatabaseError",
    "Error",
    "IntegrityError",
    "InterfaceError",
    "InternalError",
    "NotSupportedError",
    "OperationalError",
    "ProgrammingError",
    "Warning",
    "apilevel",
    "connect",
    "paramstyle",
    "sqlite_version",
    "sqlite_version_info",
    "threadsafety",
]

apilevel: Final = "2.0"
threadsafety: Final = 1
"""Threads share the module and the engine, not a connection."""
paramstyle: Final = "qmark"
sqlite_version: Final = apsw.sqlite_lib_version()
sqlite_version_info: Final = tuple(int(part) for part in sqlite_version.split("."))
Binary: Final = memoryview


def connect() -> NoReturn:
    """Refuse: a connection needs the open postbox."""
    msg = "a url opens no agent's file: make the engine with engine(box) of an open postbox"
    raise InterfaceError(msg)
