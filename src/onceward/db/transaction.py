"""An open transaction, as the rest of the house sees it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from itertools import chain, groupby
from operator import attrgetter
from typing import Any, Final, Protocol, TypeVar, cast

from onceward.model.clock import Millis

T = TypeVar("T")
ROWS_PER_INSERT: Final = 20
"""Rows of one INSERT: more gain nothing."""
ONE_ROW: Final = re.compile(r"VALUES (\(\?(?:, \?)*\))")


@cache
def _multi_row(sql: str) -> str:
    return ONE_ROW.sub(
        lambda found: f"VALUES {', '.join([found[1]] * ROWS_PER_INSERT)}", sql, count=1
    )


class Handle(Protocol):
    """The part of an apsw connection that writing needs."""

    in_transaction: bool

    def execute(self, sql: str, bindings: Any = None) -> Any:
        """Run *sql*."""
        ...

    def executemany(self, sql: str, bindings: Any) -> Any:
        """Run *sql* for each of *bindings*."""
        ...

    def changes(self) -> int:
        """Return how many rows the last statement changed."""
        ...


class Store(Protocol):
    """What a writer asks of the database it writes to."""

    committing: bool
    """Set while the writer commits: a commit by anybody else is refused."""

    def writing_connection(self, deadline: float) -> Handle:
        """Return the connection, its busy handler set to *deadline*."""
        ...

    def now(self) -> Millis:
        """Return the file's time, which never runs backwards."""
        ...

    def on_begin(self, tx: StoreTransaction) -> None:
        """Hear of a transaction that has just begun."""
        ...

    def orphaned(self) -> bool:
        """Return whether the last commit went to a file that nobody will find."""
        ...

    def reopen(self) -> None:
        """Open the file anew, with an open barrier."""
        ...

    def translate_error(self, error: BaseException) -> BaseException:
        """Return what a foreign error means."""
        ...


class BatchedInsert:
    """
    One message that is one row: work that needs no look at the file.

    Alone it is written as ever. Where many commit together, their rows are
    gathered and written at once.
    """

    __slots__ = ("_alone", "sql", "values", "wakeup")

    def __init__(
        self,
        sql: str,
        values: tuple[Any, ...],
        bell: Callable[[], None],
        alone: Callable[[StoreTransaction], str],
    ) -> None:
        self.sql, self.values, self.wakeup, self._alone = sql, values, bell, alone

    def __call__(self, tx: StoreTransaction) -> str:
        """Write the row, or leave it with those that are gathered; return its id, the first of its values."""
        if not tx.batching:
            return self._alone(tx)
        message_id: str = self.values[0]
        tx.batched_inserts.append(self)
        tx.message_ids.append(message_id)
        tx.wake(self.wakeup)
        return message_id


class StoreTransaction:
    """An open transaction: run SQL, and say what is to happen after the commit."""

    __slots__ = (
        "_handle",
        "_refused",
        "batched_inserts",
        "batching",
        "durable",
        "effects",
        "message_ids",
        "now",
        "on_durable",
        "rolled_back",
        "wakeups",
    )

    def __init__(self, handle: Handle, now: Millis) -> None:
        self._handle = handle
        self.now = now
        self.effects: list[Callable[[], None]] = []
        self.message_ids: list[str] = []
        self.wakeups: dict[Callable[[], None], None] = {}
        """What to call once after the commit, however many asked for it; harmless where it was in vain."""
        self.on_durable: Callable[[], None] | None = None
        """Hears that the transaction is durable, whoever's work it held."""
        self.rolled_back = False
        """Whether it was rolled back behind our back, even if somebody began another since."""
        self.durable = False
        """Whether it was committed, and to the file that others see."""
        self.batching = False
        """Whether rows that need no look at the file wait for each other."""
        self.batched_inserts: list[BatchedInsert] = []
        """The rows that wait; they are written before anything else happens."""
        self._refused: BaseException | None = None

    def rows(self, sql: str, bindings: Any = None) -> list[tuple[Any, ...]]:
        """Run *sql* and return all rows; nothing stays open behind it."""
        if self.batched_inserts:
            self._write_batched()
        return cast("list[tuple[Any, ...]]", self._handle.execute(sql, bindings).fetchall())

    def commit(self) -> None:
        """Make it durable."""
        self._handle.execute("COMMIT")
        if self.on_durable is not None:
            self.on_durable()

    def run(self, sql: str, bindings: Any = None) -> int:
        """Run one changing statement and return how many rows it changed."""
        if self.batched_inserts:
            self._write_batched()
        self._handle.execute(sql, bindings)
        return self._handle.changes()

    def many(self, sql: str, bindings: Any) -> None:
        """Run one statement for each of *bindings*."""
        if self.batched_inserts:
            self._write_batched()
        self._handle.executemany(sql, bindings)

    def insert(self, sql: str, rows: Sequence[tuple[Any, ...]]) -> None:
        """
        Insert *rows* by a statement that is written for one of them, a bunch at a time.

        Where a trigger may refuse a row, SQLite makes ready to undo every single
        statement, which takes as long as the rest of the insert.
        """
        if self.batched_inserts:
            self._write_batched()
        whole = len(rows) - len(rows) % ROWS_PER_INSERT
        for start in range(0, whole, ROWS_PER_INSERT):
            self._handle.execute(
                _multi_row(sql), tuple(chain.from_iterable(rows[start : start + ROWS_PER_INSERT]))
            )
        self._handle.executemany(sql, rows[whole:])

    @contextmanager
    def batch_inserts(self) -> Iterator[None]:
        """
        Let rows that need no look at the file wait for each other; all of them are written at the end.

        A row may be refused while somebody else's statement is run, who may know a
        way round what looks like an error of its own: it is raised at the end nevertheless.
        """
        self.batching = True
        try:
            yield
            if self.batched_inserts:
                self._write_batched()
            if self._refused is not None:
                raise self._refused
        finally:
            self.batching, self._refused = False, None

    def _write_batched(self) -> None:
        entries, self.batched_inserts = self.batched_inserts, []
        try:
            for sql, some in groupby(entries, attrgetter("sql")):
                self.insert(sql, [entry.values for entry in some])
        except BaseException as error:
            self._refused = error
            raise

    @property
    def alive(self) -> bool:
        """Whether the transaction is still open; SQLite may have rolled it back on an I/O error."""
        return not self.rolled_back and self._handle.in_transaction

    def abandon(self) -> None:
        """Undo whatever is open on the connection."""
        self.batched_inserts.clear()
        if self._handle.in_transaction:
            self._handle.execute("ROLLBACK")

    def after_commit(self, effect: Callable[[], None]) -> None:
        """Call *effect* once the commit is done; never if it is rolled back."""
        self.effects.append(effect)

    def wake(self, bell: Callable[[], None]) -> None:
        """Call *bell* once the commit is done, once for all whose work it held; never if all of it is rolled back."""
        self.wakeups[bell] = None

    def savepoint(self) -> None:
        """Open an inner unit that can be undone alone."""
        if self.batched_inserts:
            self._write_batched()
        self._handle.execute("SAVEPOINT job")

    def release_savepoint(self) -> None:
        """End the inner unit, its writes joining the transaction's."""
        if self.batched_inserts:
            self._write_batched()
        self._handle.execute("RELEASE job")

    def rollback_savepoint(self) -> None:
        """End the inner unit without its writes; nothing to do where SQLite undid everything already."""
        self.batched_inserts.clear()
        if self.alive:
            self._handle.execute("ROLLBACK TO job")
            self._handle.execute("RELEASE job")


class TransactionHost(Protocol):
    """A running handler's transaction, as the writer sees it."""

    def join(self) -> StoreTransaction:
        """Open or adopt the transaction."""
        ...

    def write_outside(self, work: Callable[[StoreTransaction], T]) -> T:
        """Commit work that is not the handler's own."""
        ...
