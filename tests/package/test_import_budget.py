"""A program loads what it uses: ``import onceward`` nothing, a postbox what any postbox needs."""

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest
from tests.syntax import statements

from onceward import Postbox

HEAVY = (
    "asyncio",
    "cyclopts",
    "email",
    "hypothesis",
    "httpx",
    "pyspark",
    "pytest",
    "rich",
    "sqlite3",
    "structlog",
    "tempfile",
    "tenacity",
    "zipfile",
)
MODULES = 132
"""Most modules of ours that a postbox may load, with what each feature gives."""
COMMAND_MODULES = 230
"""Most modules that a command may load; 190 are loaded by ``onceward stats FILE``."""
HELP_MODULES = 420
"""Most modules that a page of help may load: it is drawn with rich."""

LOADED = "import json, sys; from onceward import Postbox; print(json.dumps(sorted(sys.modules)))"
NAMES = "import sys, onceward; print(*sorted(n for n in sys.modules if n.startswith('onceward')))"
UNBUILT = """
import onceward, onceward.message.frame, onceward.types
models = onceward.Settings, onceward.Msg, onceward.types.ChannelConfig, onceward.message.frame.Frame
print(*(kind.__name__ for kind in models if kind.__pydantic_complete__))
"""


@pytest.fixture(scope="module")
def modules_loaded() -> list[str]:
    """Return the modules a fresh interpreter has loaded after it imported ``Postbox``."""
    names: list[str] = json.loads(_printed(LOADED))
    return names


@pytest.fixture(scope="module")
def loaded(modules_loaded: list[str]) -> set[str]:
    """Return the top-level ones of them."""
    return {name.partition(".")[0] for name in modules_loaded}


def _printed(code: str) -> str:
    command = [sys.executable, "-c", code]
    return subprocess.run(command, capture_output=True, check=True, text=True).stdout


@pytest.mark.parametrize("library", HEAVY)
def test_import_leaves_heavy_libraries_alone(library: str, loaded: set[str]) -> None:
    """A program that only sends mail does not pay for screens, test tools or clusters."""
    assert library not in loaded


def test_import_is_really_observed(loaded: set[str]) -> None:
    """The list is the one of a process that did import the package and its store."""
    assert {"onceward", "apsw", "pydantic"} <= loaded


def test_the_package_loads_no_module_before_a_name_of_it_is_used() -> None:
    """A command, or an add-on, that uses a single name pays for no other."""
    assert ["onceward"] == _printed(NAMES).split()


def test_import_loads_no_more_modules_than_it_did(modules_loaded: list[str]) -> None:
    """A module that only some programs need is imported where they do."""
    ours = [name for name in modules_loaded if name.partition(".")[0] == "onceward"]

    assert len(ours) <= MODULES


def test_import_builds_no_model() -> None:
    """Pydantic's validators are built where the first value is validated."""
    assert [] == _printed(UNBUILT).split()


@pytest.mark.parametrize(
    ("tokens", "most"),
    [
        (["--help"], HELP_MODULES),
        (["stats", "--help"], HELP_MODULES),
        (["stats", "FILE"], COMMAND_MODULES),
    ],
)
def test_a_command_loads_few_modules(tokens: list[str], most: int, tmp_path: Path) -> None:
    """The parser, the command and what they need: one that reads a file opens no postbox."""
    with Postbox(tmp_path / "shop.db", agent="shop", start=False) as box:
        words = [str(box.file.path) if word == "FILE" else word for word in tokens]
    code = f"import sys; from onceward.ops.cli import main; main({words!r}); print(*sys.modules)"
    loaded = set(_printed(code).splitlines()[-1].split())

    unwanted = {"asyncio", "httpx", "pydantic", "pyspark", "sqlite3", "structlog", "tenacity"}
    ours = {"onceward.api", "onceward.core", "onceward.features", "onceward.transports"}

    assert len(loaded) <= most
    assert set() == loaded & (unwanted | ours)
    assert "FILE" in tokens or "importlib.metadata" not in loaded


def test_logging_is_used_in_one_place(trees: dict[str, ast.Module]) -> None:
    """
    Every module writes through ``onceward.message.log``, which imports structlog late.

    Only a command configures where its lines go.
    """
    users = {
        name
        for name, tree in trees.items()
        for node in statements(tree)
        if isinstance(node, ast.Import)
        and {"logging", "structlog"} & {alias.name.partition(".")[0] for alias in node.names}
    }

    assert {"message.log", "ops.cli.logs"} == users
