"""Hold an open transaction of one file: its statements, their rows, and what follows its commit."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from itertools import chain, groupby
from operator import itemgetter
from typing import Any, ClassVar, Final, NamedTuple, Protocol, Self, SupportsIndex, TypeVar

import apsw

from onceward.file.connection import BusyHandler
from onceward.message.clock import Clock, Millis, MonotonicFileClock
from onceward.message.parcel import Durability, Receipt

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

    def execute(self, sql: str, bindings: Any = None, *, can_cache: bool = True) -> Any:
        """Run *sql*, from the statement cache unless it is not worth a place there."""
        ...

    def executemany(self, sql: str, bindings: Any) -> Any:
        """Run *sql* for each of *bindings*."""
        ...

    def changes(self) -> int:
        """Return how many rows the last statement changed."""
        ...

    def release_memory(self) -> None:
        """Give back the memory of pages that nothing uses."""
        ...


class FileGuard(Protocol):
    """Detects that an open file was taken away."""

    def replaced(self) -> bool:
        """Return whether the last commit went to a file that was taken away."""
        ...


class Store(Protocol):
    """The database as its writer sees it."""

    clock: Clock
    time: MonotonicFileClock
    """The file's time, which never runs backwards."""
    busy_handler: BusyHandler
    """Asked by SQLite how long to wait for other processes; the writer sets its deadline."""
    durability: Durability
    """Whether its commits survive a power cut."""
    guard: FileGuard
    """Asked after every commit whether the file is still the one that was opened."""

    def writing_connection(self, deadline: float) -> Handle:
        """Return the connection, its busy handler set to *deadline*."""
        ...

    def on_begin(self, tx: StoreTransaction) -> None:
        """Store how far the file's clock has come."""
        ...

    def reopen(self) -> None:
        """Open the file again, with an open barrier."""
        ...

    def translate_error(self, error: BaseException) -> BaseException:
        """Return what a foreign error means."""
        ...


class OwnReceiver(Protocol):
    """Settles messages of an agent to itself in the commit that ends them."""

    @property
    def agent(self) -> str:
        """Return the name of the agent."""
        ...

    def deliver(self, tx: StoreTransaction) -> bool:
        """Move what is ready from the outbox into the inbox; False where parcels must do it."""
        ...

    def settle(self, tx: StoreTransaction, receipts: Sequence[Receipt]) -> None:
        """Apply receipts of messages to oneself to the outbox."""
        ...


class SavepointMark(NamedTuple):
    """How much a transaction had noted when a savepoint was opened, and the savepoint's name."""

    effects: int
    message_ids: int
    ended: int
    name: str = ""


class StoreTransaction:
    """An open transaction: SQL, the ids of its messages, and what is to happen after the commit."""

    __slots__ = (
        "_refused",
        "batched_inserts",
        "batching",
        "blocks",
        "closed",
        "durable",
        "effects",
        "ended",
        "handle",
        "has_news",
        "may_be_durable",
        "message_ids",
        "now",
        "on_durable",
        "outgoing",
        "own",
        "rolled_back",
        "savepoints",
        "wakeups",
    )

    def __init__(self, handle: Handle, now: Millis) -> None:
        self.handle = handle
        self.now = now
        self.effects: list[Callable[[], None]] = []
        self.message_ids: list[str] = []
        self.ended: list[str] = []
        """Messages of the outbox that their recipients have handled, as it was told here."""
        self.wakeups: dict[Callable[[], None], None] = {}
        """Calls after the commit, each made once however often it was asked for."""
        self.outgoing: dict[str, None] = {}
        """Peers that have something to be pushed after the commit."""
        self.own: OwnReceiver | None = None
        """Takes messages to oneself, and their receipts; None where no postbox has the file."""
        self.has_news = False
        """Whether the dispatcher has something to tell the home after the commit."""
        self.on_durable: Callable[[], None] | None = None
        """Called once the transaction is durable."""
        self.rolled_back = False
        """True once SQLite has rolled this transaction back."""
        self.closed = False
        """True once its postbox was closed over it, which rolled it back."""
        self.may_be_durable = False
        """True after COMMIT, until it is certain that nothing was written."""
        self.durable = False
        """True once it was committed to the file that other processes see."""
        self.savepoints = 0
        """
        How many were opened, which names them: the inner unit that an interrupt leaves
        open is not taken for the outer one.
        """
        self.batching = False
        """Whether rows are gathered instead of written one by one."""
        self.blocks = 0
        """How many blocks of the user are open inside it."""
        self.batched_inserts: list[tuple[str, tuple[Any, ...]]] = []
        """The gathered rows, each with its statement; written before any other statement."""
        self._refused: BaseException | None = None

    def rows(self, sql: str, bindings: Any = None) -> list[tuple[Any, ...]]:
        """Run *sql* and return all rows; nothing stays open behind it."""
        if self.batched_inserts:
            self._write_batched()
        found: list[tuple[Any, ...]] = self.handle.execute(sql, bindings).fetchall()
        return found

    def commit(self) -> None:
        """Make it durable."""
        self.may_be_durable = True
        self.handle.execute("COMMIT")
        if self.on_durable is not None:
            self.on_durable()

    def run(self, sql: str, bindings: Any = None) -> int:
        """Run one changing statement and return how many rows it changed."""
        if self.batched_inserts:
            self._write_batched()
        self.handle.execute(sql, bindings)
        return self.handle.changes()

    def many(self, sql: str, bindings: Any) -> None:
        """Run one statement for each of *bindings*."""
        if self.batched_inserts:
            self._write_batched()
        self.handle.executemany(sql, bindings)

    def insert(self, sql: str, rows: Sequence[tuple[Any, ...]]) -> None:
        """
        Insert *rows* by a statement that is written for one of them, several at a time.

        Where a trigger may refuse a row, SQLite prepares to undo every single
        statement, which takes as long as the rest of the insert.
        """
        if self.batched_inserts:
            self._write_batched()
        whole = len(rows) - len(rows) % ROWS_PER_INSERT
        for start in range(0, whole, ROWS_PER_INSERT):
            self.handle.execute(
                _multi_row(sql), tuple(chain.from_iterable(rows[start : start + ROWS_PER_INSERT]))
            )
        self.handle.executemany(sql, rows[whole:])

    @contextmanager
    def batch_inserts(self) -> Iterator[None]:
        """
        Gather rows that need no read of the file; all of them are written at the end.

        The caller that triggered the flush may swallow another request's error,
        so it is raised again at the end.
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

    def gather(self, sql: str, row: tuple[Any, ...]) -> None:
        """Leave *row* to be inserted by *sql* together with others, while ``batching``."""
        self.batched_inserts.append((sql, row))

    def _write_batched(self) -> None:
        entries, self.batched_inserts = self.batched_inserts, []
        try:
            for sql, some in groupby(entries, itemgetter(0)):
                self.insert(sql, [row for _, row in some])
        except BaseException as error:
            self._refused = error
            raise

    @property
    def alive(self) -> bool:
        """Whether the transaction is still open; SQLite may have rolled it back on an I/O error."""
        return not self.rolled_back and self.handle.in_transaction

    def abandon(self) -> None:
        """Roll back the open transaction of the connection, if any; closing it did the same."""
        self.batched_inserts.clear()
        with suppress(apsw.ConnectionClosedError):
            if self.handle.in_transaction:
                self.handle.execute("ROLLBACK")

    def after_commit(self, effect: Callable[[], None]) -> None:
        """Call *effect* once the commit is done; never if it is rolled back."""
        self.effects.append(effect)

    def wake(self, notify: Callable[[], None]) -> None:
        """Call *notify* once after the commit, however many ask for it; never after a rollback."""
        self.wakeups[notify] = None

    @contextmanager
    def nested(self) -> Iterator[Self]:
        """Run a block in a savepoint; an exception undoes its writes, effects and message ids."""
        mark = self.savepoint()
        try:
            yield self
        except BaseException:
            self.rollback_savepoint(mark)
            raise
        self.release_savepoint(mark)

    def savepoint(self) -> SavepointMark:
        """Open an inner unit that can be undone alone; return the mark to undo it by."""
        if self.batched_inserts:
            self._write_batched()
        self.savepoints += 1
        mark = self.mark(f"job{self.savepoints}")
        self.handle.execute(f"SAVEPOINT {mark.name}", can_cache=False)
        return mark

    def mark(self, name: str) -> SavepointMark:
        """Return how much is noted now, for a savepoint of that name."""
        return SavepointMark(len(self.effects), len(self.message_ids), len(self.ended), name)

    def forget_since(self, mark: SavepointMark) -> None:
        """Forget what was noted since *mark*: its savepoint was rolled back."""
        del self.effects[mark.effects :], self.message_ids[mark.message_ids :]
        del self.ended[mark.ended :]

    def release_savepoint(self, mark: SavepointMark) -> None:
        """End the inner unit, its writes joining the transaction's."""
        if self.batched_inserts:
            self._write_batched()
        self.handle.execute(f"RELEASE {mark.name}", can_cache=False)

    def rollback_savepoint(self, mark: SavepointMark) -> None:
        """Undo the inner unit, and what it noted since *mark*; a no-op where SQLite undid all."""
        self.batched_inserts.clear()
        self.forget_since(mark)
        if self.alive:
            self.handle.execute(f"ROLLBACK TO {mark.name}", can_cache=False)
            self.handle.execute(f"RELEASE {mark.name}", can_cache=False)


class TransactionHost(Protocol):
    """The transaction of a running handler, as the writer sees it."""

    def join(self) -> StoreTransaction:
        """Open or adopt the transaction."""
        ...

    def step_aside(self) -> None:
        """Commit what earlier handlers left open; no-op where this handler has written already."""
        ...


BUMP: Final = "UPDATE _onceward_counters SET value = value + ? WHERE name = ?"


@cache
def _bump_all(names: tuple[str, ...]) -> str:
    """Return the statement that adds to several counters at once."""
    cases = " ".join(f"WHEN '{name}' THEN ?" for name in names)
    listed = ", ".join(f"'{name}'" for name in names)
    return (
        f"UPDATE _onceward_counters SET value = value + CASE name {cases} END"  # noqa: S608 - names of ours
        f" WHERE name IN ({listed})"
    )


def bump(tx: StoreTransaction, **deltas: int) -> None:
    """Add each delta to the counter of its name, by one statement; zero costs nothing."""
    names: list[str] = []
    changed: list[int] = []
    for name, delta in deltas.items():
        if delta:
            names.append(name)
            changed.append(delta)
    if len(names) > 1:
        tx.run(_bump_all(tuple(names)), changed)
    elif names:
        tx.run(BUMP, (*changed, *names))


Rows = Callable[[str, Any], list[tuple[Any, ...]]]
"""Runs a reading statement, in a transaction or outside of one."""


class Row(tuple[Any, ...]):
    """
    A row of a query: a tuple, and ``row["cents"]`` is its column of that name.

    ``dict(row)`` has all columns; of two with one name the first counts.
    """

    __slots__ = ()
    _places: ClassVar[dict[str, int]] = {}

    def __getitem__(self, key: SupportsIndex | slice | str) -> Any:
        """Return a column by its name or place, or several by a slice."""
        return super().__getitem__(self._places[key] if isinstance(key, str) else key)

    def keys(self) -> list[str]:
        """Return the names of the columns."""
        return list(self._places)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle as names and values, since the class is made for the query."""
        return _restored, (tuple(self._places), tuple(self))


@cache
def row_class(names: Sequence[str]) -> type[Row]:
    """Return the class of rows with these columns."""
    places: dict[str, int] = {}
    for place, name in enumerate(names):
        places.setdefault(name, place)
    return type("Row", (Row,), {"__slots__": (), "_places": places, "__module__": __name__})


def _restored(names: Sequence[str], values: tuple[Any, ...]) -> Row:
    return row_class(names)(values)
