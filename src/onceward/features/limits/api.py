"""Set, list and remove the limits of one file."""

from __future__ import annotations

import builtins
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Final, cast

from onceward.core.contract import Opening
from onceward.core.rows import handler_limits, limits
from onceward.core.run.engine_loop import RuntimeDeps
from onceward.errors import InvalidArgument
from onceward.features.limits import stored
from onceward.features.limits.stored import DropRecord, Limit
from onceward.file.transaction import StoreTransaction
from onceward.message.arguments import checks_arguments
from onceward.message.clock import Millis
from onceward.message.times import GivenRate, Rate, read_rate
from onceward.message.topics import check_pattern
from onceward.message.vocabulary import (
    LIMIT_SCOPES,
    OVERFLOWS,
    FileScope,
    LimitScope,
    Overflow,
)

WHOLE: Final = ("outbox", "store")
RATES: Final = {"send": 1, "accept": 100, "handler": 1}
"""Burst of a numeric rate, by scope."""
KEYWORDS: Final = {
    "send": ("rate", "burst"),
    "accept": ("rate", "burst"),
    "file": ("size",),
    "handler": ("rate", "burst", "concurrency"),
}
"""Keywords of a limit by scope; for other scopes ``messages`` and ``size``."""
NO_CALLS: Final = "NULL, NULL, NULL, NULL, NULL, NULL, NULL"
LIST: Final = f"""
SELECT scope, name, max_messages, max_bytes, NULL, NULL, overflow, {NO_CALLS}
  FROM _onceward_limits
 UNION ALL
SELECT name, '', NULL, NULL, per_second, burst, 'reject', {NO_CALLS}
  FROM _onceward_rate_limits
 WHERE name IN ('send', 'accept')
 UNION ALL
SELECT 'handler', name, NULL, NULL, per_second, burst, 'reject', concurrency, paused_at,
       changed_at, applied_at, declared_per_second, declared_burst, declared_concurrency
  FROM _onceward_handler_limits
 UNION ALL
SELECT 'file', '', NULL, max_file_bytes, NULL, NULL, 'reject', {NO_CALLS}
  FROM _onceward_file_info
 WHERE max_file_bytes IS NOT NULL
 ORDER BY 1, 2
"""
Scope = LimitScope | FileScope


@dataclass(frozen=True, slots=True)
class LimitInfo:
    """One limit of a file; the name ``*`` limits each session, lane or channel separately."""

    scope: Scope
    name: str
    messages: int | None
    size: int | None
    """Bytes."""
    rate: float | None
    """Messages a second; for a handler calls a second."""
    burst: float | None
    overflow: Overflow
    concurrency: int | None = None
    """Calls of a handler at once."""
    paused_at: Millis | None = None
    """Since when the type is paused, for the scope ``handler``."""
    changed_at: Millis | None = None
    """When the limit of a handler was set, or its pause began or ended."""
    applied_at: Millis | None = None
    """When a worker with this handler first claimed under the change; None: none has."""
    declared_rate: float | None = None
    """The limits that the code of that worker declares; None for no limit."""
    declared_burst: float | None = None
    declared_concurrency: int | None = None


@checks_arguments()
class Limits:
    """Limits of this file: unacknowledged messages by scope, its size, the rate of sending."""

    def __init__(self, deps: RuntimeDeps) -> None:
        self._db, self._admission = deps.db, deps.outbox.admission

    def set(
        self,
        scope: Scope,
        name: str = "",
        *,
        messages: int | None = None,
        size: int | None = None,
        rate: GivenRate | None = None,
        burst: float | None = None,
        concurrency: int | None = None,
        overflow: Overflow = "reject",
    ) -> None:
        """
        Set the limit of one scope, durably, for every writer of the file.

        ``outbox``, ``store``, ``session``, ``lane`` and ``channel`` limit unacknowledged messages,
        by *messages* or by *size* (bytes of frames). *name* is a session, ``recipient/lane`` or
        channel; ``*`` limits each one separately, unless it has its own limit. At the limit a new
        message is refused (``reject``), accepted and held back (``hold``), recorded as dropped
        (``drop_new``), or the oldest that has not left is dropped (``drop_old``; with ``summarize``
        its recipient gets a summary). Critical messages, worker results, awaited replies and those
        with the header ``protected`` are never dropped and may exceed the limit.

        ``send`` limits by *rate* how fast this file sends, ``accept`` how fast it accepts from each
        sender: ``10/m``, or a number per second. *burst* messages may arrive at once; default: the
        count of the text, or for a number 1 (``send``) and 100 (``accept``). A local sender that is
        too fast gets RateLimited; a peer gets the time to push again, and its retries are not
        counted.

        ``handler`` limits the calls of the handler that is registered for *name* (type, topic or
        pattern): their *rate*, and their *concurrency*, over all processes. It takes the place of
        what the code declares, from the next claim of each worker on; what is not given stays as it
        is. After ``remove`` the declared limits hold again. With a ``key``, it limits each group.

        ``file`` accepts new messages only while less than *size* bytes of the file are in
        use; stored ones are still delivered. At 90 % the event ``nearly_full`` is emitted.

        Raises:
            InvalidArgument: no such scope, policy or number.

        """
        given = {"messages": messages, "size": size, "rate": rate, "burst": burst}
        _check(scope, overflow, given | {"concurrency": concurrency})
        if scope == "handler":
            if burst is not None and rate is None:
                raise InvalidArgument("burst= needs rate=")
            self._set_handler(check_pattern(name), rate, burst, concurrency)
        elif rate is not None:
            self._set_rate(scope, rate, burst)
        elif scope == "file":
            self._change(lambda tx: stored.set_file(tx, cast("int", size)))
        else:
            counted = cast("LimitScope", scope)
            limit = Limit(counted, _name(scope, name), messages, size, overflow)
            self._change(lambda tx: limits.save(tx, asdict(limit)))

    def _set_rate(self, scope: str, rate: GivenRate, burst: float | None) -> None:
        read, at_once = _read(scope, rate, burst)
        self._change(lambda tx: stored.set_rate(tx, scope, read.per_second, at_once))

    def _set_handler(
        self, name: str, rate: GivenRate | None, burst: float | None, concurrency: int | None
    ) -> None:
        limit = None
        if rate is not None:
            read, at_once = _read("handler", rate, burst)
            if not (at_once >= 1 and at_once == int(at_once)):
                msg = f"burst={at_once!r}: a whole number of calls may begin at once"
                raise InvalidArgument(msg)
            limit = Rate(int(at_once), read.per_second)
        self._change(lambda tx: handler_limits.save(tx, name, limit, concurrency))
        self._db.notifier.notify("in")

    def remove(self, scope: Scope, name: str = "") -> bool:
        """
        Remove a limit, and send messages that only it held back; return whether it existed.

        For the scope ``handler`` the declared limits hold again; a pause of its type stays.
        """
        if scope == "handler":
            gone = self._change(lambda tx: handler_limits.remove(tx, name))
            self._db.notifier.notify("in")
            return gone
        if scope in RATES:
            return self._change(lambda tx: stored.remove_rate(tx, scope))
        if scope == "file":
            return self._change(stored.remove_file)
        return self._change(lambda tx: limits.remove(tx, scope, _name(scope, name)))

    def list(self) -> list[LimitInfo]:
        """Return all limits by scope and name, and with the scope ``handler`` the paused types."""
        return [LimitInfo(*row) for row in self._db.read(LIST)]

    def fullness(self) -> dict[str, tuple[int, int]]:
        """Return the current messages and bytes by scope and name (``session run-42``)."""
        return limits.fullness(self._db.read)

    def drops(self, *, limit: int = 100) -> builtins.list[DropRecord]:
        """Return the messages that policies dropped, newest first."""
        return stored.drops(self._db, limit)

    def _change(self, work: Callable[[StoreTransaction], object]) -> bool:
        changed = self._db.write(work)
        self._admission.reload()
        self._db.notifier.notify("out")
        return bool(changed)


def _read(scope: str, rate: GivenRate, burst: float | None) -> tuple[Rate, float]:
    """Return a rate, and how many messages or calls may come at once."""
    read = read_rate("rate", rate, burst=RATES[scope])
    return read, read.burst if burst is None else burst


def _name(scope: str, name: str) -> str:
    return "" if scope in WHOLE else name or "*"


def _check(scope: str, overflow: str, given: Mapping[str, object]) -> None:
    """Raise InvalidArgument for an unknown scope, policy or keyword."""
    takes = KEYWORDS.get(scope, ("messages", "size"))
    alien = [name for name, value in given.items() if value is not None and name not in takes]
    if alien:
        msg = f"a limit of {scope} takes {' and '.join(takes)}, not {' and '.join(alien)}"
        raise InvalidArgument(msg)
    counted = ("messages", "size", "concurrency")
    numbers = [given[name] for name in counted if given[name] is not None]
    wrong = (
        scope not in (*LIMIT_SCOPES, *KEYWORDS)
        or overflow not in OVERFLOWS
        or (overflow != "reject" and scope in ("store", *KEYWORDS))
        or any(not isinstance(number, int) or number < 1 for number in numbers)
    )
    if wrong or not (numbers or given["rate"] is not None):
        kinds, policies = ", ".join(LIMIT_SCOPES), ", ".join(OVERFLOWS)
        raise InvalidArgument(
            f"a limit needs messages= or size= (bytes), from 1, for {kinds}; size= for file; "
            f"rate= for send or accept; rate= or concurrency= for handler; "
            f"overflow= is one of {policies} (a store rejects)"
        )


def limits_of(opening: Opening) -> Limits:
    """Return the limits of an opening."""
    return Limits(opening.deps)
