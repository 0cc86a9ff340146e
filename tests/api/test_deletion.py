"""A feature is taken out by deleting its folder and its lines: everything else works without it."""

import importlib
import os
import re
import shutil
import subprocess
import sys
from importlib.util import cache_from_source
from pathlib import Path

import apsw
import pytest

import onceward
from onceward.file import migrations

SITE = Path(__file__).parents[2] / "docs" / "site"
PACKAGE = Path(str(onceward.__file__)).parent
FEATURES = sorted(each.parent.name for each in PACKAGE.glob("features/*/__init__.py"))
LISTS = {"features.py", "parts.py"}
"""Modules of ``onceward.api`` with a line for each feature."""
PROGRAM = Path(__file__).with_name("small_program.py")


def _without(feature: str, source: Path) -> str:
    """Return a list of features without the lines that name one."""
    named = re.compile(rf'"{feature}",|onceward\.features\.{feature}\.')
    lines = source.read_text(encoding="utf-8").splitlines(keepends=True)
    return "".join(line for line in lines if not named.search(line))


def _link(folder: Path, names: set[str]) -> None:
    for each in names:
        (folder / each).symlink_to(PACKAGE / folder.name / each)


def _tree_without(feature: str, folder: Path) -> Path:
    """Make a tree of links to the package's files, without a feature; return where to import it."""
    top = folder / "tree" / "onceward"
    top.mkdir(parents=True)
    for each in PACKAGE.iterdir():
        if each.name in {"api", "features", "file"}:
            (top / each.name).mkdir()
        elif each.name != "__pycache__":
            (top / each.name).symlink_to(each)
    _lay_schema(top)
    _link(top / "features", {each.name for each in PACKAGE.glob("features/[!_]*")} - {feature})
    _link(top / "features", {"__init__.py"})
    _link(top / "file", {each.name for each in PACKAGE.glob("file/*.py")} - {"migrations.py"})
    _link(top / "api", {each.name for each in PACKAGE.glob("api/*.*")} - LISTS)
    for name in LISTS:
        entries = _without(feature, PACKAGE / "api" / name)
        (top / "api" / name).write_text(entries, encoding="utf-8")
    (top / "schema" / "0001_initial.sql").write_text(_put_together(top), encoding="utf-8")
    return top.parent


def _lay_schema(top: Path) -> None:
    """Copy the schema, and the module that looks for it beside itself."""
    shutil.copytree(migrations.folder(), top / "schema")
    shutil.copy(PACKAGE / "file" / "migrations.py", top / "file")


def _put_together(package: Path) -> str:
    """Return the schema of the features that are in a folder of the package."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(SITE))
        text: str = importlib.import_module("tables").initial(package)
    return text


def _created(sql: str) -> set[str]:
    return set(migrations.CREATES.findall(sql))


def _objects(file: Path) -> set[str]:
    """Return the names of the tables, views, indexes and triggers of a file."""
    con = apsw.Connection(str(file), apsw.SQLITE_OPEN_READONLY)
    names = con.execute("SELECT name FROM sqlite_schema WHERE name GLOB '*onceward_*'").get
    con.close()
    return set(names)


def _share_bytecode(tree: Path) -> None:
    """Let a tree of links load the bytecode of the package where that is kept beside no source."""
    for each in tree.rglob("*") if sys.pycache_prefix else ():
        if each.is_symlink() and (each.is_dir() or each.suffix == ".py"):
            kept, own = (_kept(path) for path in (each.resolve(), each))
            own.parent.mkdir(parents=True, exist_ok=True)
            own.symlink_to(kept)


def _kept(path: Path) -> Path:
    return Path(cache_from_source(path) if path.suffix else f"{sys.pycache_prefix}{path}")


@pytest.mark.broken("its tables are not there")
@pytest.mark.parametrize("feature", FEATURES)
def test_all_else_works_without_a_feature(feature: str, tmp_path: Path) -> None:
    """
    Messages are sent, handled and answered, files maintained and the command's help drawn.

    The postboxes are plain and asynchronous ones; the interpreter is a fresh one. New files have
    all tables, views, indexes and triggers but those of the feature.
    """
    tree = _tree_without(feature, tmp_path)
    _share_bytecode(tree)
    env = {**os.environ, "PYTHONPATH": str(tree)}

    ran = subprocess.run(
        [sys.executable, str(PROGRAM), str(tmp_path), feature],
        capture_output=True,
        check=False,
        cwd=tmp_path,
        env=env,
        text=True,
        timeout=120,
    )

    assert 0 == ran.returncode, ran.stderr
    assert "Usage" in ran.stdout
    own = PACKAGE / "features" / feature / f"{feature}.sql"
    of_feature = _created(own.read_text(encoding="utf-8")) if own.exists() else set()
    every = _created(migrations.migrations()[0].sql)
    assert every - of_feature == _objects(tmp_path / "adder.db") & every


def test_the_schema_is_made_of_the_files_of_core_and_features() -> None:
    """Each object is created in one of them, and its file is that of its feature."""
    files = [PACKAGE / "core" / "core.sql", PACKAGE / "api" / "inbox.sql"]
    files += [PACKAGE / "features" / each / f"{each}.sql" for each in FEATURES]
    created = [
        name
        for each in files
        if each.exists()
        for name in migrations.CREATES.findall(each.read_text(encoding="utf-8"))
    ]

    assert len(created) == len(set(created))
    assert _created(migrations.migrations()[0].sql) == set(created)
