"""The source files as they stand, parsed once for all checks of the package."""

import ast
from pathlib import Path

import pytest
from tests.syntax import parsed

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "onceward"


@pytest.fixture(scope="session")
def root() -> Path:
    """Return the repository's top folder."""
    return ROOT


@pytest.fixture(scope="session")
def modules() -> dict[str, Path]:
    """Return each source file by its module: ``store.outbox``, and ``cli`` for a folder's own."""
    return {_module(path): path for path in sorted(PACKAGE.rglob("*.py"))}


@pytest.fixture(scope="session")
def trees(modules: dict[str, Path]) -> dict[str, ast.Module]:
    """Return the syntax tree of each module."""
    return {module: parsed(path) for module, path in modules.items()}


def _module(path: Path) -> str:
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(parts) if parts[-1] != "__init__" else ".".join(parts[:-1]) or "__init__"
