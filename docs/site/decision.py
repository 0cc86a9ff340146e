"""Draw the questions that lead to one way to receive, and the answer of each."""

from __future__ import annotations

from html import escape
from typing import Final, NamedTuple

WIDTH, STEP, TOP = 760, 74, 16
ASK, ANSWER = (16, 440), (536, 208)
"""Left edge and width of the questions and of the answers."""
HIGH = 46

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
        "box.poll",
    ),
    Question(
        "Does the program ask when it is ready for one?",
        "a loop of its own: a model's turn, a prompt",
        "box.receive",
    ),
    Question(
        "Do more messages come while one call still works?",
        "a conversation with an agent that is busy for minutes",
        "@agent.session",
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
    high = last + HIGH + TOP
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {high}" role="img">\n'
        f"<title>Which way to receive</title>\n<style>{STYLE}</style>\n<defs>{TIP}</defs>\n"
        + "\n".join([*parts, *_box(ASK, last, "answer"), _code(ASK[0] + 14, last, LAST)])
        + "\n</svg>\n"
    )


def _row(row: int, each: Question) -> list[str]:
    top = TOP + STEP * row
    left, right, middle = ASK[0], ANSWER[0], top + HIGH // 2
    return [
        *_box(ASK, top, "ask"),
        f'<text x="{left + 14}" y="{top + 20}">{escape(each.asked)}</text>',
        f'<text class="soft" x="{left + 14}" y="{top + 37}">{escape(each.meaning)}</text>',
        f'<path class="way" d="M{left + ASK[1]} {middle}H{right - 2}"/>',
        f'<text class="soft" x="{left + ASK[1] + 28}" y="{middle - 6}">yes</text>',
        *_box(ANSWER, top, "answer"),
        _code(right + 14, top, each.way),
        f'<path class="way" d="M{left + 60} {top + HIGH}V{top + STEP - 2}"/>',
        f'<text class="soft" x="{left + 70}" y="{top + HIGH + 19}">no</text>',
    ]


def _box(place: tuple[int, int], top: int, kind: str) -> list[str]:
    left, width = place
    return [f'<rect class="{kind}" x="{left}" y="{top}" width="{width}" height="{HIGH}" rx="6"/>']


def _code(left: int, top: int, text: str) -> str:
    return f'<text class="code" x="{left}" y="{top + 28}">{escape(text)}</text>'
