"""Draw the report's charts as plain SVG, without scripts, fonts or network."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from math import log10
from typing import Final

WIDTH: Final = 760
LEFT: Final = 130
RIGHT: Final = 84
BAR: Final = 18
STEP: Final = 26
PLOT: Final = 180
"""Height of a plot with two axes."""
CELL: Final = 22
NAME: Final = 150
ROUND: Final = (
    (1, "1 ms"),
    (10, "10 ms"),
    (100, "100 ms"),
    (1000, "1 s"),
    (10_000, "10 s"),
    (60_000, "1 min"),
    (600_000, "10 min"),
    (3_600_000, "1 h"),
    (36_000_000, "10 h"),
    (86_400_000, "1 d"),
    (864_000_000, "10 d"),
)
"""Round spans in milliseconds, for the axis of times."""


@dataclass(frozen=True, slots=True)
class Bar:
    """One line of a bar chart."""

    name: str
    value: int
    kind: str


def bars(rows: Sequence[Bar]) -> str:
    """Return horizontal bars on a logarithmic scale, so that rare bad messages stay visible."""
    top = max((row.value for row in rows), default=1)
    scale = (WIDTH - LEFT - RIGHT) / (1 + log10(max(1, top)))
    parts = [_bar(row, place * STEP, scale) for place, row in enumerate(rows)]
    return _svg(STEP * len(rows), parts, "messages by verdict")


def _bar(row: Bar, top: int, scale: float) -> str:
    length = round((1 + log10(row.value)) * scale) if row.value else 0
    middle = top + BAR - 4
    return (
        f'<text x="{LEFT - 8}" y="{middle}" text-anchor="end">{escape(row.name)}</text>'
        f'<rect class="{row.kind}" x="{LEFT}" y="{top}" width="{length}" height="{BAR}" rx="2"/>'
        f'<text x="{LEFT + length + 6}" y="{middle}">{row.value:,}</text>'
    )


def hours(series: Mapping[str, Sequence[tuple[int, int]]]) -> str:
    """Return lines of messages per hour: by name, pairs of (hour since 1970, messages)."""
    moments = [hour for line in series.values() for hour, _ in line]
    if not moments:
        return ""
    first, last = min(moments), max(moments)
    top = max(count for line in series.values() for _, count in line)
    across, down = (WIDTH - LEFT - RIGHT) / max(1, last - first + 1), PLOT / top
    parts = [_axes(f"{top:,}", "0")]
    for place, (name, line) in enumerate(series.items()):
        counts = dict(line)
        known = range(first, last + 1) if last - first < WIDTH else sorted(counts)
        points = [
            (LEFT + (hour - first + 0.5) * across, PLOT - counts.get(hour, 0) * down)
            for hour in known
        ]
        parts += [_line(points, f"line{place}"), _legend(place, name)]
    return _svg(PLOT + 24, parts, "messages per hour")


def cumulated(series: Mapping[str, Sequence[tuple[int, int]]]) -> str:
    """Return the share of messages within each span, in milliseconds on a logarithmic axis."""
    longest = max((ms for line in series.values() for ms, _ in line), default=0)
    if not any(series.values()):
        return ""
    wide = (WIDTH - LEFT - RIGHT) / log10(max(10, longest) + 1)
    parts = [_axes("100 %", "0 %")]
    parts += [
        f'<line class="tick" x1="{(x := LEFT + log10(ms + 1) * wide):.0f}" x2="{x:.0f}"'
        f' y1="0" y2="{PLOT}"/>'
        f'<text class="note" x="{x:.0f}" y="{PLOT + 16}" text-anchor="middle">{name}</text>'
        for ms, name in ROUND
        if ms <= max(10, longest)
    ]
    for place, (name, line) in enumerate(series.items()):
        parts += [_line(_climb(line, wide), f"line{place}"), _legend(place, name)]
    return _svg(PLOT + 24, parts, "share of messages by time taken")


def _climb(line: Sequence[tuple[int, int]], wide: float) -> list[tuple[float, float]]:
    total, upto, points = sum(count for _, count in line), 0, [(float(LEFT), float(PLOT))]
    for ms, count in sorted(line):
        x = LEFT + log10(max(0, ms) + 1) * wide
        points.append((x, PLOT - PLOT * upto / total))
        upto += count
        points.append((x, PLOT - PLOT * upto / total))
    return points


def matrix(cells: Mapping[tuple[str, str], tuple[int, int]]) -> str:
    """Return messages and bad messages by (sender, recipient) as a matrix; darker is more."""
    senders, recipients = (sorted({pair[side] for pair in cells}) for side in (0, 1))
    most = max((count for count, _ in cells.values()), default=1)
    parts = [
        f'<text x="{NAME - 6}" y="{NAME + CELL * row + 15}" text-anchor="end">'
        f"{escape(_short(name))}</text>"
        for row, name in enumerate(senders)
    ]
    parts += [
        f'<text transform="translate({NAME + CELL * column + 15} {NAME - 6}) rotate(-60)">'
        f"{escape(_short(name))}</text>"
        for column, name in enumerate(recipients)
    ]
    for (sender, recipient), (count, bad) in sorted(cells.items()):
        x, y = NAME + CELL * recipients.index(recipient), NAME + CELL * senders.index(sender)
        shade = 0.2 + 0.8 * log10(1 + count) / log10(1 + most)
        parts.append(
            f'<rect class="{"bad" if bad else "good"}" x="{x}" y="{y}" width="{CELL - 2}"'
            f' height="{CELL - 2}" opacity="{shade:.2f}">'
            f"<title>{escape(sender)} to {escape(recipient)}: {count:,} messages,"
            f" {bad:,} bad</title></rect>"
        )
    return _svg(
        NAME + CELL * len(senders),
        parts,
        "senders and recipients",
        max(WIDTH, NAME + CELL * len(recipients) + 60),
    )


def _short(name: str) -> str:
    return name if len(name) <= 20 else f"{name[:19]}…"  # noqa: PLR2004 - what fits beside the matrix


def _axes(high: str, low: str) -> str:
    return (
        f'<line class="axis" x1="{LEFT}" x2="{LEFT}" y1="0" y2="{PLOT}"/>'
        f'<line class="axis" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{PLOT}" y2="{PLOT}"/>'
        f'<text class="note" x="{LEFT - 8}" y="12" text-anchor="end">{high}</text>'
        f'<text class="note" x="{LEFT - 8}" y="{PLOT}" text-anchor="end">{low}</text>'
    )


def _line(points: Sequence[tuple[float, float]], kind: str) -> str:
    return f'<polyline class="{kind}" points="{" ".join(f"{x:.1f},{y:.1f}" for x, y in points)}"/>'


def _legend(place: int, name: str) -> str:
    y = 14 + 18 * place
    x = WIDTH - RIGHT + 6
    dot = f'<rect class="dot{place}" x="{x}" y="{y - 9}" width="9" height="9"/>'
    return f'{dot}<text class="note" x="{x + 13}" y="{y}">{escape(name)}</text>'


def _svg(height: int, parts: Sequence[str], title: str, width: int = WIDTH) -> str:
    size = f'viewBox="0 -4 {width} {height + 8}" width="{width}"'
    top = f'<svg {size} role="img"><title>{title}</title>'
    return "\n".join([top, *parts, "</svg>"])
