"""SQLAlchemy's dialect of SQLite, over the connections of a postbox of an event loop."""

from __future__ import annotations

from typing import Any

from sqlalchemy.dialects.sqlite.base import SQLiteExecutionContext

from onceward.integrations.sqlalchemy.dialect import OncewardDialect


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
