"""Hold an open transaction of one file: its statements, rows and calls after the commit."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cache, lru_cache
from itertools import chain, groupby
from operator import itemgetter
from typing import Any, ClassVar, Final, NamedTuple, Protocol, SupportsIndex, TypeVar

from pydantic_core import to_json

from onceward.errors import InvalidArgument, ReadOnlyStore
from onceward.file.connection import (
    CLOSED_ERRORS,
    DEFERRED,
    BusyHandler,
    ConstraintError,
)
from onceward.file.in_flight import CallRecords
from onceward.message.clock import Clock, Millis, MonotonicFileClock
from onceward.message.names import quoted
from onceward.message.parcel import Durability, Receipt

T = TypeVar("T")
ROWS_PER_INSERT: Final = 20
"""Rows of one INSERT: more rows gain nothing."""
ONE_ROW: Final = re.compile(r"VALUES (\(\?(?:, \?)*\))")
LISTED: Final = re.compile(r"(NOT )?IN \(SELECT value FROM json_each\((:\w+|\?)\)\)")


@cache
def _multi_row(sql: str) -> str:
    return ONE_ROW.sub(
        lambda found: f"VALUES {', '.join([found[1]] * ROWS_PER_INSERT)}", sql, count=1
    )


@cache
def _for_one(sql: str) -> str:
    return LISTED.sub(lambda found: f"{'<>' if found[1] else '='} {found[2]}", sql)


def listed(values: Sequence[int] | Sequence[str], *statements: str) -> tuple[Any, ...]:
    """
    Return statements on a JSON list, and the parameter that stands for *values* in them.

    A single value is compared instead, because opening ``json_each`` takes 2 µs.
    """
    if len(values) == 1:
        return *map(_for_one, statements), values[0]
    return *statements, to_json(values).decode()


NOTHING: Final = "SELECT 1"


class Handle(Protocol):
    """The methods of an apsw connection that writing needs."""

    in_transaction: bool

    def execute(self, sql: str, bindings: Any = None, *, can_cache: bool = True) -> Any:
        """Run *sql*, through the statement cache unless told otherwise."""
        ...

    def cursor(self) -> Any:
        """Return a new cursor."""
        ...

    def executemany(self, sql: str, bindings: Any) -> Any:
        """Run *sql* for each of *bindings*."""
        ...

    def changes(self) -> int:
        """Return how many rows the last statement changed."""
        ...

    def last_insert_rowid(self) -> int:
        """Return the sequence of the row that was inserted last."""
        ...

    def total_changes(self) -> int:
        """Return how many rows all statements changed."""
        ...

    def status(self, op: int) -> tuple[int, int]:
        """Return a number of the connection, and its highest value."""
        ...

    def release_memory(self) -> None:
        """Free the memory of unused pages."""
        ...


Execute = Callable[..., Any]
"""Runs a statement as ``Handle.execute`` does."""


class FileGuard(Protocol):
    """Detects that an open file was moved or deleted."""

    def replaced(self) -> bool:
        """Return whether the last commit went to a file that was moved or deleted."""
        ...

    @property
    def only_wal_is_gone(self) -> bool:
        """Whether the WAL was deleted and has no successor: open connections still have all."""
        ...

    @property
    def has_lost_wal(self) -> bool:
        """Whether the file has another WAL, from which our connections do not read."""
        ...


class Store(Protocol):
    """The database as its writer sees it."""

    clock: Clock
    time: MonotonicFileClock
    """The file's time, which never runs backwards."""
    busy_handler: BusyHandler
    """SQLite asks it how long to wait for other processes; the writer sets its deadline."""
    quiet: int
    """Number of looks at whether the file is in use since its last use."""
    durability: Durability
    """Whether its commits survive a power cut."""
    guard: FileGuard
    """Checks after every commit whether the file is still the one that was opened."""

    def writing_connection(self, deadline: float) -> Handle:
        """Return the connection with its busy handler set to *deadline*."""
        ...

    def on_begin(self, tx: StoreTransaction) -> None:
        """Store the file's time."""
        ...

    def save_deleted_wal(self) -> bool:
        """Move the commits of a deleted WAL into the file; return whether all of them are in it."""
        ...

    def reopen(self) -> None:
        """Reopen the file, with an open barrier."""
        ...

    def translate_error(self, error: BaseException) -> BaseException:
        """Return the error of ours for a foreign error."""
        ...


class OwnReceiver(Protocol):
    """Settles messages of an agent to itself in the commit that ends them."""

    @property
    def agent(self) -> str:
        """Return the name of the agent."""
        ...

    def store(self, tx: StoreTransaction, message: Any) -> bool:
        """Store a new message in outbox and inbox; return False if it must wait for others."""
        ...

    def tell_stored(self, tx: StoreTransaction, message_id: str) -> None:
        """Report that both halves are stored, once the message is reported as enqueued."""
        ...

    def deliver(self, tx: StoreTransaction) -> bool:
        """Move ready messages from outbox to inbox; return False if parcels must do it."""
        ...

    def acknowledge(self, tx: StoreTransaction, message_id: str) -> bool:
        """End a handled message in the outbox, not yet counted; return False: ``settle`` must."""
        ...

    def settle(self, tx: StoreTransaction, receipts: Sequence[Receipt]) -> None:
        """Apply receipts of messages to oneself to the outbox."""
        ...


class SavepointMark(NamedTuple):
    """The sizes of a transaction's lists when a savepoint was opened, and the savepoint's name."""

    effects: int
    message_ids: int
    ended: int
    name: str = ""


class StoreTransaction:
    """An open transaction: SQL, the ids of its messages, and the calls after its commit."""

    __slots__ = (
        "_execute", "_refused", "batched_inserts", "batching", "blocks", "closed", "durable",
        "effects", "ended", "handle", "has_news", "in_flight", "may_be_durable", "message_ids",
        "now", "on_durable", "outgoing", "own", "rolled_back", "savepoints", "take_receipt",
        "wakeups",
    )  # fmt: skip

    def __init__(self, handle: Handle, now: Millis, execute: Execute | None = None) -> None:
        self.handle = handle
        self._execute = handle.execute if execute is None else execute
        self.now = now
        self.effects: list[Callable[[], None]] = []
        self.message_ids: list[str] = []
        self.ended: list[str] = []
        """Messages of the outbox that this transaction settles as handled by their recipients."""
        self.wakeups: dict[Callable[[], None], None] = {}
        """Functions to call after the commit, each once, however often it was added."""
        self.outgoing: dict[str, None] = {}
        """Peers to push to after the commit."""
        self.own: OwnReceiver | None = None
        """Settles messages to oneself and their receipts; None if no postbox has the file."""
        self.in_flight: CallRecords | None = None
        """The calls of all processes; None for a transaction that only reads."""
        self.take_receipt: Callable[[str, Receipt], bool] | None = None
        """Takes a receipt for a peer that the answer to a parcel carries; others are stored."""
        self.has_news = False
        """Whether the dispatcher must notify the home after the commit."""
        self.on_durable: Callable[[], None] | None = None
        """Called once the transaction is durable."""
        self.rolled_back = False
        """True once SQLite has rolled this transaction back."""
        self.closed = False
        """True once closing the postbox rolled it back."""
        self.may_be_durable = False
        """True after COMMIT, unless it is certain that nothing was written."""
        self.durable = False
        """True once it was committed to the file that other processes use."""
        self.savepoints = 0
        """
        Number of opened savepoints, which makes their names unique after an interrupt.
        """
        self.batching = False
        """Whether rows are gathered instead of written one by one."""
        self.blocks = 0
        """Number of the user's blocks that are open inside it."""
        self.batched_inserts: list[tuple[str, tuple[Any, ...]]] = []
        """The gathered rows, each with its statement; written before any other statement."""
        self._refused: BaseException | None = None

    def rows(self, sql: str, bindings: Any = None) -> list[tuple[Any, ...]]:
        """Run *sql* and return all rows; no cursor stays open."""
        if self.batched_inserts:
            self._write_batched()
        try:
            found: list[tuple[Any, ...]] = self._execute(sql, bindings).fetchall()
        except BaseException:
            self._forget_unrun()
            raise
        return found

    def read(self, sql: str, bindings: Any = None) -> Any:
        """Run a caller's *sql* on a cursor that raises ReadOnlyStore for all but reading."""
        if self.batched_inserts:
            self._write_batched()
        cursor = self.handle.cursor()
        cursor.exec_trace = _refuse_writing
        return cursor.execute(sql, bindings)

    def _forget_unrun(self) -> None:
        """Free the cursor of statements that an error left unrun: it refuses the next one once."""
        with suppress(Exception):
            self._execute(NOTHING)

    def check_foreign_keys(self) -> None:
        """Raise ConstraintError if a deferred foreign key is violated now, before the commit."""
        if self.handle.status(DEFERRED)[0]:
            raise ConstraintError("FOREIGN KEY constraint failed")

    def commit(self) -> None:
        """Commit it durably."""
        self.may_be_durable = True
        self._execute("COMMIT")
        if self.on_durable is not None:
            self.on_durable()

    def run(self, sql: str, bindings: Any = None) -> int:
        """Run one changing statement and return how many rows it changed."""
        if self.batched_inserts:
            self._write_batched()
        self._execute(sql, bindings)
        return self.handle.changes()

    def many(self, sql: str, bindings: Any) -> None:
        """Run one statement for each of *bindings*."""
        if self.batched_inserts:
            self._write_batched()
        self.handle.executemany(sql, bindings)

    def insert(self, sql: str, rows: Sequence[tuple[Any, ...]]) -> None:
        """
        Insert *rows*, several at a time, by a statement that is written for one row.

        If a trigger may refuse a row, SQLite prepares to undo each single statement, which takes as
        long as the rest of the insert.
        """
        if self.batched_inserts:
            self._write_batched()
        whole = len(rows) - len(rows) % ROWS_PER_INSERT
        for start in range(0, whole, ROWS_PER_INSERT):
            self._execute(
                _multi_row(sql), tuple(chain.from_iterable(rows[start : start + ROWS_PER_INSERT]))
            )
        self.handle.executemany(sql, rows[whole:])

    def end_batching(self) -> None:
        """
        Write the rows that were gathered while ``batching``.

        The caller that triggered an earlier write may have swallowed another request's error, so it
        is raised again.
        """
        if self.batched_inserts:
            self._write_batched()
        if self._refused is not None:
            raise self._refused

    def gather(self, sql: str, row: tuple[Any, ...]) -> None:
        """Insert *row* by *sql*; while ``batching``, later together with others."""
        self.batched_inserts.append((sql, row))

    def _write_batched(self) -> None:
        entries, self.batched_inserts = self.batched_inserts, []
        try:
            for sql, some in groupby(entries, itemgetter(0)):
                self.insert(sql, [row for _, row in some])
        except BaseException as error:
            self._refused = error
            raise

    def leave_to_the_parent(self, stand_in: Any) -> None:
        """Use *stand_in* for the connection and its statements, in a forked child."""
        self.handle = self._execute = stand_in
        self.batched_inserts.clear()

    @property
    def alive(self) -> bool:
        """Whether the transaction is still open; SQLite may have rolled it back on an I/O error."""
        return not self.rolled_back and self.handle.in_transaction

    def abandon(self) -> None:
        """Roll back the open transaction of the connection, if any; closing it does the same."""
        self.batched_inserts.clear()
        with suppress(*CLOSED_ERRORS):
            if self.handle.in_transaction:
                self._execute("ROLLBACK")

    def after_commit(self, effect: Callable[[], None]) -> None:
        """Call *effect* once the commit is done; never if it is rolled back."""
        self.effects.append(effect)

    def wake(self, notify: Callable[[], None]) -> None:
        """Call *notify* once after the commit, even if added repeatedly; never after a rollback."""
        self.wakeups[notify] = None

    def nested(self) -> NestedBlock:
        """Run a block in a savepoint; an exception undoes its writes, effects and message ids."""
        return NestedBlock(self)

    def savepoint(self) -> SavepointMark:
        """Open an inner unit that can be undone separately; return its mark."""
        if self.batched_inserts:
            self._write_batched()
        self.savepoints += 1
        mark = self.mark(f"job{self.savepoints}")
        self._execute(f"SAVEPOINT {mark.name}", can_cache=False)
        return mark

    def mark(self, name: str) -> SavepointMark:
        """Return the present sizes of the lists, for a savepoint of that name."""
        return SavepointMark(len(self.effects), len(self.message_ids), len(self.ended), name)

    def forget_since(self, mark: SavepointMark) -> None:
        """Forget all entries since *mark*: its savepoint was rolled back."""
        del self.effects[mark.effects :], self.message_ids[mark.message_ids :]
        del self.ended[mark.ended :]

    def release_savepoint(self, mark: SavepointMark) -> None:
        """End the inner unit and keep its writes in the transaction."""
        if self.batched_inserts:
            self._write_batched()
        self._execute(f"RELEASE {mark.name}", can_cache=False)

    def rollback_savepoint(self, mark: SavepointMark) -> None:
        """Undo the inner unit and its entries since *mark*; do nothing if SQLite undid all."""
        self.batched_inserts.clear()
        self.forget_since(mark)
        if self.alive:
            self._execute(f"ROLLBACK TO {mark.name}", can_cache=False)
            self._execute(f"RELEASE {mark.name}", can_cache=False)


class NestedBlock:
    """A block that runs in a savepoint; a generator would take twice as long."""

    __slots__ = ("_mark", "_tx")

    def __init__(self, tx: StoreTransaction) -> None:
        self._tx = tx

    def __enter__(self) -> StoreTransaction:
        """Open the savepoint."""
        self._mark = self._tx.savepoint()
        return self._tx

    def __exit__(self, failed: type[BaseException] | None, *_: object) -> None:
        """Release the savepoint, or undo it if the block failed."""
        if failed is None:
            self._tx.release_savepoint(self._mark)
        else:
            self._tx.rollback_savepoint(self._mark)


def _refuse_writing(cursor: Any, sql: str, _: object) -> bool:
    """Let a statement run if it only returns rows."""
    if not (cursor.is_readonly and cursor.get_description()):
        raise ReadOnlyStore(f"{quoted(sql)} is not a SELECT: write by ctx.tx.execute(…)")
    return True


class TransactionHost(Protocol):
    """The transaction of a running handler, as the writer sees it."""

    def join(self) -> StoreTransaction:
        """Open or adopt the transaction."""
        ...

    def step_aside(self) -> None:
        """Commit the open writes of earlier handlers, unless this handler has already written."""
        ...

    def before_read(self) -> None:
        """Commit the message of the handler, which reads the file outside its transaction."""
        ...


def check_statement(sql: object) -> None:
    """Raise InvalidArgument unless a value is the text of a statement."""
    if not isinstance(sql, str) or not sql or "\0" in sql:
        raise InvalidArgument(f"sql={quoted(sql)} must be text: a statement of SQL")


def check_bindings(bindings: object, error: Exception | None = None) -> None:
    """Raise InvalidArgument for a value that holds no bindings, or if *error* came from them."""
    if bindings is not None and (
        isinstance(bindings, str | bytes) or not isinstance(bindings, Sequence | Mapping)
    ):
        msg = f"bindings={quoted(bindings)} must be a list or a mapping of values"
        raise InvalidArgument(msg)
    if isinstance(error, TypeError | KeyError | OverflowError):
        raise bad_bindings(bindings, error) from error


def bad_bindings(bindings: object, error: Exception) -> InvalidArgument:
    """Return the error for bindings that a statement does not take."""
    return InvalidArgument(f"bindings={quoted(bindings)} do not fit the statement: {error!r}")


def refuse_pragma(sql: str) -> None:
    """Raise InvalidArgument if *sql*, which has the word, sets a pragma out of place."""
    from onceward.file import pragmas  # noqa: PLC0415 - rarely needed

    pragmas.refuse(sql)


BUMP: Final = "UPDATE _onceward_counters SET value = value + ? WHERE name = ?"


@cache
def _bump_all(names: tuple[str, ...]) -> str:
    """
    Return the statement that adds to several counters at once.

    It compares all names: for a search SQLite would first build an index of the listed ones.
    """
    cases = " ".join(f"WHEN '{name}' THEN ?" for name in names)
    these = " OR ".join(f"+name = '{name}'" for name in names)
    return f"UPDATE _onceward_counters SET value = value + CASE name {cases} END WHERE {these}"  # noqa: S608 - names of ours


def bump(tx: StoreTransaction, **deltas: int) -> None:
    """Add each delta to the counter of its name in one statement; skip zeros."""
    names = tuple(filter(deltas.get, deltas))
    changed = filter(None, deltas.values())
    if len(names) > 1:
        tx.run(_bump_all(names), tuple(changed))
    elif names:
        tx.run(BUMP, (*changed, *names))


Rows = Callable[[str, Any], list[tuple[Any, ...]]]
"""Runs a reading statement, in a transaction or outside one."""


class Row(tuple[Any, ...]):
    """
    A row of a query: a tuple, and ``row["cents"]`` is its column of that name.

    ``dict(row)`` has all columns; of two with one name the first counts.
    """

    __slots__ = ()
    _places: ClassVar[dict[str, int]] = {}

    def __getitem__(self, key: SupportsIndex | slice | str) -> Any:
        """Return a column by its name or index, or several by a slice."""
        return super().__getitem__(self._places[key] if isinstance(key, str) else key)

    def keys(self) -> list[str]:
        """Return the names of the columns."""
        return list(self._places)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle as names and values, because the class is created for the query."""
        return _restored, (tuple(self._places), tuple(self))


@lru_cache(maxsize=256)
def row_class(names: Sequence[str]) -> type[Row]:
    """Return the class of rows with these columns."""
    places: dict[str, int] = {}
    for place, name in enumerate(names):
        places.setdefault(name, place)
    return type("Row", (Row,), {"__slots__": (), "_places": places, "__module__": __name__})


def _restored(names: Sequence[str], values: tuple[Any, ...]) -> Row:
    return row_class(names)(values)
