"""The course of a soak as a picture: one strip for each thing that could grow."""

from __future__ import annotations

from typing import Final

from tests.proof.soak.run import WARM, Course

WIDTH: Final = 760
LEFT: Final = 190
RIGHT: Final = 130
STRIP: Final = 70
INNER: Final = 44
STRIPS: Final = {
    "rate": "messages in a second",
    "rss": "resident memory, MiB",
    "descriptors": "descriptors",
    "wal": "both WALs, MiB",
    "rows": "rows in four tables",
    "file": "both files, MiB",
}
STYLE: Final = """<style>
text { font: 13px system-ui, sans-serif; fill: #24292f; } .note { fill: #57606a; font-size: 12px; }
polyline { fill: none; stroke: #3b76c4; stroke-width: 1.5; } line { stroke: #a9b4c0; }
.warm { fill: #a9b4c0; opacity: 0.2; }
@media (prefers-color-scheme: dark) { text { fill: #e6edf3; }
.note { fill: #9da7b3; } line { stroke: #5b6673; } }
</style>"""


def picture(course: Course) -> str:
    """Return the course as SVG that reads on dark and on light."""
    height = STRIP * len(STRIPS) + 40
    body = [STYLE, *(_strip(course, name, 10 + STRIP * i) for i, name in enumerate(STRIPS))]
    seconds = course.samples[-1].at
    body.append(
        f'<text class="note" x="{LEFT}" y="{height - 12}">0 to {seconds:.0f} s; '
        f"what is shaded is warming up</text>"
    )
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" '
        f'viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" role="img">'
    )
    return "\n".join([head, "<title>What a soak keeps flat</title>", *body, "</svg>"]) + "\n"


def _strip(course: Course, name: str, top: int) -> str:
    points = _points(course, name)
    most, seconds = max(y for _, y in points) or 1.0, course.samples[-1].at or 1.0
    width, floor = WIDTH - LEFT - RIGHT, top + INNER
    line = " ".join(
        f"{LEFT + x / seconds * width:.1f},{floor - y / (1.1 * most) * INNER:.1f}"
        for x, y in points
    )
    growth = (
        ""
        if name == "rate"
        else (
            f'<text class="note" x="{WIDTH - RIGHT + 8}" y="{floor}">{course.slope(name):+,.1f} '
            f"an hour</text>"
        )
    )
    return (
        f'<rect class="warm" x="{LEFT}" y="{top}" width="{width * WARM:.1f}" height="{INNER}"/>'
        f'<text x="8" y="{top + INNER / 2 + 4:.0f}">{STRIPS[name]}</text>'
        f'<line x1="{LEFT}" x2="{LEFT + width}" y1="{floor}" y2="{floor}"/>'
        f'<polyline points="{line}"/>'
        f'<text x="{WIDTH - RIGHT + 8}" y="{top + 18}">{points[-1][1]:,.1f}</text>{growth}'
    )


def _points(course: Course, name: str) -> list[tuple[float, float]]:
    if name != "rate":
        return [(each.at, float(getattr(each, name))) for each in course.samples]
    pairs = zip(course.samples, course.samples[1:], strict=False)
    return [(b.at, (b.messages - a.messages) / (b.at - a.at)) for a, b in pairs]
