"""Draw the layers of the contract in pyproject.toml and the path of a message through them."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src" / "onceward"

LEFT, STEP, BOX = 118, 84, (80, 28)
"""Width of the labels, distance of two steps, size of a step."""
HIGH, LOW = 46, 26
"""Height of a layer with steps and of one without."""
TOP = 34

STYLE = """
  text { font: 13px ui-sans-serif, system-ui, sans-serif; text-anchor: middle; fill: #24292f }
  .layer { text-anchor: start; font-weight: 600 } .hint { font-size: 12px; fill: #57606a }
  .band { fill: #f6f8fa } .odd { fill: #ffffff } .number { font-size: 11px; fill: #ffffff }
  .step { fill: #ddf4ff; stroke: #0969da; stroke-width: 1.2 }
  .back { fill: #fff8c5; stroke: #9a6700; stroke-width: 1.2 }
  .move { fill: none; stroke: #57606a; stroke-width: 1.4; marker-end: url(#tip) }
  #tip path { fill: #57606a }
  .commit { stroke: #1a7f37; stroke-width: 1.4; stroke-dasharray: 3 3 } .dot { fill: #1a7f37 }
  .border { stroke: #8c959f; stroke-width: 1.2; stroke-dasharray: 6 4 }
  @media (prefers-color-scheme: dark) {
    text { fill: #e6edf3 } .hint { fill: #9da7b3 } .number { fill: #0d1117 }
    .band { fill: #161b22 } .odd { fill: #0d1117 }
    .step { fill: #0c2d6b; stroke: #58a6ff } .back { fill: #3b2300; stroke: #d29922 }
    .move { stroke: #9da7b3 } #tip path { fill: #9da7b3 } .commit { stroke: #3fb950 }
    .dot { fill: #3fb950 }
    .border { stroke: #6e7681 }
  }
"""
TIP = (
    '<marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" '
    'orient="auto"><path d="M0 0 8 4 0 8z"/></marker>'
)


@dataclass(frozen=True)
class Step:
    """One module on the path of a message; *commit* is the number of the commit that ends there."""

    layer: str
    module: str
    commit: int = 0
    kind: str = "step"


STAGES = ("core/send", "core/deliver", "core/accept", "core/handle")
"""Folders of the core in the order of a message; the layer is drawn as a row for each."""
SENDER = (
    Step("api", "session"),
    Step("core/send", "compose"),
    Step("core/send", "outbox", commit=1),
    Step("core/deliver", "delivery"),
    Step("core/deliver", "parcels"),
    Step("transports", "file"),
)
RECIPIENT = (
    Step("core/accept", "accept", commit=2),
    Step("core/handle", "worker"),
    Step("core/handle", "inbox", commit=3),
    Step("transports", "file", kind="back"),
)
SENDER_AGAIN = (Step("core/deliver", "parcels", commit=4, kind="back"),)
PATH = (*SENDER, *RECIPIENT, *SENDER_AGAIN)


def layers() -> list[list[str]]:
    """Return the rows of the picture: the layers of the contract, and in the core its stages."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    [contract] = [
        each for each in project["tool"]["importlinter"]["contracts"] if each["type"] == "layers"
    ]
    rows = [
        [name.strip().rpartition(".")[2] for name in line.split("|")] for line in contract["layers"]
    ]
    at = rows.index(["core"])
    return [*rows[:at], *([stage] for stage in STAGES), *rows[at + 1 :]]


def draw() -> str:
    """Return the drawing: a row for each layer, the steps of a message from left to right."""
    for step in PATH:
        file = SOURCE / step.layer / f"{step.module}.py"
        assert file.is_file(), f"{file} is not there: the path has changed"  # noqa: S101 - a script
    rows, height = _rows()
    width = LEFT + STEP * len(PATH) + 8
    parts = [
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
            f'width="{width}" '
            f'height="{height}" role="img">'
        ),
        "<title>Layers of the package and the path of a message</title>",
        f"<style>{STYLE}</style>",
        f"<defs>{TIP}</defs>",
        *_bands(width),
        *_processes(height),
    ]
    for index, (step, following) in enumerate(zip(PATH, (*PATH[1:], None), strict=True)):
        parts += _commit(index, step, rows)
        if following is not None:
            parts.append(_arrow(_place(index, step, rows), _place(index + 1, following, rows)))
    parts += [_box(index, step, rows) for index, step in enumerate(PATH)]
    return "\n".join([*parts, "</svg>", ""])


def _is_high(layer: list[str]) -> bool:
    return "file" in layer or any(step.layer in layer for step in PATH)


def _rows() -> tuple[dict[str, float], int]:
    """Return the middle of each layer's row, and the height of all of them."""
    rows: dict[str, float] = {}
    y = TOP
    for layer in layers():
        height = HIGH if _is_high(layer) else LOW
        rows |= dict.fromkeys(layer, y + height / 2)
        y += height
    return rows, y + 4


def _bands(width: int) -> list[str]:
    parts = []
    y = TOP
    for number, layer in enumerate(layers()):
        height = HIGH if _is_high(layer) else LOW
        kind = "band odd" if number % 2 else "band"
        parts += [
            f'<rect class="{kind}" x="0" y="{y}" width="{width}" height="{height}"/>',
            f'<text class="layer" x="8" y="{y + height / 2 + 4:.0f}">{", ".join(layer)}</text>',
        ]
        y += height
    return parts


def _processes(height: int) -> list[str]:
    """Return the borders between the two processes, and their names."""
    parts = []
    begin = 0
    for name, steps in (("sender", SENDER), ("recipient", RECIPIENT), ("sender", SENDER_AGAIN)):
        middle = LEFT + STEP * (begin + len(steps) / 2)
        parts.append(f'<text class="hint" x="{middle:.0f}" y="21">{name}</text>')
        begin += len(steps)
        if begin < len(PATH):
            x = LEFT + STEP * begin
            parts.append(f'<path class="border" d="M{x} 8V{height - 4}"/>')
    return parts


def _place(index: int, step: Step, rows: dict[str, float]) -> tuple[float, float]:
    return LEFT + STEP * (index + 0.5), rows[step.layer]


def _box(index: int, step: Step, rows: dict[str, float]) -> str:
    (x, y), (width, height) = _place(index, step, rows), BOX
    return (
        f'<rect class="{step.kind}" x="{x - width / 2:.0f}" y="{y - height / 2:.0f}" '
        f'width="{width}" height="{height}" rx="6"/>'
        f'<text x="{x:.0f}" y="{y + 5:.0f}">{step.module}</text>'
    )


def _commit(index: int, step: Step, rows: dict[str, float]) -> list[str]:
    if not step.commit:
        return []
    (x, y), below = _place(index, step, rows), rows["file"]
    return [
        f'<path class="commit" d="M{x:.0f} {y + BOX[1] / 2:.0f}V{below - 9:.0f}"/>',
        f'<circle class="dot" cx="{x:.0f}" cy="{below:.0f}" r="9"/>',
        f'<text class="number" x="{x:.0f}" y="{below + 4:.0f}">{step.commit}</text>',
    ]


def _arrow(start: tuple[float, float], end: tuple[float, float]) -> str:
    """Return an arrow from the lower or upper edge of one step to the side of the next."""
    down = 1 if end[1] > start[1] else -1
    x, y = start[0] + 14, start[1] + down * BOX[1] / 2
    return (
        f'<path class="move" d="M{x:.0f} {y:.0f}Q{x:.0f} {end[1]:.0f} '
        f'{end[0] - BOX[0] / 2:.0f} {end[1]:.0f}"/>'
    )
