"""Spans are measured by one clock, which no test of a user stops."""

from __future__ import annotations

import ast
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[2] / "src" / "onceward"
REPLACED = {"monotonic", "monotonic_ns", "perf_counter"}
"""Names of ``time`` that freezegun replaces, and that measure spans."""


def test_spans_are_measured_by_the_clock_of_the_package() -> None:
    """``onceward.message.clock.monotonic`` goes on while a test freezes time."""
    found = [
        f"{path.relative_to(SOURCE)}:{node.lineno} time.{node.attr}"
        for path in sorted(SOURCE.rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute) and node.attr in REPLACED
        if isinstance(node.value, ast.Name) and node.value.id == "time"
    ]

    # the first looks whether it was replaced
    assert ["core/run/async_bridge.py"] == [each.partition(":")[0] for each in found], found
