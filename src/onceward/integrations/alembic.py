"""
Keep Alembic away from our tables without a word of ``env.py``, as a plugin of its own kind.

Alembic 1.18 and newer finds it by its entry point, whose name it takes among the defaults.
"""

from __future__ import annotations

from typing import Any


def setup(plugin: Any) -> None:
    """Register the filter; Alembic calls it when it is imported."""
    from alembic.util import DispatchPriority  # noqa: PLC0415 - Alembic is being imported

    plugin.add_autogenerate_comparator(
        _leave_ours_out, "autogenerate", priority=DispatchPriority.FIRST
    )


def _leave_ours_out(context: Any, _operations: object) -> Any:
    """Have the comparators that follow see no name of ours in a file of SQLite."""
    from alembic.util import PriorityDispatchResult  # noqa: PLC0415 - as above

    if context.dialect.name == "sqlite":
        from onceward.integrations.sqlalchemy.autogenerate import (  # noqa: PLC0415 - SQLite only
            include_name,
        )

        context._name_filters.append(include_name)
    return PriorityDispatchResult.CONTINUE
