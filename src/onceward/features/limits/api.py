"""The limits of one file: set, list and remove them."""

from __future__ import annotations

import builtins
from dataclasses import dataclass
from typing import Final

from onceward.core.send import limits, rate_limits
from onceward.core.send.admission import AdmissionControl
from onceward.core.send.limits import Limit
from onceward.errors import InvalidArgument
from onceward.file.database import Database
from onceward.message.clock import Millis
from onceward.message.times import GivenRate
from onceward.message.vocabulary import (
    LIMIT_SCOPES,
    OVERFLOWS,
    DropPolicy,
    DropScope,
    LimitScope,
    Overflow,
)

WHOLE: Final = ("outbox", "store")
FULLNESS: Final = limits.FULLNESS


@dataclass(frozen=True, slots=True)
class DropRecord:
    """A message that a policy dropped."""

    id: str
    recipient: str
    session: str
    scope: DropScope
    name: str
    policy: DropPolicy
    line: str | None
    summary_id: str | None
    dropped_at: Millis


class Limits:
    """Limits of this file: unacknowledged messages by scope, its size, the rate of sending."""

    def __init__(self, db: Database, admission: AdmissionControl) -> None:
        self._db, self._admission = db, admission

    def set(
        self,
        scope: LimitScope,
        name: str = "",
        *,
        messages: int | None = None,
        size: int | None = None,
        overflow: Overflow = "reject",
    ) -> None:
        """
        Limit the unacknowledged messages of one scope, durably, for every writer of the file.

        *size* is bytes of frames. *name* is a session, ``recipient/lane`` or channel;
        ``*`` limits each one by itself, and a limit of its own goes before it. At the
        limit a new message is refused (``reject``), accepted and held back (``hold``),
        recorded as dropped (``drop_new``), or the oldest that has not left is dropped
        (``drop_old``, ``summarize``: its recipient is told). Critical messages, worker
        results, awaited replies and those with the header ``protected`` are never
        dropped and may exceed the limit.

        Raises:
            InvalidArgument: no such scope, policy or number.

        """
        name = "" if scope in WHOLE else name or "*"
        wrong = (
            scope not in LIMIT_SCOPES
            or overflow not in OVERFLOWS
            or (scope == "store" and overflow != "reject")
        )
        numbers = [number for number in (messages, size) if number is not None]
        if (
            wrong
            or not numbers
            or any(not isinstance(number, int) or number < 1 for number in numbers)
        ):
            kinds, policies = ", ".join(LIMIT_SCOPES), ", ".join(OVERFLOWS)
            msg = (
                f"a limit is messages= or size= (bytes), from 1, of {kinds}; "
                f"overflow= is one of {policies} (a store rejects)"
            )
            raise InvalidArgument(msg)
        self._change(lambda tx: limits.save(tx, Limit(scope, name, messages, size, overflow)))

    def remove(self, scope: LimitScope, name: str = "") -> bool:
        """Remove a limit, and send what only it held back; say whether there was one."""
        found = "" if scope in WHOLE else name or "*"
        return self._change(lambda tx: limits.remove(tx, scope, found))

    def list(self) -> list[Limit]:
        """Return all limits."""
        return [Limit(*row) for row in self._db.read(limits.LIST)]

    def fullness(self) -> dict[str, tuple[int, int]]:
        """Return by scope and name (``session run-42``) the messages and bytes that count now."""
        return {
            f"{scope} {name}".rstrip(): (count, size)
            for scope, name, count, size in self._db.read(FULLNESS)
        }

    def rate(self, rate: GivenRate | None, *, burst: float | None = None) -> None:
        """
        Send at most so many messages: ``10/m``, or a number a second; None removes the limit.

        *burst* messages may come at once; by default those of the text, or one for a
        number. A faster sender gets RateLimited, which says when to try again.
        """
        self._set_rate(rate, burst, 1, of="send")

    def accept_rate(self, rate: GivenRate | None, *, burst: float | None = None) -> None:
        """
        Accept at most so many messages from each sender: ``10/m``, or a number a second.

        *burst* messages may come at once; by default those of the text, or 100 for a
        number. None removes the limit. A faster sender is told when to push again, and
        its retries are not counted.
        """
        self._set_rate(rate, burst, 100, of="accept")

    def _set_rate(
        self, rate: GivenRate | None, burst: float | None, default: int, *, of: str
    ) -> None:
        from onceward.message.rate import read_rate  # noqa: PLC0415 - rarely needed

        if rate is None:
            self._change(lambda tx: rate_limits.remove_rate(tx, of))
            return
        most = read_rate("rate", rate, burst=default)
        at_once = most.burst if burst is None else burst
        self._change(lambda tx: rate_limits.set_rate(tx, of, most.per_second, at_once))

    def file(self, max_bytes: int | None) -> None:
        """
        Accept new messages only while less than *max_bytes* of the file are in use.

        None removes the limit. Stored messages are still delivered and settled. At
        nine tenths the event ``nearly_full`` is told.
        """
        if max_bytes is not None and max_bytes < 1:
            msg = f"max_bytes {max_bytes!r} must be a number of bytes"
            raise InvalidArgument(msg)
        self._change(lambda tx: rate_limits.set_file(tx, max_bytes))

    def drops(self, *, limit: int = 100) -> builtins.list[DropRecord]:
        """Return what policies dropped, newest first."""
        return [DropRecord(*row) for row in self._db.read(limits.DROPS, (limit,))]

    def _change(self, work: limits.Change) -> bool:
        changed = self._db.write(work)
        self._admission.reload()
        self._db.notifier.notify("out")
        return bool(changed)
