"""Draw a state machine from its table, as SVG for light and dark pages."""

from __future__ import annotations

from dataclasses import dataclass
from math import hypot

Table = dict[tuple[str, str], str]
Point = tuple[float, float]

WIDTH, HEIGHT = 160, 46
STYLE = """
  text { font: 15px ui-sans-serif, system-ui, sans-serif; text-anchor: middle; fill: #24292f }
  .number { font-size: 11px; fill: #ffffff } .hint { font-size: 11px; fill: #57606a }
  .state { fill: #f6f8fa; stroke: #57606a; stroke-width: 1.5 }
  .ended { fill: #ddf4e4; stroke: #1a7f37 }
  .move { fill: none; stroke: #57606a; stroke-width: 1.5; marker-end: url(#tip) }
  .dot { fill: #0969da } #tip path { fill: #57606a }
  @media (prefers-color-scheme: dark) {
    text { fill: #e6edf3 } .number { fill: #0d1117 } .hint { fill: #8d96a0 }
    .state { fill: #161b22; stroke: #8d96a0 } .ended { fill: #12261e; stroke: #3fb950 }
    .move { stroke: #8d96a0 } .dot { fill: #58a6ff } #tip path { fill: #8d96a0 }
  }
"""
TIP = (
    '<marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" '
    'orient="auto"><path d="M0 0 8 4 0 8z"/></marker>'
)


@dataclass(frozen=True)
class Layout:
    """Positions of the states of one machine, and the bend of single moves."""

    size: tuple[int, int]
    places: dict[str, Point]
    bends: dict[tuple[str, str], float]
    hints: dict[str, str]
    ended: frozenset[str]
    """States in which a message has come to its end; shown by colour."""


def draw(table: Table, layout: Layout, title: str) -> str:
    """Return the drawing; moves bear the numbers of the table that stands under it."""
    width, height = layout.size
    parts = [
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" '
            f'viewBox="0 0 {width} {height}" width="{width}" '
            f'height="{height}" role="img">'
        ),
        f"<title>{title}</title>",
        f"<style>{STYLE}</style>",
        f"<defs>{TIP}</defs>",
    ]
    for number, (start, end) in enumerate(table, start=1):
        parts += _move(
            layout.places[start], layout.places[end], layout.bends.get((start, end), 0.0), number
        )
    for state, place in layout.places.items():
        parts += _state(state, place, layout.hints.get(state), last=state in layout.ended)
    return "\n".join([*parts, "</svg>", ""])


def _state(name: str, place: Point, hint: str | None, *, last: bool) -> list[str]:
    x, y = place
    kind = "state ended" if last else "state"
    box = (
        f'<rect class="{kind}" x="{x - WIDTH / 2:.0f}" y="{y - HEIGHT / 2:.0f}" '
        f'width="{WIDTH}" height="{HEIGHT}" rx="10"/>'
    )
    if hint is None:
        return [box, f'<text x="{x:.0f}" y="{y + 5:.0f}">{name}</text>']
    return [
        box,
        f'<text x="{x:.0f}" y="{y - 1:.0f}">{name}</text>',
        f'<text class="hint" x="{x:.0f}" y="{y + 14:.0f}">{hint}</text>',
    ]


def _move(start: Point, end: Point, bend: float, number: int) -> list[str]:
    middle = ((start[0] + end[0]) / 2, (start[1] + end[1]) / 2)
    length = hypot(end[0] - start[0], end[1] - start[1])
    aside = (-(end[1] - start[1]) / length * 2 * bend, (end[0] - start[0]) / length * 2 * bend)
    control = (middle[0] + aside[0], middle[1] + aside[1])
    a, b = _edge(start, control), _edge(end, control)
    x, y = (a[0] + 2 * control[0] + b[0]) / 4, (a[1] + 2 * control[1] + b[1]) / 4
    return [
        (
            f'<path class="move" d="M{a[0]:.1f} {a[1]:.1f} Q{control[0]:.1f} {control[1]:.1f} '
            f'{b[0]:.1f} {b[1]:.1f}"/>'
        ),
        (
            f'<circle class="dot" cx="{x:.1f}" cy="{y:.1f}" r="9"/>'
            f'<text class="number" x="{x:.1f}" '
            f'y="{y + 4:.1f}">{number}</text>'
        ),
    ]


def _edge(place: Point, towards: Point) -> Point:
    """Return where the line from the middle of a state leaves its box."""
    dx, dy = towards[0] - place[0], towards[1] - place[1]
    share = min(
        (WIDTH / 2 + 2) / abs(dx) if dx else 9e9, (HEIGHT / 2 + 2) / abs(dy) if dy else 9e9, 1.0
    )
    return place[0] + dx * share, place[1] + dy * share


OUTBOX = Layout(
    size=(860, 420),
    places={
        "pending": (110, 210),
        "sent": (420, 210),
        "acked": (740, 110),
        "failed": (740, 310),
        "cancelled": (110, 370),
        "dropped": (420, 370),
    },
    bends={
        ("pending", "sent"): -22, ("sent", "pending"): -22,
        ("pending", "acked"): -52, ("acked", "pending"): 112,
        ("sent", "cancelled"): 30, ("acked", "cancelled"): -60,
        ("pending", "failed"): 52, ("failed", "pending"): -112,
    },
    hints={"pending": "sending, while in a parcel"},
    ended=frozenset({"acked", "failed", "cancelled", "dropped"}),
)  # fmt: skip
RUNS = Layout(
    size=(620, 240),
    places={"open": (110, 120), "done": (500, 40), "aborted": (500, 120), "failed": (500, 200)},
    bends={},
    hints={"open": "holds the session's lease"},
    ended=frozenset({"done", "aborted", "failed"}),
)
INBOX = Layout(
    size=(620, 320),
    places={
        "pending": (110, 160),
        "processed": (500, 40),
        "dropped": (500, 120),
        "expired": (500, 200),
        "cancelled": (500, 280),
    },
    bends={},
    hints={"pending": "processing, while leased"},
    ended=frozenset({"processed", "dropped", "expired", "cancelled"}),
)
