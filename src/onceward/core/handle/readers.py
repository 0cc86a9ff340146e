"""Lease the messages of an inbox for programs that read by hand, and settle them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import is_dataclass
from functools import lru_cache, partial
from types import NoneType, UnionType
from typing import Annotated, Any, Final, Literal, NamedTuple, Union, get_args, get_origin

from pydantic import BaseModel
from typing_extensions import is_typeddict

from onceward.core.handle import claim
from onceward.core.handle.claim import ClaimRequest
from onceward.core.handle.consumer import Consumer, LaneLeases, Taken
from onceward.core.rows import claimable, inbox
from onceward.core.rows.lanes import LeasedMessage
from onceward.core.run.engine_loop import RuntimeDeps
from onceward.file.environment import disabled_by_environment
from onceward.file.transaction import StoreTransaction
from onceward.message.body import message_type
from onceward.message.names import plain_text
from onceward.message.validators import check_type


class OneMessage(NamedTuple):
    """The search for one message of an inbox."""

    id: str


class InboxLeases(LaneLeases):
    """Lease the messages of an inbox: of a session, None for any, or one by its id."""

    def __init__(self, deps: RuntimeDeps) -> None:
        super().__init__(deps, deps.policy)
        self._lease_for = round(1000 * deps.settings.lease)
        self._arrivals = 0
        """Those of this process that were known at the last look."""

    def claim(
        self, wanted: Any, search: str | OneMessage | None, taken: Taken[LeasedMessage]
    ) -> Sequence[LeasedMessage]:
        """Lease the next message of the types that *wanted* names, or the one of an id."""
        if isinstance(search, OneMessage):
            return self._claim_one(search.id, taken)
        types = type_names(wanted)
        if disabled_by_environment() or not (self._has_arrival() or self._is_due()):
            return ()
        self.enter()
        request = ClaimRequest(messages=1, lanes=-1 if types else 8, session=search, types=types)
        with self._db.outside_handler():
            # A claim that a power cut undoes is repeated: it has no consequences.
            return self._db.write(partial(self._claim, request=request, taken=taken), synced=False)

    def _claim(
        self, tx: StoreTransaction, request: ClaimRequest, taken: Taken[LeasedMessage]
    ) -> Sequence[LeasedMessage]:
        claimed = claim.claim(tx, request, owner=self._owner, until=tx.now + self._lease_for)
        return taken.keep(tx, claimed[0] if claimed else ())

    def _has_arrival(self) -> bool:
        """Return whether this process has stored messages since the last call."""
        before, self._arrivals = self._arrivals, self._db.notifier.arrivals
        return before != self._arrivals

    def _is_due(self) -> bool:
        """Return whether a lane may be claimed now."""
        paused_at, ready, due_at, parked, _ = claimable.agenda(self._db.read)
        due = ready or parked or (due_at is not None and due_at <= self._db.now())
        return paused_at is None and bool(due or self._db.in_flight.dead())

    def _claim_one(self, message_id: str, taken: Taken[LeasedMessage]) -> Sequence[LeasedMessage]:
        """Lease a waiting message, even after others of its lane."""
        seq = inbox.find_received(self._db.read, message_id)
        paused = claimable.agenda(self._db.read).paused_at is not None
        if seq is None or paused or disabled_by_environment():
            return ()
        self.enter()
        with self._db.outside_handler():
            return self._db.write(
                lambda tx: taken.keep_one(
                    tx,
                    claim.claim_one(
                        tx, seq, owner=self._owner, lease_for=lambda _: self._lease_for
                    ),
                )
            )


InboxConsumer = Consumer[LeasedMessage, str | OneMessage | None]


def type_names(wanted: Any) -> tuple[str, ...] | None:
    """
    Return the wire names for ``receive(wanted)``; None for any.

    Raises:
        InvalidArgument: *wanted* is not a type, the name of one, or None.

    """
    try:
        return _cached_names(wanted)
    except TypeError:  # metadata of Annotated that cannot be hashed
        return _read_names(wanted)


def _read_names(wanted: Any) -> tuple[str, ...] | None:
    if wanted is None or wanted is Any:
        return None
    if isinstance(wanted, str):
        return (plain_text("type", wanted),)
    check_type("type", wanted)
    if isinstance(wanted, type) and PLAIN.get(wanted) == "json" and wanted not in (dict, list):
        return (message_type(wanted),)  # a program that sends numbers names their type
    return tuple(dict.fromkeys(_names_of(wanted)))


_cached_names = lru_cache(maxsize=1024)(_read_names)


def _names_of(wanted: Any) -> Iterator[str]:
    """Yield the wire names of the bodies that fit a type."""
    origin, parts = get_origin(wanted), get_args(wanted)
    kind = origin or wanted
    if origin is Annotated:
        yield from _names_of(parts[0])
    elif origin in {Union, UnionType}:
        for part in parts:
            yield from _names_of(part)
    elif origin is Literal:
        for value in parts:
            yield from _names_of(type(value))
    elif isinstance(kind, type) and (issubclass(kind, BaseModel) or is_dataclass(kind)):
        yield message_type(wanted)
    elif kind in PLAIN or origin is not None or is_typeddict(kind):
        yield PLAIN.get(kind, "json")
    else:
        yield message_type(wanted)


PLAIN: Final[dict[Any, str]] = {
    str: "text",
    bytes: "bytes",
    **dict.fromkeys((dict, list, tuple, set, frozenset, int, float, bool, NoneType), "json"),
}
"""The wire names of bodies without a class of their own."""
