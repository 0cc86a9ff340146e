"""``import onceward`` stays light: what only some programs need is loaded where it is used."""

import ast
import json
import subprocess
import sys

import pytest

HEAVY = (
    "cyclopts",
    "hypothesis",
    "httpx",
    "pyspark",
    "pytest",
    "rich",
    "sqlite3",
    "structlog",
    "tenacity",
)

LOADED = (
    "import json, sys, onceward; "
    "print(json.dumps(sorted({name.partition('.')[0] for name in sys.modules})))"
)


@pytest.fixture(scope="module")
def loaded() -> list[str]:
    """Return the top-level modules a fresh interpreter has loaded after ``import onceward``."""
    answer = subprocess.run(
        [sys.executable, "-c", LOADED], capture_output=True, check=True, text=True
    )
    names: list[str] = json.loads(answer.stdout)
    return names


@pytest.mark.parametrize("library", HEAVY)
def test_import_leaves_heavy_libraries_alone(library: str, loaded: list[str]) -> None:
    """A program that only sends mail does not pay for screens, test tools or clusters."""
    assert library not in loaded


def test_import_is_really_observed(loaded: list[str]) -> None:
    """The list is the one of a process that did import the package and its store."""
    assert {"onceward", "apsw", "pydantic"} <= set(loaded)


def test_logging_is_used_in_one_place(trees: dict[str, ast.Module]) -> None:
    """Every other module writes through ``onceward.model.log``, which imports structlog late."""
    users = {
        name
        for name, tree in trees.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Import)
        and {"logging", "structlog"} & {alias.name.partition(".")[0] for alias in node.names}
    }

    assert {"model.log"} == users
