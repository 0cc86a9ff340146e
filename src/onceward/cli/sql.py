"""``onceward sql``."""

from __future__ import annotations

import sys
from typing import Annotated

from cyclopts import Parameter

from onceward.cli.exit_codes import DONE
from onceward.cli.output import document, note, show
from onceward.cli.readonly import look
from onceward.cli.target import Where

WHERE = Where()
Statement = Annotated[str, Parameter(allow_leading_hyphen=True)]


def sql(statement: Statement, /, *, where: Where = WHERE) -> int:
    """
    Run a reading SQL statement on a read-only connection.

    Whatever would write is refused (exit code 7). The views are the public contract: outbox_view, inbox_view, processed_view,
    dead_letter_view, peer_view, lane_view, stats_view,
    trail_view. Times are integer milliseconds, and blobs are printed in hexadecimal. Columns are printed as selected.

    Args:
        statement: The statement; a dash reads it from stdin.
        where: Whose file.

    """
    with look(where.path()) as found:
        rows = found.run(sys.stdin.read() if statement == "-" else statement)
    if where.json:
        document(rows)
    elif rows:
        show(
            [{name: _raw(value) for name, value in row.items()} for row in rows],
            list(rows[0]),
            where.style,
        )
    else:
        note("no rows")
    return DONE


def _raw(value: object) -> object:
    # A time stays the number that the next statement can compare it with.
    return str(value) if isinstance(value, int) else value
