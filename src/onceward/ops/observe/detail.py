"""Read what stands behind the numbers of one agent's file: a few rows of each kind."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from onceward.errors import OncewardError
from onceward.ops.observe import queries
from onceward.ops.observe.reading import Rows, reading

Row = Mapping[str, Any]
SECTIONS: Final = {
    "peers": (queries.PEERS_OF, "name breaker failures in_flight seen_at last_error"),
    "failing": (queries.FAILING_OF, "session head_id attempts due_at reason"),
    "dead": (queries.DEAD_OF, "reason messages newest_at"),
    "sent": (queries.SENT_OF, "id peer type state attempts at"),
    "received": (queries.RECEIVED_OF, "id peer type state attempts at"),
}
"""Statement and columns by the field of ``FileDetail``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileDetail:
    """Some rows of one agent's file, each kind with the worst or the newest first."""

    problem: str | None
    """Why the file cannot be read, None where it can."""
    peers: tuple[Row, ...] = ()
    """Peers, those that fail first."""
    failing: tuple[Row, ...] = ()
    """Lanes whose oldest message was attempted more than once, with its last error."""
    dead: tuple[Row, ...] = ()
    """Dead letters by reason, of the newest thousand."""
    sent: tuple[Row, ...] = ()
    """The newest messages of the outbox."""
    received: tuple[Row, ...] = ()
    """The newest messages of the inbox."""


def read_detail(path: Path, most: int = 5) -> FileDetail:
    """Return at most so many rows of each kind; an error is told in it and not raised."""
    try:
        with reading(path) as rows:
            found = {name: _section(rows, name, most) for name in SECTIONS}
    except (OncewardError, OSError) as error:
        return FileDetail(problem=str(error))
    return FileDetail(problem=None, **found)


def _section(rows: Rows, name: str, most: int) -> tuple[Row, ...]:
    sql, columns = SECTIONS[name]
    return tuple(dict(zip(columns.split(), row, strict=True)) for row in rows(sql, (most,)))
