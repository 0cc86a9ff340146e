"""Pages for users are in plain words: they name their subjects and use the terms of the field."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [
    ROOT / "README.md",
    ROOT / "CHANGELOG.md",
    *(ROOT / "examples").rglob("*.md"),
    *(ROOT / "examples").rglob("*.py"),
    *(page for page in (ROOT / "docs").rglob("*.md") if page.parent.name != "reference"),
    *(ROOT / "docs" / "site").glob("*.py"),
]

VAGUE = re.compile(r"\b(?:somebody|nobody|whoever|anybody|everybody)\b", re.IGNORECASE)
METAPHORS = re.compile(
    r"\b(?:janitors?|doorbells?|errands?|kill-switch|custody|pumps?|ushers?|handouts?)\b"
    r"|(?<!e-)\bmail\b(?! -s)",
    re.IGNORECASE,
)
OTHER_SYSTEMS = re.compile(r"\b(?:mq9|zos-agent-mq|AgenticComm|Nexus|Agenium)\b", re.IGNORECASE)


@pytest.mark.parametrize("words", [VAGUE, METAPHORS, OTHER_SYSTEMS])
def test_pages_use_plain_words(words: re.Pattern[str]) -> None:
    """No page has a vague subject, a metaphor for a term, or the name of another system."""
    found = [
        f"{page.relative_to(ROOT)}:{number} {word}"
        for page in sorted(PAGES)
        for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1)
        for word in words.findall(line)
    ]

    assert [] == found


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Nobody waits.", ["Nobody"]),
        ("The mail waits.", ["mail"]),
        ("An e-mail, a mailbox, an email package.", []),
        ("|| mail -s fleet ops@example.org", []),
    ],
)
def test_the_patterns_find_words(text: str, expected: list[str]) -> None:
    """Whole words count, and neither mailboxes nor a command called mail."""
    assert expected == VAGUE.findall(text) + METAPHORS.findall(text)
