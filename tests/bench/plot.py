"""
One picture of the rows for a reader who has never heard of us: messages a second, by system.

Each system is a bar; its colour says how often a message takes effect when a process is killed.
It is plain SVG that reads on dark and on light.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final
from xml.sax.saxutils import escape

from tests.bench.show import number

WIDTH: Final = 760
LEFT: Final = 190
RIGHT: Final = 190
BAR: Final = 18
STEP: Final = 28
TOP: Final = 78
FOOT: Final = 30
STYLE: Final = """<style>
text { font: 13px system-ui, sans-serif; fill: #24292f; } .title { font-weight: 600; font-size: 15px; }
.note { fill: #57606a; font-size: 12px; } .ours { font-weight: 600; }
.exactly { fill: #3b76c4; } .least { fill: #8b98a5; } .most { fill: #d9a441; }
@media (prefers-color-scheme: dark) { text { fill: #e6edf3; } .note { fill: #9da7b3; }
.least { fill: #6b7683; } }
</style>"""  # noqa: E501 - one rule a line
TITLE: Final = "One message at a time: how many a second"
NOTE: Final = "Sent, read and acknowledged before the next one, each written safely to the disk."
COLOURS: Final = {"exactly once": "exactly", "at least once": "least", "at most once": "most"}
FOOTNOTE: Final = "If a process is killed, a message takes effect:"


def plot(rows: Sequence[dict[str, Any]]) -> str:
    """Return the picture of these rows; an empty one where no systems were compared."""
    found = _of_one_build([row for row in rows if row["case"] == "peers" and row["rate"]])
    found.sort(key=lambda row: -row["rate"])
    height = TOP + STEP * len(found) + FOOT
    parts = [
        *svg(height, TITLE, STYLE),
        f'<text class="title" x="8" y="22">{escape(TITLE)}</text>',
        f'<text class="note" x="8" y="42">{escape(NOTE)}</text>',
        *_legend(),
    ]
    for place, row in enumerate(found):
        parts += _bar(row, TOP + STEP * place, found[0]["rate"])
    return "\n".join([*parts, "</svg>"]) + "\n"


def _of_one_build(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the rows of the build of Python that comes first."""
    return [row for row in rows if row.get("machine") == rows[0].get("machine")]


def svg(height: int, title: str, style: str) -> list[str]:
    """Return the beginning of a picture."""
    box = f'viewBox="0 0 {WIDTH} {height}" width="{WIDTH}"'
    return [
        f'<svg xmlns="http://www.w3.org/2000/svg" {box} role="img">',
        f"<title>{escape(title)}</title>",
        style,
    ]


def _legend() -> list[str]:
    parts, x = [f'<text class="note" x="8" y="62">{escape(FOOTNOTE)}</text>'], 290
    for promise, colour in COLOURS.items():
        parts.append(f'<rect class="{colour}" x="{x}" y="52" width="12" height="12" rx="2"/>')
        parts.append(f'<text class="note" x="{x + 18}" y="62">{promise}</text>')
        x += 120
    return parts


def _bar(row: dict[str, Any], top: int, longest: float) -> list[str]:
    length, middle = (
        max(1, round((WIDTH - LEFT - RIGHT) * row["rate"] / longest)),
        top + BAR - 4,
    )
    ours = ' class="ours"' if row["system"] == "onceward" else ""
    colour = COLOURS.get(row.get("promise", ""), "least")
    system = escape(row["system"])
    return [
        f'<text{ours} x="{LEFT - 8}" y="{middle}" text-anchor="end">{system}</text>',
        f'<rect class="{colour}" x="{LEFT}" y="{top}" width="{length}" height="{BAR}" rx="2"/>',
        f'<text{ours} x="{LEFT + length + 8}" y="{middle}">{number(round(row["rate"]))}</text>',
    ]
