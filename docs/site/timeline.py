"""Draw the timeline of a mode, as SVG for light and dark pages."""

from __future__ import annotations

from dataclasses import dataclass

WIDTH, ROW, LEFT, UNIT = 720, 44, 110, 60
STYLE = """
  text { font: 13px ui-sans-serif, system-ui, sans-serif; fill: #24292f }
  .small { font-size: 11px; fill: #57606a }
  .axis { stroke: #d0d7de; stroke-width: 1 } .message { fill: #0969da }
  .wait { stroke: #0969da; stroke-width: 1.5; stroke-dasharray: 3 3 }
  .done { fill: #ddf4e4; stroke: #1a7f37 } .aborted { fill: #ffebe9; stroke: #cf222e }
  .quiet { fill: #fff8c5; stroke: #d4a72c }
  @media (prefers-color-scheme: dark) {
    text { fill: #e6edf3 } .small { fill: #8d96a0 } .axis { stroke: #30363d }
    .message { fill: #58a6ff } .wait { stroke: #58a6ff }
    .done { fill: #12261e; stroke: #3fb950 } .aborted { fill: #2d1214; stroke: #f85149 }
    .quiet { fill: #272115; stroke: #9e6a03 }
  }
"""


@dataclass(frozen=True)
class Bar:
    """A span of time: a run, or the wait for quiet."""

    start: float
    end: float
    text: str
    kind: str = "done"


@dataclass(frozen=True)
class Story:
    """Messages by the time of their arrival, and the runs that they caused."""

    messages: dict[str, float]
    bars: tuple[Bar, ...]
    note: str


STORIES = {
    "followup": Story(
        {"a": 0.4, "b": 1.4, "c": 2.2},
        (Bar(0.5, 3.5, "run of a"), Bar(3.6, 6.2, "run of b"), Bar(6.3, 9.0, "run of c")),
        "b and c come while a is worked on; each waits its turn.",
    ),
    "queue": Story(
        {"a": 0.4, "b!": 1.4, "c": 2.2},
        (Bar(0.5, 3.5, "run of a"), Bar(3.6, 6.2, "run of b"), Bar(6.3, 9.0, "run of c")),
        "b asks for steer, which `queue` ignores.",
    ),
    "collect": Story(
        {"a": 0.4, "b": 1.2, "c": 1.9, "d": 5.0},
        (Bar(1.9, 3.1, "quiet", "quiet"), Bar(3.2, 6.4, "run of a b c"), Bar(6.5, 9.0, "run of d")),
        "One debounce after c it is quiet. d comes while they are worked on; its debounce has "
        "passed when they are done.",
    ),
    "steer": Story(
        {"a": 0.4, "b": 3.0, "c": 7.2},
        (
            Bar(0.5, 3.0, "run of a", "aborted"),
            Bar(3.1, 6.6, "run of a b"),
            Bar(7.3, 9.0, "run of c"),
        ),
        "b ends the run of a; both are the next run. c comes when no run is open.",
    ),
    "interrupt": Story(
        {"a": 0.4, "b": 3.6},
        (
            Bar(0.5, 3.6, "run of a, checkpoint", "aborted"),
            Bar(3.7, 7.2, "run of a b, continues from there"),
        ),
        "The run of a had stored partial output, which the next run reads beside a and b.",
    ),
}
"""A short story for every mode."""


def draw(mode: str) -> str:
    """Return the drawing of one mode's story."""
    story = STORIES[mode]
    height = 3 * ROW + 10
    parts = [
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" '
            f'viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" '
            f'height="{height}" role="img">'
        ),
        f"<title>{mode}: {story.note}</title>",
        f"<style>{STYLE}</style>",
    ]
    for row, label in enumerate(("messages", "runs")):
        y = 30 + row * ROW
        parts += [
            f'<text x="8" y="{y + 4}">{label}</text>',
            f'<path class="axis" d="M{LEFT} {y}H{WIDTH - 10}"/>',
        ]
    for name, at in story.messages.items():
        x = LEFT + UNIT * at
        parts += [
            f'<circle class="message" cx="{x:.0f}" cy="30" r="5"/>',
            f'<text x="{x - 4:.0f}" y="18">{name}</text>',
        ]
        parts.append(f'<path class="wait" d="M{x:.0f} 36V{30 + ROW - 15}"/>')
    for bar in story.bars:
        x, width, y = LEFT + UNIT * bar.start, UNIT * (bar.end - bar.start), 30 + ROW - 14
        parts.append(
            f'<rect class="{bar.kind}" x="{x:.0f}" y="{y}" width="{width:.0f}" height="28" rx="6"/>'
        )
        parts.append(f'<text x="{x + 6:.0f}" y="{y + 19}">{bar.text}</text>')
    parts.append(f'<text class="small" x="8" y="{height - 12}">{story.note}</text>')
    return "\n".join([*parts, "</svg>", ""])
