"""Keep Alembic's autogenerate away from the tables, views, indexes and triggers of onceward."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

OURS: Final = ("_onceward_", "onceward_")
"""How all names in an agent's file begin that are not its user's."""


def include_name(name: str | None, type_: str, parent_names: Mapping[str, str | None]) -> bool:
    """Return False for what is ours; for ``context.configure(include_name=…)`` of Alembic."""
    tables = (name, parent_names.get("table_name"))
    return not any(each is not None and each.startswith(OURS) for each in tables)


def include_object(
    item: object,
    name: str | None,
    type_: str,
    reflected: bool,
    compare_to: object,
) -> bool:
    """Return False for what is ours; for ``context.configure(include_object=…)`` of Alembic."""
    table = getattr(getattr(item, "table", None), "name", None)
    return include_name(name, type_, {"table_name": table})
