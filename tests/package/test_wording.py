"""Texts of the package name their subject: a message, a worker, a process, a caller."""

import ast
import io
import re
import tokenize
from collections.abc import Collection, Iterator
from pathlib import Path

import pytest
from tests.syntax import parsed, statements

VAGUE = re.compile(r"\b(?:somebody|nobody|whoever|anybody|everybody)\b", re.IGNORECASE)
CLUMSY = re.compile(
    r"\b(?:anew|from then on|from now on|by way of|where it is left out|kept falsely|passed over"
    r"|pass(?:es)? over|is none of (?!which)|and no module|(?:is|was) told|for ever|None where)\b",
    re.IGNORECASE,
)
"""Phrases that are not English, in code and pages."""
SUBJECT = re.compile(r"(?:^|(?<=[.:;] ))(?:Who|Whoever|What)\b")
OLD = re.compile(
    r"(?<![A-Za-z])_?(?:crossing|roster|errands?|obey|seats?|doors|custody|janitor|doorbell|handouts?"
    r"|kill-switch|trail|tidy|herald|usher|teller|turnstile|mould|heirs?|evaporated|readout)(?![A-Za-z])",
    re.IGNORECASE,
)
"""Words of the first version; the field has words of its own for them."""
PLAIN = (".sql", ".md")
"""Files that are prose and comments throughout."""
TEXTS = {tokenize.COMMENT, tokenize.STRING, getattr(tokenize, "FSTRING_MIDDLE", tokenize.STRING)}
PACKAGE = Path(__file__).parents[2] / "src" / "onceward"
PARTS = sorted(
    {
        path.relative_to(PACKAGE).parts[0].removesuffix(".py")
        for path in PACKAGE.rglob("*.py")
        if "__pycache__" not in path.parts
    }
    | {"schema"}
)


@pytest.mark.parametrize("part", PARTS)
def test_texts_name_their_subject(part: str, root: Path) -> None:
    """No docstring, comment, help text or error has a vague subject, such as "who"."""
    found = [
        f"{path.relative_to(root)}:{line} {words}"
        for path in _files(root, part)
        for line, words in _vague(path.read_text(encoding="utf-8"), path.suffix)
    ]

    assert [] == found


def test_texts_of_tests_name_their_subject(root: Path) -> None:
    """Docstrings and comments of the tests have no vague subject; their data may have any name."""
    found = [
        f"{path.relative_to(root)}:{line} {word}"
        for path in sorted((root / "tests").rglob("*.py"))
        for line, word in _vague_prose(path.read_text(encoding="utf-8"))
    ]

    assert [] == found


@pytest.mark.parametrize("part", PARTS)
def test_no_word_of_the_first_version_is_left(part: str, root: Path) -> None:
    """Names, comments and texts use the field's words."""
    found = [
        f"{path.relative_to(root)}:{number} {word}"
        for path in _files(root, part)
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        for word in OLD.findall(line)
    ]

    assert [] == found


@pytest.mark.parametrize("folder", ["src", "schema", "docs", "examples"])
def test_texts_are_english(folder: str, root: Path) -> None:
    """Phrases that a native reader stumbles over stand in no text of the code or the pages."""
    found = [
        f"{path.relative_to(root)}:{number} {words}"
        for path in sorted((root / folder).rglob("*"))
        if path.suffix in {".py", ".md", ".sql", ".html"}
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        for words in CLUMSY.findall(line)
    ]

    assert [] == found


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("# Nobody waits", ["Nobody"]),
        ('fail("somebody else")', ["somebody"]),
        ('"""Whoever waits."""', ["Whoever", "Whoever"]),
        ('"""What is done."""', ["What"]),
        ('def f():\n    """Do it. Who asks is told."""', ["Who"]),
        ('"""The process whose lease it is; what it wrote."""', []),
        ("nobody = 1", []),
    ],
)
def test_vague_words_are_found(text: str, expected: list[str]) -> None:
    """Words count in texts only, whole, and "what" only at the beginning of a sentence."""
    assert expected == [word for _, word in _vague(text, ".py")]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("pass  # nobody waits", ["nobody"]),
        ('def f():\n    """Whoever asks.\n\n    Somebody."""', ["Whoever", "Somebody"]),
        ('send("nobody", 1)', []),
        ("NOBODY = 1", []),
    ],
)
def test_vague_words_of_tests_are_found(text: str, expected: list[str]) -> None:
    """Comments and docstrings count, names and data do not."""
    assert sorted(expected) == sorted(word for _, word in _vague_prose(text))


def _files(root: Path, part: str) -> list[Path]:
    if part == "schema":
        return [path for kind in PLAIN for path in sorted((root / "schema").rglob(f"*{kind}"))]
    if (PACKAGE / f"{part}.py").exists():
        return [PACKAGE / f"{part}.py"]
    return sorted((PACKAGE / part).rglob("*.py"))


def _vague(text: str, kind: str) -> Iterator[tuple[int, str]]:
    if kind in PLAIN:
        for number, line in enumerate(text.splitlines(), 1):
            yield from ((number, word) for word in VAGUE.findall(line))
        return
    yield from _vague_tokens(text, TEXTS)
    for node in statements(parsed(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            yield from _subjects(node.lineno, str(node.value.value))


def _vague_prose(text: str) -> Iterator[tuple[int, str]]:
    """Yield line and word of each vague subject in comments and docstrings."""
    yield from _vague_tokens(text, {tokenize.COMMENT})
    for node in statements(parsed(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            for number, line in enumerate(str(node.value.value).splitlines(), node.lineno):
                yield from ((number, word) for word in VAGUE.findall(line))


def _vague_tokens(text: str, kinds: Collection[int]) -> Iterator[tuple[int, str]]:
    if VAGUE.search(text):
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type in kinds:
                yield from ((token.start[0], word) for word in VAGUE.findall(token.string))


def _subjects(first: int, text: str) -> Iterator[tuple[int, str]]:
    for number, line in enumerate(text.splitlines(), first):
        yield from ((number, word) for word in SUBJECT.findall(line.strip()))
