"""List the columns from which the fields of a type are read."""

from __future__ import annotations

from dataclasses import fields


def columns(kind: type, of: str = "", **given: str) -> str:
    """Return the columns of a type's fields for SELECT, each as *given*, else by its name."""
    names = column_names(kind)
    return ", ".join(f"{given[n]} AS {n}" if n in given else f"{of}{n}" for n in names)


def column_names(kind: type) -> list[str]:
    """Return the names of a type's fields that are read from columns, in order."""
    return [each.name for each in fields(kind) if each.metadata.get("column", True)]
