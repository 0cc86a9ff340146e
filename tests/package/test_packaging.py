"""What an installed package offers to other packages, and what the release notes say about it."""

import tomllib
from importlib.metadata import entry_points, version
from pathlib import Path


def test_the_pytest_plugin_is_installed_and_loads() -> None:
    """Whoever installs the package has its fixtures; transports need no entry point, the postbox wires its own."""
    [plugin] = entry_points(group="pytest11", name="onceward")

    assert plugin.load()
    assert [] == [
        point.name
        for point in entry_points(group="onceward.transports")
        if point.value.startswith("onceward.")
    ]


def test_version_is_installed_and_in_the_changelog(root: Path) -> None:
    """What is installed, what is declared and what the changelog describes first are one version."""
    declared = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"][
        "version"
    ]
    newest = (
        (root / "CHANGELOG.md").read_text(encoding="utf-8").partition("\n## [")[2].partition("]")[0]
    )

    assert (declared, declared) == (version("onceward"), newest)


def test_changelog_names_every_schema_step(root: Path) -> None:
    """Whoever upgrades reads which steps their files will go through."""
    changelog = (root / "CHANGELOG.md").read_text(encoding="utf-8")
    steps = [path.name.partition("_")[0] for path in sorted((root / "schema").glob("[0-9]*.sql"))]

    assert steps
    assert [] == [step for step in steps if step not in changelog]
