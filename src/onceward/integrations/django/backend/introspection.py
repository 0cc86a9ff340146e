"""Describe the tables of the application."""

from __future__ import annotations

from typing import Any, Final

from django.db.backends.sqlite3 import introspection

OURS: Final = ("_onceward_", "onceward_")


class DatabaseIntrospection(introspection.DatabaseIntrospection):
    """Leaves onceward's own tables and views out: ``inspectdb`` and ``flush`` are not for them."""

    def get_table_list(self, cursor: Any) -> list[Any]:
        """Return the tables and views of the application."""
        found = super().get_table_list(cursor)
        return [each for each in found if not each.name.startswith(OURS)]
