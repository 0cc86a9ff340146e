"""What may stand in no file of the repository: traces of one machine, and notes to oneself."""

import re
from collections.abc import Iterator
from pathlib import Path

KINDS = {
    "",
    ".cfg",
    ".css",
    ".html",
    ".ini",
    ".json",
    ".md",
    ".py",
    ".sh",
    ".sql",
    ".toml",
    ".txt",
    ".yaml",
    ".yml",
}
FOLDERS = ("src", "schema", "tests", "docs", "examples", ".ci")

# Written so that no pattern matches its own text: this file is searched too.
FORBIDDEN = {
    "a path of one machine": re.compile(r"/(?:root|work|opt|home/\w+|Users/\w+)/|\b[A-Z]:\\Users"),
    "a package index": re.compile(r"index-ur[l]|find-link[s]|files\.pythonhosted|pypi\.\w+/simple"),
    "an address of a private network": re.compile(
        r"\b(?:10\.\d+|192\.168|172\.(?:1[6-9]|2\d|3[01]))\.\d+\.\d+\b"
    ),
    "a note to oneself": re.compile(r"\b(?:TO[D]O|FIX[M]E|X[X]X|HA[C]K)\b"),
    "a merge left over": re.compile(r"^(?:<{7}|>{7}) ", re.MULTILINE),
}


def test_no_forbidden_words(root: Path) -> None:
    """A reader elsewhere finds nothing that is true on one machine only, and nothing half done."""
    found = [
        f"{path.relative_to(root)}: {what}: {match.group()!r}"
        for path in _texts(root)
        for what, pattern in FORBIDDEN.items()
        for match in pattern.finditer(path.read_text(encoding="utf-8"))
    ]

    assert [] == found


def test_the_search_sees_the_files(root: Path) -> None:
    """The search covers source, schema, tests and the front page."""
    seen = {path.relative_to(root).parts[0] for path in _texts(root)}

    assert {"src", "schema", "tests", "README.md", "pyproject.toml"} <= seen


def _texts(root: Path) -> Iterator[Path]:
    folders = (path for folder in FOLDERS for path in (root / folder).rglob("*"))
    for path in (*sorted(root.glob("*")), *folders):
        hidden = any(part.startswith((".", "__")) for part in path.relative_to(root).parts[1:-1])
        left = path.name == ".git" or path.name.startswith(".coverage")  # by a checkout, by a run
        if path.is_file() and path.suffix in KINDS and not left and not hidden:
            yield path
