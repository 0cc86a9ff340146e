"""Rows of numbers, in words for a person."""

from __future__ import annotations

from typing import Any, Final

QUIET: Final = {"case", "durability", "goals", "machine"}
"""What a line says elsewhere, or not at all."""
THOUSAND: Final = 1000


def line(row: dict[str, Any]) -> str:
    """Return one row as one line: what was measured, then the goals and whether they are met."""
    said = [
        f"{name} {number(value)}"
        for name, value in row.items()
        if name not in QUIET and value is not None
    ]
    judged = [verdict(name, goal) for name, goal in row["goals"].items()]
    return f"{row['case']} ({row['durability']}): {', '.join([*said, *judged])}"


def verdict(name: str, goal: dict[str, Any]) -> str:
    """Return a goal and whether it is met, in words."""
    bound = f">= {goal['at_least']}" if "at_least" in goal else f"<= {goal['at_most']}"
    return f"goal {name} {bound} {'met' if goal['met'] else 'MISSED'}"


def number(value: Any) -> str:
    """Return a number the way people read it: thousands grouped, small ones with their digits."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    return f"{value:,.0f}" if abs(value) >= THOUSAND else f"{value:.4g}"
