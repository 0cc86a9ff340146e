"""
Keep what a handler's call has used so far, such as requests and steps, until the call ends.

Features make these parts, by their names, when the handler first uses them; the verbs by which it
does are methods that the features add to the classes of contexts (see ``contract.Verbs``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, Protocol, TypeVar

from onceward.core.rows.lanes import Lease, LeasedMessage
from onceward.core.run.engine_loop import RuntimeDeps
from onceward.core.send.add import Outbox
from onceward.core.send.block import Bindings, Transaction
from onceward.errors import InvalidArgument
from onceward.file.transaction import StoreTransaction
from onceward.message.clock import Millis
from onceward.message.ids import RepeatableIds
from onceward.message.options import PublishOptions

C = TypeVar("C")
T = TypeVar("T")


class Suspended(BaseException):
    """
    Ends a call of a handler; ``except Exception`` does not catch it, as it is not a failure.

    *until* is called in the transaction that stores the wait, and returns the latest time at which
    to call the handler again.
    """

    def __init__(self, reason: str, until: Callable[[StoreTransaction], Millis]) -> None:
        super().__init__(reason)
        self.until = until


class CallPart(Protocol):
    """One part of a handler's call, made when the handler first uses it."""

    def refuse_inside(self, what: str) -> None:
        """Raise InvalidArgument where the next call would not find *what* again."""

    def has(self, message_id: str | None) -> bool:
        """Return whether an earlier call made a request, whose outcome is stored."""
        ...

    def end_call(self) -> None:
        """End a call that returned although it must continue later."""

    def keep(self, tx: StoreTransaction) -> None:
        """Store what a call has made that ends to wait."""

    def close(self) -> None:
        """Refuse further use: the call has ended."""


class CallParts:
    """The parts that a handler's call has used; contexts and runs have them."""

    session: str
    _parts: tuple[CallPart, ...] = ()
    _outbox: Outbox
    _face: Any = None
    """The object that a coroutine gets instead of this one."""

    def query(self, sql: str, bindings: Bindings = None) -> list[Any]:
        """
        Run a SELECT; it takes no lock, so steps may follow.

        It sees committed rows, those of earlier messages of the lane among them, and what this call
        has written, if it has. Rows are those of ``Postbox.query``. A call that is repeated may see
        other rows: what decides between steps belongs into a step.

        Raises:
            apsw.Error: SQLite refused the statement.
            ReadOnlyStore: the statement would write; nothing was changed.
            StoreError: the file itself failed.

        """
        return self._outbox.db.query(sql, bindings, inside=self._written())

    @cached_property
    def postbox(self) -> Any:
        """
        The postbox of the handler, to read: state and status of messages, results, history.

        No call of it takes the lock of the file; one that would write or wait raises
        InvalidArgument, which says what to use.
        """
        return self._make("postbox")

    def _written(self) -> StoreTransaction | None:
        """Return the transaction in which the call has written; commit what precedes the call."""
        return None

    def _make(self, name: str) -> Any:
        """Make the part of that name."""
        raise NotImplementedError

    def _part(self, name: str, *, first: bool = False) -> Any:
        """Add the part of that name; the *first* ends the call before others do."""
        part = self._make(name)
        self._parts = (part, *self._parts) if first else (*self._parts, part)
        return part

    def _follow(self, options: PublishOptions) -> None:
        """Set the cause of a message that the call sends, in its options."""
        raise NotImplementedError

    @property
    def _hops(self) -> int:
        """Return how many messages led to one that the call sends."""
        raise NotImplementedError

    def _join(self) -> StoreTransaction:
        """Return the transaction that ends the call."""
        raise NotImplementedError

    def _at_end(self, work: Callable[[StoreTransaction], None]) -> None:
        """Commit *work* with the processed mark, once the handler has returned."""
        raise NotImplementedError

    def _end_call(self) -> None:
        """End a call that returned although it waits for a reply or a time."""
        for part in self._parts:
            part.end_call()

    def _close_parts(self) -> None:
        """Refuse further use of all parts."""
        for part in self._parts:
            part.close()


CONTEXT: Final[ContextVar[CallParts | None]] = ContextVar("onceward_handled", default=None)
"""The context of the running handler."""


class Committer(Protocol):
    """Commits the writes of a part separately, before the handler ends."""

    def free(self) -> None:
        """Release the lock; raises InvalidArgument if the handler has written."""

    def write(self, work: Callable[[StoreTransaction], T]) -> T:
        """Commit *work*, which may be run again."""
        ...

    def beside(self, work: Callable[[StoreTransaction], None]) -> None:
        """Commit *work* at once, with the handler's writes if it has any."""

    def at_end(self, work: Callable[[StoreTransaction], None]) -> None:
        """Commit *work* with the end of the call, which has returned."""

    def block(self, place: str) -> AbstractContextManager[tuple[Transaction, StoreTransaction]]:
        """Commit the writes of a block; *place* is the name of the step that it belongs to."""
        ...

    def wait(self, suspended: Suspended) -> None:
        """End the call until it can continue, or return if that is now."""

    @property
    def on_own_thread(self) -> bool:
        """Whether the calling thread runs the handler."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class CallHome:
    """The message and the lease that the parts of one call belong to."""

    leased: LeasedMessage
    lease: Lease
    commits: Committer
    scope: str = ""
    """Digest of the messages of a run, which identifies its steps."""
    ids: RepeatableIds | None = None
    """The ids of what the call sends; None for new ones."""


class Complete(Protocol):
    """Returns a class of contexts with the verbs of all features."""

    def __call__(self, plain: type[C], /) -> type[C]:
        """Return the class for *plain*; it has the same name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HandlerDeps(RuntimeDeps):
    """The dependencies of those that call handlers."""

    parts: Mapping[str, Callable[[HandlerDeps, CallHome], Any]]
    """Make the parts of a call, by name."""
    complete: Complete

    def make(self, name: str, home: CallHome) -> Any:
        """
        Make a part of a call.

        Raises:
            InvalidArgument: no feature makes it.

        """
        if name not in self.parts:
            raise InvalidArgument(f"the feature {name} is not installed")
        return self.parts[name](self, home)
