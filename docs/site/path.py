"""Draw the way of one message between two files, for the front page."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

STYLE: Final = """
  text { font: 15px ui-sans-serif, system-ui, sans-serif; fill: #24292f }
  .name { font-weight: 600 } .hint { font-size: 13px; fill: #57606a }
  .file { fill: #f6f8fa; stroke: #8c959f; stroke-width: 1.2 }
  .commit { fill: #ddf4ff; stroke: #0969da; stroke-width: 1.4 }
  .move { fill: none; stroke: #57606a; stroke-width: 1.6; marker-end: url(#tip) }
  #tip path { fill: #57606a } .number { fill: #0969da; font-weight: 600 }
  @media (prefers-color-scheme: dark) {
    text { fill: #e6edf3 } .hint { fill: #9da7b3 } .file { fill: #161b22; stroke: #6e7681 }
    .commit { fill: #0c2d6b; stroke: #58a6ff } .number { fill: #79c0ff }
    .move { stroke: #9da7b3 } #tip path { fill: #9da7b3 }
  }
"""
TIP: Final = (
    '<marker id="tip" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="8" markerHeight="8" '
    'orient="auto"><path d="M0 0 8 4 0 8z"/></marker>'
)
TITLE: Final = (
    "One message in two files, with four commits: send in the sender's file, accept "
    "and handle in the recipient's, receipt in the sender's"
)
WIDE, HIGH = 640, 300
FILES: Final = (("shop.db", 10), ("billing.db", 362))
"""Each file and its left edge."""
FILE_WIDE, BOX_WIDE, BOX_HIGH = 268, 240, 88


@dataclass(frozen=True)
class Commit:
    """One transaction: in which file, how far down, its title, and what it holds."""

    file: int
    top: int
    title: str
    lines: tuple[str, str]

    @property
    def left(self) -> int:
        """Return the left edge."""
        return FILES[self.file][1] + 14


COMMITS: Final = (
    Commit(0, 52, "send", ("your rows", "the message, in the outbox")),
    Commit(1, 52, "accept", ("the message, in the inbox", "refused if it was here before")),
    Commit(1, 188, "handle", ("the handler's rows, its replies", "the mark that says done")),
    Commit(0, 188, "receipt", ("the state in the outbox: acked", "")),
)


def draw() -> str:
    """Return the drawing."""
    size = f'viewBox="0 0 {WIDE} {HIGH}" width="{WIDE}" height="{HIGH}"'
    files = [_file(name, left) for name, left in FILES]
    commits = [_commit(number, each) for number, each in enumerate(COMMITS, 1)]
    return "\n".join(
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img">',
            f"<title>{TITLE}</title>",
            f"<style>{STYLE}</style><defs>{TIP}</defs>",
            *files,
            *commits,
            *map(_move, COMMITS, COMMITS[1:]),
            "</svg>\n",
        )
    )


def _file(name: str, left: int) -> str:
    return (
        f'<rect class="file" x="{left}" y="8" width="{FILE_WIDE}" height="{HIGH - 16}" rx="10"/>'
        f'<text class="name" x="{left + 14}" y="36">{name}</text>'
    )


def _commit(number: int, commit: Commit) -> str:
    x, top = commit.left, commit.top
    lines = "".join(
        f'<text class="hint" x="{x + 12}" y="{top + 50 + 22 * row}">{line}</text>'
        for row, line in enumerate(commit.lines)
        if line
    )
    return (
        f'<rect class="commit" x="{x}" y="{top}" width="{BOX_WIDE}" height="{BOX_HIGH}" rx="6"/>'
        f'<text x="{x + 12}" y="{top + 25}"><tspan class="number">{number}</tspan> '
        f'<tspan class="name">{commit.title}</tspan></text>{lines}'
    )


def _move(start: Commit, end: Commit) -> str:
    """Return the arrow between two commits: across, or down in one file."""
    if start.file == end.file:
        x = start.left + BOX_WIDE // 2
        return f'<path class="move" d="M{x} {start.top + BOX_HIGH}V{end.top}"/>'
    right = start.left + BOX_WIDE, end.left
    left = start.left, end.left + BOX_WIDE
    begin, tip = right if end.file > start.file else left
    return f'<path class="move" d="M{begin} {start.top + BOX_HIGH // 2}H{tip}"/>'
