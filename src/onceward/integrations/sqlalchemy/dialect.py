"""SQLAlchemy's dialect of SQLite, over the connections of a postbox."""

from __future__ import annotations

from collections.abc import Iterable
from types import ModuleType
from typing import Any, Final, Literal, get_args

from sqlalchemy import URL, NullPool, Pool
from sqlalchemy.dialects import registry
from sqlalchemy.dialects.sqlite.base import SQLiteDialect, SQLiteExecutionContext

from onceward.errors import StoreClosed
from onceward.integrations.dbapi import module as dbapi
from onceward.integrations.sqlalchemy.autogenerate import OURS

NAME: Final = "sqlite.onceward"
Level = Literal["SERIALIZABLE", "READ COMMITTED", "AUTOCOMMIT"]
LEVELS: Final[tuple[Level, ...]] = get_args(Level)


class OncewardDialect(SQLiteDialect):
    """``sqlite+onceward``: a transaction is one of the postbox's writer."""

    driver = "onceward"
    default_paramstyle = "qmark"
    supports_statement_cache = True
    returns_native_bytes = True

    @classmethod
    def import_dbapi(cls) -> ModuleType:
        """Return the module of PEP 249."""
        return dbapi

    @classmethod
    def get_async_dialect_cls(cls, url: URL) -> type[OncewardDialect]:
        """Return the dialect of event loops; needs greenlet."""
        return LoopDialect

    @classmethod
    def get_pool_class(cls, url: URL) -> type[Pool]:
        """Return no pool: a connection is an object in memory, the file is open already."""
        return NullPool

    def create_connect_args(self, url: URL) -> tuple[list[str], dict[str, Any]]:
        """Return no arguments: the engine's creator connects."""
        return [], {}

    def _get_server_version_info(self, connection: Any) -> tuple[int, ...]:
        return dbapi.sqlite_version_info

    def get_isolation_level_values(self, dbapi_connection: Any) -> tuple[Level, ...]:
        """Return the levels there are."""
        return LEVELS

    def get_isolation_level(self, dbapi_connection: Any) -> Level:
        """Return what begins a transaction: the first statement, the first that writes, or each."""
        if dbapi_connection.autocommit:
            return "AUTOCOMMIT"
        return "READ COMMITTED" if dbapi_connection.deferred else "SERIALIZABLE"

    def set_isolation_level(self, dbapi_connection: Any, level: str) -> None:
        """Say what begins a transaction."""
        dbapi_connection.autocommit = level == "AUTOCOMMIT"
        dbapi_connection.deferred = level == "READ COMMITTED"

    def detect_autocommit_setting(self, dbapi_conn: Any) -> bool:
        """Return whether statements are transactions of their own."""
        return bool(dbapi_conn.autocommit)

    def do_begin(self, dbapi_connection: Any) -> None:
        """Take the turn to write, unless the first statement that writes is to take it."""
        if not dbapi_connection.deferred:
            dbapi_connection.begin()

    def do_savepoint(self, connection: Any, name: str) -> None:
        """Open a savepoint, in a transaction."""
        raw = connection.connection.dbapi_connection
        raw.begin()
        raw.savepoint(name)

    def do_rollback_to_savepoint(self, connection: Any, name: str) -> None:
        """Undo a savepoint, its messages included."""
        connection.connection.dbapi_connection.rollback_to(name)

    def do_release_savepoint(self, connection: Any, name: str) -> None:
        """End a savepoint and keep its work."""
        connection.connection.dbapi_connection.release(name)

    def get_table_names(self, connection: Any, *asked: Any, **kw: Any) -> list[str]:
        """Return the user's tables: what is reflected or dropped as a whole leaves ours alone."""
        return _without_ours(super().get_table_names(connection, *asked, **kw))  # type: ignore[no-untyped-call]

    def get_view_names(self, connection: Any, *asked: Any, **kw: Any) -> list[str]:
        """Return the user's views; ours can be reflected by name."""
        return _without_ours(super().get_view_names(connection, *asked, **kw))  # type: ignore[no-untyped-call]

    def is_disconnect(self, e: Any, connection: Any, cursor: Any) -> bool:
        """Return whether the postbox was closed."""
        return isinstance(e.__cause__, StoreClosed)


def _without_ours(names: Iterable[str]) -> list[str]:
    return [name for name in names if not name.startswith(OURS)]


registry.register(NAME, __name__, OncewardDialect.__name__)


class LoopExecutionContext(SQLiteExecutionContext):
    """Runs a statement whose rows are streamed, out of memory."""

    def create_server_side_cursor(self) -> Any:
        """Return a cursor, which has read all its rows."""
        return self._dbapi_connection.cursor()


class LoopDialect(OncewardDialect):
    """``sqlite+onceward`` for ``create_async_engine``."""

    is_async = True
    has_terminate = True
    supports_statement_cache = True
    supports_server_side_cursors = True
    execution_ctx_cls = LoopExecutionContext

    def get_driver_connection(self, connection: Any) -> Any:
        """Return the connection that the calls are made with."""
        return connection.driver_connection

    def do_terminate(self, dbapi_connection: Any) -> None:
        """Roll back what is open."""
        dbapi_connection.terminate()
