"""Draw the layers of the contract in pyproject.toml and the path of a message through them."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from html import escape
from itertools import pairwise
from textwrap import wrap

from folders import SOURCE, STAGES, below, layers

LEFT, STEP, BOX = 118, 100, (78, 28)
"""Width of the labels, distance of two columns, size of a step."""
HIGH, LOW, LINE = 46, 26, 16
"""Height of a row with steps, of one without, and of each further line of text."""
WIDEST = 105
"""Characters of a line of text."""
TOP = 34

STYLE = """
  text { font: 13px ui-sans-serif, system-ui, sans-serif; text-anchor: middle; fill: #24292f }
  .layer { text-anchor: start; font-weight: 600 } .hint { font-size: 12px; fill: #57606a }
  .inner { text-anchor: start; paint-order: stroke; stroke: #f6f8fa; stroke-width: 6 }
  .inner.odd { stroke: #ffffff }
  .band { fill: #f6f8fa } .band.odd { fill: #ffffff } .number { font-size: 11px; fill: #ffffff }
  .step { fill: #ddf4ff; stroke: #0969da; stroke-width: 1.2 }
  .back { fill: #fff8c5; stroke: #9a6700; stroke-width: 1.2 }
  .move { fill: none; stroke: #57606a; stroke-width: 1.4; marker-end: url(#tip) }
  #tip path { fill: #57606a }
  .commit { stroke: #1a7f37; stroke-width: 1.4; stroke-dasharray: 3 3 } .dot { fill: #1a7f37 }
  .border { stroke: #8c959f; stroke-width: 1.2; stroke-dasharray: 6 4 }
  @media (prefers-color-scheme: dark) {
    text { fill: #e6edf3 } .hint { fill: #9da7b3 } .number { fill: #0d1117 }
    .band { fill: #161b22 } .band.odd { fill: #0d1117 }
    .inner { stroke: #161b22 } .inner.odd { stroke: #0d1117 }
    .step { fill: #0c2d6b; stroke: #58a6ff } .back { fill: #3b2300; stroke: #d29922 }
    .move { stroke: #9da7b3 } #tip path { fill: #9da7b3 } .commit { stroke: #3fb950 }
    .dot { fill: #3fb950 }
    .border { stroke: #6e7681 }
  }
"""
TIP = (
    '<marker id="tip" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="7" markerHeight="7" '
    'orient="auto"><path d="M0 0 8 4 0 8z"/></marker>'
)


@dataclass(frozen=True)
class Step:
    """One module on the path of a message; *commit* is the number of the commit that ends there."""

    column: int
    layer: str
    module: str
    commit: int = 0
    kind: str = "step"


PATH = (
    Step(0, "api", "session"),
    Step(0, "core/send", "compose"),
    Step(1, "core/send", "add", commit=1),
    Step(2, "core/deliver", "delivery"),
    Step(3, "core/deliver", "parcels"),
    Step(3, "transports", "file"),
    Step(4, "core/accept", "accept", commit=2),
    Step(5, "core/handle", "worker"),
    Step(6, "core/end", "received", commit=3),
    Step(6, "transports", "file", kind="back"),
    Step(7, "core/end", "sent", commit=4, kind="back"),
)
PROCESSES = (("sender", 0, 4), ("recipient", 4, 7), ("sender", 7, 8))
"""Each process on the path, its first column and the one behind its last."""


@dataclass(frozen=True)
class Row:
    """One folder in the picture; rows of one layer have the same ground."""

    name: str
    layer: int
    top: int
    height: int
    hint: tuple[str, ...] = ()
    """Lines about what is in it."""

    @property
    def middle(self) -> float:
        """Return the height of its name and of its steps."""
        return self.top + self.height / 2

    @property
    def ground(self) -> str:
        """Return the class of its ground: that of every second layer differs."""
        return "odd" if self.layer % 2 else "even"


def rows() -> list[Row]:
    """Return the rows of the picture: the folders of each layer, and in the core its stages."""
    lines = layers()
    at = lines.index(["core"])
    lines = [*lines[:at], *([stage] for stage in STAGES), *lines[at + 1 :]]
    high = {"file", *(step.layer for step in PATH)}
    found, top = list[Row](), TOP
    for number, names in enumerate(lines):
        for name in names:
            hint = _hint(name, steps=name in high)
            height = HIGH if name in high else LOW + LINE * (len(hint) - 1)
            found.append(Row(name, number, top, height, hint))
            top += found[-1].height
    return found


def _hint(name: str, *, steps: bool) -> tuple[str, ...]:
    """Return the folders of a row, or what the row is for, where no steps stand in the way."""
    inner = " · ".join(each.partition("/")[2] for each in below(name))
    if steps or inner:
        return tuple(wrap(inner, WIDEST, break_on_hyphens=False))
    file = SOURCE / f"{name}.py"
    source = file if file.is_file() else SOURCE / name / "__init__.py"
    doc = ast.get_docstring(ast.parse(source.read_text(encoding="utf-8"))) or ""
    return tuple(wrap(doc.partition("\n")[0], WIDEST))


def draw() -> str:
    """Return the drawing: a row for each layer, the steps of a message from left to right."""
    for step in PATH:
        file = SOURCE / step.layer / f"{step.module}.py"
        assert file.is_file(), f"{file} is not there: the path has changed"  # noqa: S101 - a script
    shown = rows()
    width, height = LEFT + STEP * PROCESSES[-1][2] + 4, shown[-1].top + shown[-1].height + 4
    places = {row.name: row.middle for row in shown}
    parts = [
        _root(width, height),
        "<title>Layers of the package and the path of a message</title>",
        f"<style>{STYLE}</style>",
        f"<defs>{TIP}</defs>",
        *(_ground(row, width) for row in shown),
        *_processes(height),
        *(part for row in shown for part in _names(row)),
        *(part for step in PATH if step.commit for part in _commit(step, places)),
        *(
            _arrow(_place(step, places), _place(following, places))
            for step, following in pairwise(PATH)
        ),
        *(_box(step, places) for step in PATH),
    ]
    return "\n".join([*parts, "</svg>", ""])


def _root(width: int, height: int) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'width="{width}" height="{height}" role="img">'
    )


def _ground(row: Row, width: int) -> str:
    return (
        f'<rect class="band {row.ground}" x="0" y="{row.top}" '
        f'width="{width}" height="{row.height}"/>'
    )


def _names(row: Row) -> list[str]:
    """Return the name of a row, and the lines about what is in it."""
    y = row.middle + 4
    parts = [f'<text class="layer" x="8" y="{y:.0f}">{row.name}</text>']
    x = LEFT + STEP // 2 + 12  # right of the arrow from the first step
    for number, line in enumerate(row.hint):
        at = y + LINE * (number - (len(row.hint) - 1) / 2)
        text = escape(line)
        parts.append(f'<text class="hint inner {row.ground}" x="{x}" y="{at:.0f}">{text}</text>')
    return parts


def _processes(height: int) -> list[str]:
    """Return the borders between the two processes, and their names."""
    parts = []
    for name, begin, end in PROCESSES:
        middle = LEFT + STEP * (begin + end) / 2
        parts.append(f'<text class="hint" x="{middle:.0f}" y="21">{name}</text>')
        if begin:
            parts.append(f'<path class="border" d="M{LEFT + STEP * begin} 8V{height - 4}"/>')
    return parts


def _place(step: Step, places: dict[str, float]) -> tuple[float, float]:
    return LEFT + STEP * (step.column + 0.5), places[step.layer]


def _box(step: Step, places: dict[str, float]) -> str:
    (x, y), (width, height) = _place(step, places), BOX
    return (
        f'<rect class="{step.kind}" x="{x - width / 2:.0f}" y="{y - height / 2:.0f}" '
        f'width="{width}" height="{height}" rx="6"/>'
        f'<text x="{x:.0f}" y="{y + 5:.0f}">{step.module}</text>'
    )


def _commit(step: Step, places: dict[str, float]) -> list[str]:
    (x, y), below_it = _place(step, places), places["file"]
    return [
        f'<path class="commit" d="M{x:.0f} {y + BOX[1] / 2:.0f}V{below_it - 9:.0f}"/>',
        f'<circle class="dot" cx="{x:.0f}" cy="{below_it:.0f}" r="9"/>',
        f'<text class="number" x="{x:.0f}" y="{below_it + 4:.0f}">{step.commit}</text>',
    ]


def _arrow(start: tuple[float, float], end: tuple[float, float]) -> str:
    """Return an arrow: up or down a column, along a row, or from a side to the top of the next."""
    (x, y), (to_x, to_y) = start, end
    side, edge = x + BOX[0] / 2, BOX[1] / 2
    if x == to_x:
        down = 1 if to_y > y else -1
        line = f"M{x:.0f} {y + down * edge:.0f}V{to_y - down * edge:.0f}"
    elif y == to_y:
        line = f"M{side:.0f} {y:.0f}H{to_x - BOX[0] / 2:.0f}"
    else:
        line = f"M{side:.0f} {y:.0f}Q{to_x:.0f} {y:.0f} {to_x:.0f} {to_y - edge:.0f}"
    return f'<path class="move" d="{line}"/>'
