"""The walk through what five other systems state: for each line a test that shows it here, or what is different."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path

from pieces import code, flow, page, table

FOLDER = Path(__file__).parent / "walk"

SYSTEMS = {
    "M": (
        "mailboxes.toml",
        "mq9",
        "Mailboxes in a broker: priorities, time to live, queue groups, no state of readers.",
    ),
    "Z": ("queue.toml", "zos-agent-mq", "A queue of JSON lines on one machine, read by cursors."),
    "C": (
        "channels.toml",
        "AgenticComm",
        "Channels with roles, topics, acknowledgements and dead letters in one store.",
    ),
    "N": (
        "sessions.toml",
        "Nexus",
        "Queues of sessions whose agent is busy: five modes, and results of workers.",
    ),
    "A": ("outbox.toml", "Agenium", "An outbox in SQLite that delivers at least once."),
}
"""By the letter of their lines: the file of the walk, the system, and what it is."""


@dataclass(frozen=True)
class Line:
    """One statement of another system, and how it stands here."""

    name: str
    says: str
    tests: tuple[str, ...] = ()
    differs: str = ""


def lines(letter: str) -> list[Line]:
    """Return the lines of one system, in their order."""
    text = (FOLDER / SYSTEMS[letter][0]).read_text(encoding="utf-8")
    return [_line(name, entry) for name, entry in tomllib.loads(text).items()]


def _line(name: str, entry: dict[str, str | list[str]]) -> Line:
    unknown = set(entry) - {"says", "test", "differs"}
    if unknown:
        msg = f"{name}: a line has says, test and differs, not {sorted(unknown)}"
        raise ValueError(msg)
    test = entry.get("test", [])
    return Line(
        name,
        str(entry["says"]),
        (test,) if isinstance(test, str) else tuple(test),
        str(entry.get("differs", "")),
    )


def differences_page() -> str:
    """Return the page that compares this library with the systems it learned from, line by line."""
    intro = flow(
        "What five other systems state, line by line, and how it stands here.",
        "A line that works names the test that shows it; a line that differs says how, and why.",
        "The lines lie in `docs/walk/`; a test walks them.",
    )
    parts = [intro]
    for letter, (_, system, what) in SYSTEMS.items():
        rows = [(line.name, line.says, _here(line)) for line in lines(letter)]
        parts += [f"## {system}", what, table(("", f"{system} says", "here"), *rows)]
    return page("Differences", *parts)


def _here(line: Line) -> str:
    shown = ", ".join(code(test.rpartition("::")[2]) for test in line.tests)
    return ": ".join(part for part in (shown, line.differs) if part)
