"""What an installed package offers to other packages, and what the release notes say about it."""

import tomllib
from importlib.metadata import entry_points, version
from pathlib import Path

import pytest

ENTRY_POINTS = [
    ("onceward.transports", "file"),
    ("onceward.transports", "function"),
    ("onceward.transports", "memory"),
    ("pytest11", "onceward"),
]


@pytest.mark.parametrize(("group", "name"), ENTRY_POINTS)
def test_entry_points_are_installed_and_load(group: str, name: str) -> None:
    """The groups that strangers extend hold our own members, and each leads to something that exists."""
    [point] = entry_points(group=group, name=name)

    assert point.load()


def test_version_is_installed_and_in_the_changelog(root: Path) -> None:
    """What is installed, what is declared and what the changelog describes first are one version."""
    declared = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    newest = (root / "CHANGELOG.md").read_text(encoding="utf-8").partition("\n## [")[2].partition("]")[0]

    assert (declared, declared) == (version("onceward"), newest)


def test_changelog_names_every_schema_step(root: Path) -> None:
    """Whoever upgrades reads which steps their files will go through."""
    changelog = (root / "CHANGELOG.md").read_text(encoding="utf-8")
    steps = [path.name.partition("_")[0] for path in sorted((root / "schema").glob("[0-9]*.sql"))]

    assert steps
    assert [] == [step for step in steps if step not in changelog]
