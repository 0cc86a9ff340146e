"""``onceward stats``."""

from __future__ import annotations

from onceward.cli import queries
from onceward.cli.exit_codes import DONE
from onceward.cli.output import show_one
from onceward.cli.readonly import views
from onceward.cli.target import Where

WHERE = Where()


def stats(*, where: Where = WHERE) -> int:
    """
    Print the present numbers, and the totals since the file was made.

    The totals survive the pruning of old rows.

    Args:
        where: Whose file.

    """
    with views(where.path()) as found:
        [numbers] = found.ask(queries.STATS)
    show_one(numbers, where.style)
    return DONE
