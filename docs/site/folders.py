"""Read the layers of pyproject.toml and what each folder says of itself; write them as a table."""

from __future__ import annotations

import ast
import re
import tomllib
from dataclasses import dataclass
from pathlib import Path

from pieces import NOTE, code, table

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src" / "onceward"
PAGE = ROOT / "docs" / "explanation" / "architecture.md"

STAGES = ("core/send", "core/deliver", "core/accept", "core/handle", "core/end", "core/rows")
"""Folders of the core in the order of a message, which is that of the page and its picture."""
IMPORTS = re.compile(r"^Imports ([^;]+?)(?:;.+)?\.$", re.MULTILINE)
BLOCK = re.compile(r"(<!-- layers -->\n).*?(?=<!-- end of layers -->)", re.DOTALL)


@dataclass(frozen=True)
class Folder:
    """One folder or module of the package, and what its docstring says."""

    name: str
    purpose: str
    imports: str


def layers() -> list[list[str]]:
    """Return the names of each layer of the contract, the highest layer first."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    contracts = project["tool"]["importlinter"]["contracts"]
    contract = next(each for each in contracts if each["name"].startswith("Each layer"))
    return [
        [name.strip().rpartition(".")[2] for name in line.split("|")] for line in contract["layers"]
    ]


def below(name: str) -> list[str]:
    """Return the folders in a folder of the package, by their paths."""
    paths = (SOURCE / name).glob("*/__init__.py")
    found = sorted(path.parent.relative_to(SOURCE).as_posix() for path in paths)
    return sorted(found, key=lambda each: (*STAGES, each).index(each))


def folder(name: str) -> Folder:
    """Return what a folder, or a module beside the folders, says of itself."""
    path = SOURCE / name / "__init__.py"
    source = path if path.is_file() else SOURCE / f"{name}.py"
    said = ast.get_docstring(ast.parse(source.read_text(encoding="utf-8"))) or ""
    found = IMPORTS.search(said)
    purpose = said.partition("\n")[0].replace("``", "`")
    return Folder(name, purpose, found[1] if found else "")


def page() -> str:
    """Return the page of the architecture with its table as the source has it now."""
    found, times = BLOCK.subn(
        lambda match: f"{match[1]}{NOTE}\n\n{_table()}\n\n", PAGE.read_text(encoding="utf-8")
    )
    assert times == 1, f"{PAGE} has {times} places for the table"  # noqa: S101 - a script
    return found


def _table() -> str:
    rows = [
        _row(name, inner)
        for line in layers()
        for name in line
        for inner in [name, *_all_below(name)]
    ]
    return table(("folder", "what it is for", "may import"), *rows)


def _row(layer: str, name: str) -> tuple[str, str, str]:
    found = folder(name)
    shown = f"**{code(name)}**" if name == layer else code(name)
    return shown, found.purpose, found.imports


def _all_below(name: str) -> list[str]:
    """Return the folders in a folder, and the modules that stand beside the stages of the core."""
    found = [each for inner in below(name) for each in (inner, *_all_below(inner))]
    modules = sorted((SOURCE / name).glob("[a-z]*.py")) if name == "core" else []
    return [*found, *(f"{name}/{path.stem}" for path in modules)]
