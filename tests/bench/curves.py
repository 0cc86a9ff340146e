"""
Curves of growth: what each step costs at every size, beside its cost at the smallest.

A flat curve is a step that costs the same, however much there is. Plain SVG, as the other picture.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import log10
from typing import Any, Final
from xml.sax.saxutils import escape

from tests.bench.plot import WIDTH, svg
from tests.bench.show import number

PANEL: Final = 190
LEFT: Final = 60
RIGHT: Final = 300
TOP: Final = 44
HEIGHT: Final = 110
LEAST: Final = 2.0
"""The scale ends at twice the cost of the smallest size, or higher where a curve does."""
NAMES: Final = 45
"""Pixels from the end of the curves to their names, beside the last size."""
LINE: Final = 15
"""Least pixels from one name to the next."""
COLOURS: Final = ("#3b76c4", "#c4572b", "#3f9c5a", "#9a5fc0", "#b08a1e")
STYLE: Final = """<style>
text { font: 12px system-ui, sans-serif; fill: #24292f; } .title { font-weight: 600; font-size: 14px; }
.axis { stroke: #a9b4c0; stroke-width: 1; } .goal { stroke: #c4572b; stroke-dasharray: 4 3; }
.curve { fill: none; stroke-width: 2; }
@media (prefers-color-scheme: dark) { text { fill: #e6edf3; } .axis { stroke: #5b6673; } }
</style>"""  # noqa: E501 - one rule a line


def curves(rows: Sequence[dict[str, Any]]) -> str:
    """Return the picture of the rows of growth: a panel for each kind of thing that grew."""
    found = [row for row in rows if row["case"] == "growth"]
    subjects = list(dict.fromkeys(row["of"] for row in found))
    height = PANEL * max(1, len(subjects))
    parts = svg(height, "What a step costs, by size", STYLE)
    for place, subject in enumerate(subjects):
        parts += _panel(subject, [row for row in found if row["of"] == subject], PANEL * place)
    return "\n".join([*parts, "</svg>"]) + "\n"


def _panel(subject: str, rows: list[dict[str, Any]], top: int) -> list[str]:
    sizes = sorted({row["size"] for row in rows})
    highest: float = max(LEAST, *(row["of_smallest"] for row in rows))
    bottom = top + TOP + HEIGHT

    def x(size: int) -> float:
        span = log10(sizes[-1] / sizes[0]) or 1.0
        return LEFT + (WIDTH - LEFT - RIGHT) * log10(size / sizes[0]) / span

    def y(cost: float) -> float:
        return bottom - HEIGHT * cost / highest

    right, goal = WIDTH - RIGHT, y(rows[0]["goals"]["of_smallest"]["at_most"])
    title = f"{subject.capitalize()}: processor time of a step, compared with the smallest size"
    costs = (0.0, 1.0, highest)
    return [
        f'<text class="title" x="8" y="{top + 20}">{escape(title)}</text>',
        f'<line class="axis" x1="{LEFT}" x2="{right}" y1="{bottom}" y2="{bottom}"/>',
        f'<line class="goal" x1="{LEFT}" x2="{right}" y1="{goal:.1f}" y2="{goal:.1f}"/>',
        *(_text(LEFT - 8, y(cost) + 4, f"{cost:.3g} x", "end") for cost in costs),
        *(_text(x(size), bottom + 16, number(size), "middle") for size in sizes),
        *_drawn(rows, x, y),
    ]


def _text(x: float, y: float, said: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(said)}</text>'


def _drawn(rows: list[dict[str, Any]], x: Any, y: Any) -> list[str]:
    parts, works = [], list(dict.fromkeys(row["work"] for row in rows))
    ends = {
        work: y([row for row in rows if row["work"] == work][-1]["of_smallest"]) for work in works
    }
    named, last = dict[str, float](), float("-inf")
    for work in sorted(works, key=lambda work: ends[work]):
        last = named[work] = max(ends[work], last + LINE)
    for work, colour in zip(works, COLOURS, strict=False):
        points = [row for row in rows if row["work"] == work]
        path = " ".join(f"{x(row['size']):.1f},{y(row['of_smallest']):.1f}" for row in points)
        said = f"{work}: {number(round(points[-1]['cpu_us']))} µs"
        parts.append(f'<polyline class="curve" stroke="{colour}" points="{path}"/>')
        parts.append(
            f'<text x="{WIDTH - RIGHT + NAMES}" y="{named[work] + 4:.1f}" style="fill: {colour}">'
            f"{escape(said)}</text>"
        )
    return parts
