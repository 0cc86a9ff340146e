"""What is released: one version, true classifiers, and files that everyone can build again."""

import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from trove_classifiers import classifiers

LEFT_OUT = shutil.ignore_patterns("__pycache__", ".*cache", "*.pyc")
PARTS = ("src", "schema", "tests", "docs", "examples", ".ci")
DEVELOPERS = {"bench", "browser-test", "docs", "frameworks-test", "ship-test", "test"}
"""Extras of the project's own tests, benchmarks and pages."""
FILES = ("README.md", "CHANGELOG.md", "LICENSE", "pyproject.toml", ".gitignore")


@pytest.fixture(scope="module")
def project(request: pytest.FixtureRequest) -> dict[str, Any]:
    """Return the metadata of the project."""
    text = (request.config.rootpath / "pyproject.toml").read_text(encoding="utf-8")
    found: dict[str, Any] = tomllib.loads(text)["project"]
    return found


@pytest.fixture(scope="module")
def built(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> list[dict[str, Path]]:
    """Return the files of two builds, by their names: other folders, times and modes."""
    return [
        _build(request.config.rootpath, tmp_path_factory.mktemp(name), umask, touched)
        for name, umask, touched in (("one", 0o022, 1_700_000_000), ("two", 0o077, 1_800_000_000))
    ]


def _build(root: Path, folder: Path, umask: int, touched: int) -> dict[str, Path]:
    copy = folder / "copy"
    copy.mkdir()
    for name in PARTS:
        shutil.copytree(root / name, copy / name, ignore=LEFT_OUT)
    for name in FILES:
        shutil.copy(root / name, copy)
    for path in copy.rglob("*"):
        os.utime(path, (touched, touched))
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder / "dist")]
    subprocess.run([*command, str(copy)], check=True, capture_output=True, umask=umask)
    return {path.name: path for path in (folder / "dist").iterdir()}


def test_two_builds_are_the_same(built: list[dict[str, Path]]) -> None:
    """Wheel and source archive have the same bytes, wherever and whenever they are built."""
    one, two = (
        {name: sha256(path.read_bytes()).hexdigest() for name, path in each.items()}
        for each in built
    )

    assert [".gz", ".whl"] == sorted(Path(name).suffix for name in one)
    assert one == two


def test_the_wheel_holds_the_package_and_its_schema(
    built: list[dict[str, Path]], project: dict[str, Any]
) -> None:
    """And examples that commands copy; no test, no page and no script."""
    version = project["version"]
    wheel = zipfile.ZipFile(built[0][f"onceward-{version}-py3-none-any.whl"])
    names = wheel.namelist()
    wheel.close()

    assert {"onceward", f"onceward-{version}.dist-info"} == {
        name.partition("/")[0] for name in names
    }
    assert {"onceward/schema/0001_initial.sql", "onceward/py.typed"} <= set(names)
    assert [] == [name for name in names if "/tests/" in name or name.endswith(".db")]


def test_the_source_archive_can_be_tested_and_documented(
    built: list[dict[str, Path]], project: dict[str, Any]
) -> None:
    """It holds what a distributor runs: tests, the files of releases, the script of the site."""
    version = project["version"]
    with tarfile.open(built[0][f"onceward-{version}.tar.gz"]) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}

    assert {
        "docs/site/build.py",
        "schema/0001_initial.sql",
        "tests/release/0.1.0.tar.xz",
        "LICENSE",
    } <= names


def test_the_version_is_declared_once(root: Path, project: dict[str, Any]) -> None:
    """In pyproject.toml; everything else reads it from the installed package."""
    places = [path for part in ("src", "docs/site", ".ci") for path in (root / part).rglob("*")]
    texts = [path for path in places if path.is_file() and path.suffix in {".py", ".toml", ""}]

    assert [] == [
        path.relative_to(root).as_posix()
        for path in texts
        if f'"{project["version"]}"' in path.read_text(encoding="utf-8")
    ]
    assert len(texts) > 300


def test_classifiers_are_true(root: Path, project: dict[str, Any]) -> None:
    """Each is known to the index, and the versions of Python are those that are tested."""
    versions = {
        name.rpartition(" ")[2]
        for name in project["classifiers"]
        if re.fullmatch(r"Programming Language :: Python :: 3\.\d+", name)
    }
    others = re.search(r"^OTHERS=\((.+)\)$", (root / ".ci" / "run").read_text(), re.MULTILINE)

    assert set() == set(project["classifiers"]) - classifiers
    assert others is not None
    assert {project["requires-python"].removeprefix(">="), *others[1].split()} == versions


def test_each_extra_of_users_is_installed_alone(root: Path) -> None:
    """The checks of a release try each extra, but Spark's, which has an environment of its own."""
    script = (root / ".ci" / "release").read_text(encoding="utf-8")
    text = (root / "pyproject.toml").read_text(encoding="utf-8")
    declared = set(tomllib.loads(text)["project"]["optional-dependencies"])
    tried, versions = (
        re.findall(rf"^{name}=\((.+)\)$", script, re.MULTILINE) for name in ("EXTRAS", "VERSIONS")
    )

    assert declared - DEVELOPERS - {"spark"} == set(tried[0].split())
    assert [f'"Programming Language :: Python :: {each}"' for each in versions[0].split()] == (
        re.findall(r'"Programming Language :: Python :: 3\.\d+"', text)
    )
