"""A connection of PEP 249 as Django uses it: values of Python, its functions, autocommit."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import apsw

from onceward import Postbox
from onceward.file.transaction import StoreTransaction
from onceward.integrations.dbapi import connections
from onceward.integrations.dbapi.connections import Work
from onceward.integrations.dbapi.statements import Bindings, Result, run, run_many
from onceward.integrations.django.backend.functions import FUNCTIONS
from onceward.integrations.django.backend.values import adapt_all, converted, qmark


class DjangoConnection(connections.Connection):
    """
    One connection of the ORM, for one thread; it opens nothing.

    Outside of ``atomic``, a statement in a handler or block that has written is part of its
    transaction, so that it sees what was written there.
    """

    def __init__(self, box: Postbox) -> None:
        super().__init__(box._outbox)
        self.autocommit = True
        self._box = box

    @property
    def usable(self) -> bool:
        """Whether its postbox is still open in this process."""
        return not (self._closed or self._box._closed or self._db.writer.queue.closed)

    @property
    def around(self) -> StoreTransaction | None:
        """The open transaction of the handler, or block, that this thread is in."""
        writer = self._db.writer
        return writer.open_transaction() if writer.held and self._tx is None else None

    def cursor(self) -> QmarkCursor:
        """Return a cursor whose placeholders are SQLite's."""
        self._check_usable()
        return QmarkCursor(self)

    def run(self, work: Work) -> Result:
        """Run *work* on the connection that is right for it."""
        if self.autocommit and self._tx is None and self._db.writer.held:
            self._check_usable()
            return self.write(work)
        return super().run(work)

    def set_foreign_keys(self, *, checked: bool) -> bool:
        """Turn the check of foreign keys on or off, if no transaction is open; return its state."""
        if not self._db.writer.held:
            self._db._set_foreign_keys(checked=checked)
        return self._db.foreign_keys

    def getlimit(self, category: int) -> int:
        """Return a limit of SQLite, by its number."""
        with self._db.readers.lend(self._db.writer.queue.timeout) as con:
            return con.limit(category)

    # as those of sqlite3, which programs add when a connection is created
    create_function = staticmethod(FUNCTIONS.create_function)
    create_aggregate = staticmethod(FUNCTIONS.create_aggregate)
    create_collation = staticmethod(FUNCTIONS.create_collation)


class QmarkCursor(connections.Cursor):
    """A cursor that converts values as Django expects."""

    def execute(self, sql: str, bindings: Bindings = None) -> QmarkCursor:
        """Run one statement."""
        given = adapt_all(bindings)
        self._keep(self.connection.run(partial(_with_functions, lambda con: run(con, sql, given))))
        return self

    def executemany(self, sql: str, bindings: Iterable[Bindings]) -> QmarkCursor:
        """Run one statement for each of *bindings*."""
        each = [adapt_all(given) for given in bindings]
        self._keep(
            self.connection.run(partial(_with_functions, lambda con: run_many(con, sql, each)))
        )
        return self

    def _keep(self, result: Result) -> QmarkCursor:
        super()._keep(result)
        self._rows = iter(converted(result.rows, result.columns))
        return self


class FormatCursor(QmarkCursor):
    """A cursor whose placeholders are ``%s`` and ``%(name)s``."""

    def execute(self, sql: str, bindings: Bindings = None) -> QmarkCursor:
        """Run one statement; without *bindings* a percent sign stands for itself."""
        return super().execute(sql if bindings is None else qmark(sql, bindings), bindings)

    def executemany(self, sql: str, bindings: Iterable[Any]) -> QmarkCursor:
        """Run one statement for each of *bindings*."""
        each = list(bindings)
        return super().executemany(qmark(sql, each[0] if each else ()), each)


def _with_functions(work: Callable[[apsw.Connection], Result], con: apsw.Connection) -> Result:
    FUNCTIONS.give(con)
    return work(con)
