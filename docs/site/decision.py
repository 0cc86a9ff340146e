"""Draw the questions that lead to one way to receive, and the answer of each."""

from __future__ import annotations

from html import escape
from typing import Final, NamedTuple

WIDTH, STEP, TOP = 380, 116, 8
"""A telephone shows so many pixels beside each other; a wider drawing would be shrunk on it."""
ASK, ANSWER = (8, 364), (156, 216)
"""Left edge and width of the questions and of the answers."""
HIGH, LOW = 50, 36
"""Heights of a question and of an answer."""
NO, YES = ASK[0] + 28, ASK[0] + 96
"""Where the two ways leave a question."""

STYLE: Final = """
  text { font: 13px ui-sans-serif, system-ui, sans-serif; fill: #24292f }
  .code { font-family: ui-monospace, monospace; font-weight: 600 }
  .soft { font-size: 12px; fill: #57606a }
  .ask { fill: #f6f8fa; stroke: #8c959f } .answer { fill: #ddf4ff; stroke: #0969da }
  .way { fill: none; stroke: #57606a; stroke-width: 1.4; marker-end: url(#tip) }
  #tip path { fill: #57606a }
  @media (prefers-color-scheme: dark) {
    text { fill: #e6edf3 } .soft { fill: #9da7b3 }
    .ask { fill: #161b22; stroke: #6e7681 } .answer { fill: #0c2d6b; stroke: #58a6ff }
    .way { stroke: #9da7b3 } #tip path { fill: #9da7b3 }
  }
"""
TIP: Final = (
    '<marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" '
    'orient="auto"><path d="M0 0 8 4 0 8z"/></marker>'
)


class Question(NamedTuple):
    """One question, what it means, and the way to receive where it is answered by yes."""

    asked: str
    meaning: str
    way: str


QUESTIONS: Final = (
    Question(
        "Do several agents take from one pile of messages?",
        "a task queue, a board that many read",
        "mailbox.lease",
    ),
    Question(
        "Does the program start, take what came, and end?",
        "a script, a cron job, a hook of another tool",
        "sessions.poll",
    ),
    Question(
        "Does the program ask when it is ready for one?",
        "a loop of its own: a model's turn, a prompt",
        "box.receive",
    ),
    Question(
        "Do more messages come while one call still works?",
        "a conversation with an agent that is busy for minutes",
        "@agent.runs",
    ),
    Question(
        "Is one write for a hundred messages much cheaper?",
        "rows for a table, calls of a bulk API",
        "@agent.on(batch=…)",
    ),
)
LAST: Final = "@agent.on"
"""The way where every answer was no."""


def draw() -> str:
    """Return the drawing as SVG."""
    parts = [part for row, each in enumerate(QUESTIONS) for part in _row(row, each)]
    last = TOP + STEP * len(QUESTIONS)
    high = last + LOW + TOP
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{high}" '
        f'viewBox="0 0 {WIDTH} {high}" role="img">\n'
        f"<title>Which way to receive</title>\n<style>{STYLE}</style>\n<defs>{TIP}</defs>\n"
        + "\n".join([*parts, *_answer((ASK[0], ANSWER[1]), last, LAST)])
        + "\n</svg>\n"
    )


def _row(row: int, each: Question) -> list[str]:
    top = TOP + STEP * row
    left, low = ASK[0] + 12, top + HIGH
    answer = low + (STEP - HIGH - LOW) // 2
    middle = answer + LOW // 2
    return [
        *_box(ASK, top, HIGH, "ask"),
        f'<text x="{left}" y="{top + 21}">{escape(each.asked)}</text>',
        f'<text class="soft" x="{left}" y="{top + 39}">{escape(each.meaning)}</text>',
        f'<path class="way" d="M{YES} {low}V{middle}H{ANSWER[0] - 2}"/>',
        f'<text class="soft" x="{YES + 8}" y="{middle - 6}">yes</text>',
        *_answer(ANSWER, answer, each.way),
        f'<path class="way" d="M{NO} {low}V{top + STEP - 2}"/>',
        f'<text class="soft" x="{NO + 8}" y="{middle + 4}">no</text>',
    ]


def _answer(place: tuple[int, int], top: int, way: str) -> list[str]:
    text = f'<text class="code" x="{place[0] + 12}" y="{top + 23}">{escape(way)}</text>'
    return [*_box(place, top, LOW, "answer"), text]


def _box(place: tuple[int, int], top: int, high: int, kind: str) -> list[str]:
    left, width = place
    return [f'<rect class="{kind}" x="{left}" y="{top}" width="{width}" height="{high}" rx="6"/>']
