"""Pages for users are in plain words: they name their subjects and use the terms of the field."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FROM_CODE = ROOT / "docs" / "explanation" / "architecture.md"
"""Its tables are the docstrings of the package."""
PAGES = [
    ROOT / "README.md",
    ROOT / "CHANGELOG.md",
    *(ROOT / "examples").rglob("*.md"),
    *(ROOT / "examples").rglob("*.py"),
    *(page for page in (ROOT / "docs").rglob("*.md") if page.parent.name != "reference"),
    *(ROOT / "docs" / "site").glob("*.py"),
]
ENGLISH = [
    *(page for page in PAGES if page != FROM_CODE),
    *(ROOT / "schema").glob("*.md"),
    *(ROOT / "schema").glob("*.sql"),
]
"""Texts without a phrase that a native reader stumbles over."""

VAGUE = re.compile(r"\b(?:somebody|nobody|whoever|anybody|everybody)\b", re.IGNORECASE)
METAPHORS = re.compile(
    r"\b(?:janitors?|doorbells?|errands?|kill-switch|custody|pumps?|ushers?|handouts?)\b"
    r"|(?<!e-)\bmail\b(?! -s)",
    re.IGNORECASE,
)
CLUMSY = re.compile(
    r"\b(?:(?:is|was) told|are told(?! (?:apart|from))|told of|for ever|so long as|at all times"
    r"|in turns|a further|hands? out|are no errors?|None where)\b",
    re.IGNORECASE,
)
OTHER_SYSTEMS = re.compile(r"\b(?:mq9|zos-agent-mq|AgenticComm|Nexus|Agenium)\b", re.IGNORECASE)


@pytest.mark.parametrize("words", [VAGUE, METAPHORS, OTHER_SYSTEMS])
def test_pages_use_plain_words(words: re.Pattern[str]) -> None:
    """No page has a vague subject, a metaphor for a term, or the name of another system."""
    assert [] == _found(PAGES, words)


def test_pages_and_schema_are_english() -> None:
    """No page and no comment of the schema has one of the clumsy phrases."""
    assert [] == _found(ENGLISH, CLUMSY)


def _found(pages: list[Path], words: re.Pattern[str]) -> list[str]:
    return [
        f"{page.relative_to(ROOT)}:{number} {word}"
        for page in sorted(pages)
        for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1)
        for word in words.findall(line)
    ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Nobody waits.", ["Nobody"]),
        ("The mail waits.", ["mail"]),
        ("An e-mail, a mailbox, an email package.", []),
        ("|| mail -s fleet ops@example.org", []),
        ("The peer is told, for ever.", ["is told", "for ever"]),
        ("They are told apart, wait for every peer, and are no longer there.", []),
    ],
)
def test_the_patterns_find_words(text: str, expected: list[str]) -> None:
    """Whole words and phrases count, and neither mailboxes nor a command called mail."""
    patterns = (VAGUE, METAPHORS, CLUMSY)

    assert expected == [word for words in patterns for word in words.findall(text)]


NAMED = re.compile(
    r"`((?:core|file|message|api|features|transports|fleet|ops|testing|integrations)(?:/\w+)+)/?`"
)
"""A module or folder of the package, as pages name it."""


def _not_there(page: Path) -> list[str]:
    package = ROOT / "src" / "onceward"
    return [
        f"{page.relative_to(ROOT)}: {name}"
        for name in NAMED.findall(page.read_text(encoding="utf-8"))
        if not ((package / name).is_dir() or (package / f"{name}.py").is_file())
    ]


def test_pages_name_modules_that_exist() -> None:
    """A module that has moved is named by its new place."""
    assert [] == [each for page in ENGLISH if page.suffix == ".md" for each in _not_there(page)]


def test_a_module_that_is_gone_is_found() -> None:
    """Only the names in code type count, with or without a slash at the end."""
    text = "`core/send/gone` and `core/send/` and core/also/not"

    assert ["core/send/gone", "core/send"] == NAMED.findall(text)
