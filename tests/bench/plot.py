"""
One picture of the rows: a bar for each measurement, a tick for each goal.

It is plain SVG that reads on dark and on light.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final
from xml.sax.saxutils import escape

from tests.bench.show import number

WIDTH: Final = 760
LEFT: Final = 190
RIGHT: Final = 90
BAR: Final = 16
STEP: Final = 26
TITLE: Final = 40
STYLE: Final = """<style>
text { font: 13px system-ui, sans-serif; fill: #24292f; } .title { font-weight: 600; } \
.note { fill: #57606a; font-size: 12px; }
.bar { fill: #3b76c4; } .rival { fill: #a9b4c0; } .goal { stroke: #c4572b; stroke-width: 2; }
@media (prefers-color-scheme: dark) { text { fill: #e6edf3; } \
.note { fill: #9da7b3; } .rival { fill: #5b6673; } }
</style>"""


@dataclass(frozen=True, slots=True)
class Bar:
    """One bar: its name, its value, and the goal if there is one."""

    name: str
    value: float
    goal: float | None = None
    kind: str = "bar"


@dataclass(frozen=True, slots=True)
class Panel:
    """Bars on one scale."""

    title: str
    note: str
    bars: tuple[Bar, ...]

    @property
    def height(self) -> int:
        """Pixels from the top of the title to the end of the last bar."""
        return TITLE + STEP * len(self.bars) + STEP // 2


def plot(rows: Sequence[dict[str, Any]]) -> str:
    """Return the picture of these rows."""
    panels = [
        panel
        for panel in (_ratios(rows), _callers(rows), _wake(rows), _streams(rows))
        if panel.bars
    ]
    body, top = [STYLE], 8
    for panel in panels:
        body.append(_drawn(panel, top))
        top += panel.height
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" '
        f'viewBox="0 0 {WIDTH} {top}" width="{WIDTH}" role="img">'
    )
    return (
        "\n".join([head, "<title>Rates against the same work by hand</title>", *body, "</svg>"])
        + "\n"
    )


def _ratios(rows: Sequence[dict[str, Any]]) -> Panel:
    found = [row for row in rows if row["case"] in {"send", "send-many", "deliver"}]
    bars = tuple(
        Bar(f"{row['case']}, {row['durability']}", row["ratio"], _goal(row, "ratio"))
        for row in found
    )
    return Panel("Share of the hand-written rate", "longer is better; the tick is the goal", bars)


def _callers(rows: Sequence[dict[str, Any]]) -> Panel:
    found = [row for row in rows if row["case"].startswith("group-")]
    bars = tuple(
        Bar(f"64 {row['case'].removeprefix('group-')}", row["ratio"], _goal(row, "ratio"))
        for row in found
    )
    return Panel(
        "64 callers, times the rate of one caller by hand",
        "durable commits; longer is better",
        bars,
    )


def _wake(rows: Sequence[dict[str, Any]]) -> Panel:
    bars: list[Bar] = []
    for row in (row for row in rows if row["case"] == "wake"):
        bars.append(Bar(f"onceward, {row['durability']}", row["p50_ms"], _goal(row, "p50_ms")))
        bars.append(Bar(f"by hand, {row['durability']}", row["raw_p50_ms"], kind="rival"))
    return Panel(
        "Idle sender to the other process's commit, ms", "median; shorter is better", tuple(bars)
    )


def _streams(rows: Sequence[dict[str, Any]]) -> Panel:
    found = [row for row in rows if row["case"] == "peers" and row.get("stream_rate")]
    bars = tuple(
        Bar(
            row["system"],
            row["stream_rate"],
            kind="bar" if row["system"] == "onceward" else "rival",
        )
        for row in found
    )
    return Panel(
        "Streams through other queues, messages per second",
        "every commit synced; durability in the table",
        bars,
    )


def _goal(row: dict[str, Any], metric: str) -> float | None:
    goal = row["goals"].get(metric, {})
    bound = goal.get("at_least", goal.get("at_most"))
    return None if bound is None else float(bound)


def _drawn(panel: Panel, top: int) -> str:
    longest = max(max(bar.value, bar.goal or 0) for bar in panel.bars)
    scale = (WIDTH - LEFT - RIGHT) / longest
    parts = [f'<text class="title" x="8" y="{top + 16}">{escape(panel.title)}</text>']
    parts.append(f'<text class="note" x="8" y="{top + 32}">{escape(panel.note)}</text>')
    for place, bar in enumerate(panel.bars):
        parts += _bar(bar, top + TITLE + STEP * place, scale)
    return "\n".join(parts)


def _bar(bar: Bar, top: int, scale: float) -> list[str]:
    length, middle = max(1, round(bar.value * scale)), top + BAR - 3
    end = max(length, round((bar.goal or 0) * scale))
    parts = [
        f'<text x="{LEFT - 8}" y="{middle}" text-anchor="end">{escape(bar.name)}</text>',
        f'<rect class="{bar.kind}" x="{LEFT}" y="{top}" width="{length}" height="{BAR}" rx="2"/>',
        f'<text x="{LEFT + end + 8}" y="{middle}">{number(bar.value)}</text>',
    ]
    if bar.goal is not None:
        x = LEFT + round(bar.goal * scale)
        parts.append(f'<line class="goal" x1="{x}" x2="{x}" y1="{top - 3}" y2="{top + BAR + 3}"/>')
    return parts
