"""A PEP 249 connection over the connections of an open postbox."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from threading import get_ident
from typing import Any, Final, Protocol, cast
from weakref import WeakKeyDictionary, WeakSet

import apsw

from onceward import Transaction
from onceward.errors import StoreFault
from onceward.file.database import Database
from onceward.file.group_commit import ENDED
from onceward.file.transaction import SavepointMark, StoreTransaction
from onceward.integrations.dbapi.errors import (
    ProgrammingError,
    WrongThread,
    pep249,
)
from onceward.integrations.dbapi.statements import Bindings, Columns, Result, run, run_many

Work = Callable[[apsw.Connection], Result]
SECOND: Final = (
    "this thread has a transaction open in another session or connection of the ORM, so this"
    " one only reads what is committed: end that one first, or write with it"
)
CLOSED: Final = "this connection is closed: take another from the engine"
OTHER_THREAD: Final = (
    "the transaction belongs to the thread that began it: commit, or roll back, there;"
    " each thread has a session of its own"
)
NO_TRANSACTION: Final = "no transaction is open: AUTOCOMMIT has neither savepoints nor messages"
INSIDE: Final = (
    "a block, or another session of the ORM, began inside this one and is still open: end it first"
)
BLOCK_ENDED: Final = (
    "the block or handler that it joined ended before this session, with all that it had written:"
    " close the session inside"
)

_numbers = count(1)
_begun: WeakKeyDictionary[Database, StoreTransaction] = WeakKeyDictionary()
"""The open transaction of each file that a connection of ours began, not a block or a handler."""
_joined: WeakKeyDictionary[Database, WeakSet[Connection]] = WeakKeyDictionary()
"""The connections that have joined a block or a handler of each file."""


class StatementRunner(Protocol):
    """Runs a statement on the connection that is right for it."""

    def run(self, work: Work) -> Result:
        """Run *work*."""
        ...


class Connection:
    """
    A connection of PEP 249; it opens nothing.

    A transaction has the writer's turn from ``begin`` on, or joins by savepoint the
    block or the handler that this thread is in. It belongs to its thread; only a
    rollback may come from another. Without one, statements read what is
    committed on the read-only connection, and the first that writes begins one,
    or is one with ``autocommit``; *deferred* has no ``begin`` before that one, outside
    a block or a handler. The second connection of a thread only reads.
    """

    def __init__(self, outbox: Any) -> None:
        self._outbox = outbox  # the postbox's, which is not a public type
        self._db: Database = outbox.db
        self.autocommit = self.deferred = False
        self._name = f"onceward_{next(_numbers)}"
        self._tx: StoreTransaction | None = None
        self._joined: SavepointMark | None = None
        self._nth = 0
        """The place of its savepoint among those of other connections."""
        self._blocks = 0
        """How many blocks were open inside the transaction when this one began."""
        self._thread = 0
        self._marks: dict[str, tuple[SavepointMark, int]] = {}
        """Its savepoints, and how many blocks were open when each began."""
        self._lent: list[Transaction] = []
        self._only_reads = self._closed = False

    @property
    def path(self) -> Path:
        """The file."""
        return self._db.path

    @property
    def has_begun(self) -> bool:
        """Whether a transaction is open that statements and the end must reach."""
        return self._tx is not None

    @property
    def begins(self) -> bool:
        """Whether ``begin`` has something to do."""
        return not (self.autocommit or self._tx is not None or self._only_reads)

    # -- transactions -----------------------------------------------------------------------

    def begin(self) -> None:
        """Take the turn to write, or join this thread's block or handler; no-op in autocommit."""
        self._check_usable()
        if not self.begins:
            return
        writer = self._db.writer
        with self._translated():
            writer.thread_transactions.join()
            if writer.held:
                self._join(writer.open_transaction())
            else:
                self._tx = _begun[self._db] = writer.begin()
        self._blocks = 0 if self._tx is None else self._tx.blocks
        self._thread = get_ident()

    def _join(self, tx: StoreTransaction) -> None:
        self._only_reads = _begun.get(self._db) is tx
        if not self._only_reads:
            self._joined = _open(tx, self._name)
            self._tx, self._nth = tx, next(_numbers)
            _joined.setdefault(self._db, WeakSet()).add(self)

    def commit(self) -> None:
        """Commit, or let the savepoint join the block or handler that commits later."""
        self._check_thread()
        self._only_reads = False
        if (tx := self._tx) is None:
            return
        self._check_innermost(tx)
        try:
            with self._translated():
                if self._joined is None:
                    self._db.writer.commit()
                else:
                    self._check_alive(tx)
                    _execute(tx, f"RELEASE {self._name}")
        finally:
            self.forget()

    def rollback(self) -> None:
        """Undo the transaction; any thread may, so that a lost connection frees the file."""
        self._only_reads = False
        if (tx := self._tx) is None:
            return
        if self._joined is not None:
            self._check_thread()
        try:
            with self._translated():
                if self._joined is not None:
                    with suppress(apsw.SQLError):  # its block has ended
                        self._undo(tx, self._name, self._joined, self._blocks)
                elif self._db.writer._tx is tx:
                    self._db.writer.rollback()
        finally:
            self.forget()

    def forget(self) -> None:
        """Take note that the transaction is over."""
        for each in self._lent:
            each._finish()
        if _begun.get(self._db) is self._tx:
            del _begun[self._db]
        if self._joined is not None:
            _joined[self._db].discard(self)
        self._tx = self._joined = None
        self._lent, self._marks = [], {}

    def close(self) -> None:
        """Roll back what is open; every later call raises."""
        try:
            self.rollback()
        finally:
            self._closed = True

    def transaction(self, session: str) -> Transaction:
        """Return the transaction to send with, begun if need be; it ends with it."""
        self.begin()
        self._check_thread()
        made = Transaction(self._open_transaction(), self._outbox, session)
        self._lent.append(made)
        return made

    # -- savepoints -------------------------------------------------------------------------

    def savepoint(self, name: str) -> None:
        """Open a savepoint."""
        with self._translated():
            tx = self._open_transaction()
            self._marks[name] = _open(tx, f"{self._name}_{name}"), tx.blocks

    def release(self, name: str) -> None:
        """End a savepoint and keep its work."""
        with self._translated():
            _execute(self._open_transaction(), f"RELEASE {self._name}_{name}")
        self._marks.pop(name, None)

    def rollback_to(self, name: str) -> None:
        """Undo a savepoint, its messages included."""
        tx = self._open_transaction()
        with self._translated():
            self._undo(tx, f"{self._name}_{name}", *self._marks.pop(name))

    def _undo(self, tx: StoreTransaction, name: str, mark: SavepointMark, blocks: int) -> None:
        """
        Undo a savepoint; no-op where the transaction is over, and the savepoint with it.

        A block that began inside it would end without its own savepoint: all is undone,
        and every block around says so.
        """
        if self._db.writer._tx is not tx or not tx.alive:
            return
        if tx.blocks > blocks:
            tx.rolled_back = True
            tx.abandon()
            return
        _execute(tx, f"ROLLBACK TO {name}")
        _execute(tx, f"RELEASE {name}")
        tx.forget_since(mark)

    # -- statements -------------------------------------------------------------------------

    def cursor(self) -> Cursor:
        """Return a cursor."""
        self._check_usable()
        return Cursor(self)

    def run(self, work: Work) -> Result:
        """Run *work* on the connection that is right for it."""
        self._check_usable()
        self._check_thread()
        if self.deferred and self._db.writer.held:
            self.begin()
        if self._tx is None and (found := self.read(work)) is not None:
            return found
        return self.write(work)

    def read(self, work: Work) -> Result | None:
        """Run *work* on what is committed, waiting for no writer; None if it writes."""
        self._check_usable()
        with self._translated():
            found = self._db.snapshot(lambda tx: _attempt(tx, work))
            if isinstance(found, apsw.ReadOnlyError):
                return None
            if isinstance(found, Exception):
                raise found
            return found

    def write(self, work: Work) -> Result:
        """Run *work* in the transaction; with ``autocommit`` in one of its own."""
        with self._translated():
            if self.autocommit and self._tx is None:
                with self._db.transaction() as tx:
                    return self._inside(tx, work)
            self.begin()
            return self._inside(self._open_transaction(), work)

    def _inside(self, tx: StoreTransaction, work: Work) -> Result:
        self._check_alive(tx)
        try:
            return work(cast("apsw.Connection", tx.handle))
        finally:
            self._check_alive(tx)  # a COMMIT or ROLLBACK of the statement, or an I/O error

    def _check_alive(self, tx: StoreTransaction) -> None:
        if not tx.alive or self._db.writer._tx is not tx:
            raise StoreFault(ENDED if self._joined is None else BLOCK_ENDED)

    def _check_innermost(self, tx: StoreTransaction) -> None:
        inside = _joined.get(self._db, ()) if self._joined is not None else ()
        later = any(each._tx is tx and each._nth > self._nth for each in inside)
        if later or (tx.blocks > self._blocks and tx.alive):
            raise ProgrammingError(INSIDE)

    def _open_transaction(self) -> StoreTransaction:
        self._check_thread()
        if self._tx is None:
            raise ProgrammingError(SECOND if self._only_reads else NO_TRANSACTION)
        return self._tx

    def _check_usable(self) -> None:
        if self._closed:
            raise ProgrammingError(CLOSED)

    def _check_thread(self) -> None:
        if self._tx is not None and self._thread != get_ident():
            raise WrongThread(OTHER_THREAD)

    @contextmanager
    def _translated(self) -> Iterator[None]:
        """Let the ORM see errors of PEP 249."""
        try:
            yield
        except Exception as error:
            meant = pep249(error, self._db.path)
            if meant is error:
                raise
            raise meant from error


class Cursor:
    """A cursor of PEP 249, which has read all its rows."""

    arraysize = 1

    def __init__(self, connection: StatementRunner) -> None:
        self.connection = connection
        self.description: Columns | None = None
        self.rowcount, self.lastrowid = -1, cast("int | None", None)
        self._rows: Iterator[tuple[Any, ...]] = iter(())

    def execute(self, sql: str, bindings: Bindings = None) -> Cursor:
        """Run one statement."""
        return self._keep(self.connection.run(lambda con: run(con, sql, bindings)))

    def executemany(self, sql: str, bindings: Iterable[Bindings]) -> Cursor:
        """Run one statement for each of *bindings*."""
        each = list(bindings)  # it may run twice
        return self._keep(self.connection.run(lambda con: run_many(con, sql, each)))

    def _keep(self, result: Result) -> Cursor:
        self.description, self.rowcount = result.columns, result.rowcount
        self.lastrowid, self._rows = result.lastrowid, iter(result.rows)
        return self

    def fetchone(self) -> tuple[Any, ...] | None:
        """Return the next row, None behind the last."""
        return next(self._rows, None)

    def fetchmany(self, size: int | None = None) -> list[tuple[Any, ...]]:
        """Return at most *size* rows."""
        return [row for _, row in zip(range(size or self.arraysize), self._rows, strict=False)]

    def fetchall(self) -> list[tuple[Any, ...]]:
        """Return the rows that are left."""
        return list(self._rows)

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        return self._rows

    def setinputsizes(self, sizes: object) -> None:
        """Do nothing, as PEP 249 allows."""

    def setoutputsize(self, size: int, column: int | None = None) -> None:
        """Do nothing, as PEP 249 allows."""

    def close(self) -> None:
        """Forget the rows."""
        self._rows = iter(())


def _attempt(tx: StoreTransaction, work: Work) -> Result | Exception:
    """Run *work* on the read-only connection; an error is the user's, not the schema's."""
    try:
        return work(cast("apsw.Connection", tx.handle))
    except Exception as error:  # noqa: BLE001 - raised again outside
        return error


def _open(tx: StoreTransaction, name: str) -> SavepointMark:
    _execute(tx, f"SAVEPOINT {name}")
    return tx.mark(name)


def _execute(tx: StoreTransaction, sql: str) -> None:
    tx.handle.execute(sql, can_cache=False)
