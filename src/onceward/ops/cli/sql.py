"""``onceward sql``: run a SELECT."""

from __future__ import annotations

from typing import Annotated

from onceward.ops.cli.exit_codes import DONE
from onceward.ops.cli.options import said
from onceward.ops.cli.output import document, note, show
from onceward.ops.cli.readonly import look
from onceward.ops.cli.stdin import read_stdin
from onceward.ops.cli.target import WHERE, Where

Statement = Annotated[
    str, said("The statement; a dash reads it from stdin.", allow_leading_hyphen=True)
]


def sql(statement: Statement, /, *, where: Where = WHERE) -> int:
    """
    Run a SELECT on a read-only connection.

    A statement that would write is refused (exit code 7). The views are the public contract:
    onceward_outbox, onceward_inbox, onceward_processed_messages, onceward_dead_letters,
    onceward_peers, onceward_lanes, onceward_stats, onceward_transitions. Times are integer
    milliseconds, and blobs are printed in hexadecimal. Columns are printed as selected.

    Example: onceward sql shop.db 'SELECT state, count(*) FROM outbox GROUP BY state'
    """
    with look(where.path()) as found:
        rows = found.typed(read_stdin() if statement == "-" else statement)
    if where.json:
        document(rows)
    elif rows:
        raw = [{name: _raw(value) for name, value in row.items()} for row in rows]
        show(raw, list(rows[0]), where.style)
    else:
        note("no rows")
    return DONE


def _raw(value: object) -> object:
    # A time stays the number that the next statement can compare it with.
    return str(value) if isinstance(value, int) else value
