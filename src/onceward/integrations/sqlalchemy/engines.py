"""Make engines and sessions of SQLAlchemy that work in the transactions of a postbox."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, Literal, TypedDict, TypeVar, Unpack
from weakref import WeakKeyDictionary, ref

from sqlalchemy import Connection as Work
from sqlalchemy import Engine, NullPool, create_engine
from sqlalchemy.orm import Session as OrmSession

from onceward import AsyncPostbox, Context, Postbox, Transaction
from onceward.errors import InvalidArgument, StoreClosed
from onceward.integrations.dbapi.connections import Connection
from onceward.integrations.sqlalchemy import apart, dialect
from onceward.integrations.sqlalchemy.loop_connections import LoopConnection
from onceward.message.names import DEFAULT_SESSION

C = TypeVar("C", Connection, LoopConnection)
URL: Final = f"{dialect.NAME.replace('.', '+')}://"

_of_handlers: WeakKeyDictionary[Any, Engine] = WeakKeyDictionary()
"""By the outbox of a postbox: the engine of its handlers' sessions."""


class EngineOptions(TypedDict, total=False):
    """The options of ``sqlalchemy.create_engine`` that say nothing about connecting."""

    echo: bool | Literal["debug"]
    echo_pool: bool | Literal["debug"]
    execution_options: Mapping[str, Any]
    hide_parameters: bool
    isolation_level: dialect.Level
    json_serializer: Callable[[Any], str]
    json_deserializer: Callable[[str], Any]
    logging_name: str
    query_cache_size: int


def engine(
    box: Postbox | AsyncPostbox | Callable[[], Postbox],
    *,
    foreign_keys: bool = False,
    **options: Unpack[EngineOptions],
) -> Engine:
    """
    Return an engine whose transactions are those of an open postbox.

    Its transactions take the one turn to write of the file, from their first
    statement to their end, and belong to the thread that began them; in a block
    ``with box.begin()`` or a handler they join it by savepoint. With the
    isolation level READ COMMITTED they begin with their first statement that writes: one
    that only reads never waits for a writer. With AUTOCOMMIT each statement is a transaction.
    *foreign_keys* has SQLite check foreign keys, for all users of the open file.

    *box* may be a function that returns the open postbox: it is called for each connection, so
    that nothing is open before a server forks.

    Raises:
        StoreError: the postbox is closed.

    """
    if not isinstance(box, Postbox | AsyncPostbox):
        return _opening(box, options, foreign_keys=foreign_keys)
    plain = box if isinstance(box, Postbox) else box._plain
    if foreign_keys:
        plain._db.enforce_foreign_keys()
    made = _engine_of(plain._outbox, options)
    apart.watch(plain, made)
    return made


def _opening(
    opened: Callable[[], Postbox], options: EngineOptions, *, foreign_keys: bool
) -> Engine:
    """Return an engine whose connections ask a function for the postbox."""

    def connect() -> Connection:
        box = opened()
        if foreign_keys and not box._db._enforces:
            box._db.enforce_foreign_keys()
        apart.watch(box, made)
        return Connection(box._outbox)

    made = create_engine(URL, creator=connect, poolclass=NullPool, **options)
    return made


def _engine_of(outbox: Any, options: EngineOptions) -> Engine:
    """Return an engine that does not keep the postbox alive."""
    outbox_of = ref(outbox)

    def connect() -> Connection:
        return Connection(still_there(outbox_of))

    return create_engine(URL, creator=connect, poolclass=NullPool, **options)


def still_there(of: Callable[[], Any]) -> Any:
    """Return a part of a postbox; raises StoreClosed where it was collected."""
    found = of()
    if found is None:
        raise StoreClosed("the postbox is gone: open it again, and make an engine of it")
    return found


def transaction(work: OrmSession | Work, session: str = DEFAULT_SESSION) -> Transaction:
    """
    Return the transaction of *work* to send with, in the conversation *session*.

    It begins the transaction of *work* if need be. Messages are committed or
    rolled back with it, also by savepoint.

    Raises:
        InvalidArgument: its engine is not of ``engine(box)``, or its level is AUTOCOMMIT.
        OperationalError: of SQLAlchemy; others held the file for the whole deadline.

    """
    return begun(work, Connection).transaction(session)


def begun(work: OrmSession | Work, kind: type[C]) -> C:
    """Return the connection of PEP 249 that *work* uses, its transaction begun."""
    if not isinstance(work, OrmSession | Work):
        msg = "transaction takes a Session or Connection: others, async_transaction"
        raise InvalidArgument(msg)
    connection = work.connection() if isinstance(work, OrmSession) else work
    raw = connection.connection.dbapi_connection
    if not isinstance(raw, kind):
        msg = "messages are sent through a session or connection of engine(box) only"
        raise InvalidArgument(msg)
    if raw.autocommit:
        msg = "AUTOCOMMIT has no transaction to send in: use the level SERIALIZABLE, or box.send"
        raise InvalidArgument(msg)
    if not connection.in_transaction():
        connection.begin()
    return raw


def session_for(ctx: Context) -> Iterator[OrmSession]:
    """
    Give a handler an ORM session inside its transaction: ``Depends(session_for)``.

    Its rows are committed with the processed mark, or not at all; the
    end of the handler flushes. Messages are sent with ``ctx.send``.

    Raises:
        InvalidArgument: the handler is async, which takes ``async_session_for``.

    """
    if not isinstance(ctx, Context):
        raise InvalidArgument("session_for serves sync handlers: async ones take async_session_for")
    made = _of_handlers.get(ctx._outbox)
    if made is None:
        made = _of_handlers[ctx._outbox] = _engine_of(ctx._outbox, {})
    with OrmSession(made) as session:
        yield session
        session.commit()  # unlike the end of ``session.begin()`` it raises after a failed flush
