"""What the house tests look at: the source files as they stand, parsed once."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "onceward"


@pytest.fixture(scope="session")
def root() -> Path:
    """Return the repository's top folder."""
    return ROOT


@pytest.fixture(scope="session")
def rooms() -> dict[str, Path]:
    """Return every source file by its room: ``boxes.outbox``, ``transports.file``, and ``cli`` for the folder's own file."""
    return {_room(path): path for path in sorted(PACKAGE.rglob("*.py"))}


@pytest.fixture(scope="session")
def trees(rooms: dict[str, Path]) -> dict[str, ast.Module]:
    """Return the syntax tree of every room."""
    return {
        room: ast.parse(path.read_text(encoding="utf-8"), filename=str(path))
        for room, path in rooms.items()
    }


def _room(path: Path) -> str:
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(parts) if parts[-1] != "__init__" else ".".join(parts[:-1]) or "__init__"
