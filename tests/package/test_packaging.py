"""What an installed package offers to other packages, and what the release notes say about it."""

import re
import tomllib
from importlib.metadata import entry_points, version
from pathlib import Path

import yaml


def test_the_pytest_plugin_is_installed_and_loads() -> None:
    """The installed package offers its fixtures; built-in transports need no entry point."""
    [plugin] = entry_points(group="pytest11", name="onceward")

    assert plugin.load()
    assert [] == [
        point.name
        for point in entry_points(group="onceward.transports")
        if point.value.startswith("onceward.")
    ]


def test_version_is_installed_and_in_the_changelog(root: Path) -> None:
    """Installed is what is declared, and the changelog speaks of it, released or not yet."""
    declared = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"][
        "version"
    ]
    changelog = (root / "CHANGELOG.md").read_text(encoding="utf-8")
    newest = changelog.partition("\n## [")[2].partition("\n## [")[0]

    assert declared == version("onceward")
    assert newest.startswith((f"{declared}]", "Unreleased]"))
    assert declared in newest


def test_changelog_names_every_schema_step(root: Path) -> None:
    """The changelog names every schema step that an upgrade runs."""
    changelog = (root / "CHANGELOG.md").read_text(encoding="utf-8")
    steps = [path.name.partition("_")[0] for path in sorted((root / "schema").glob("[0-9]*.sql"))]

    assert steps
    assert [] == [step for step in steps if step not in changelog]


def test_issue_forms_can_be_shown(root: Path) -> None:
    """Each form has a name, a description and fields with labels, and its links lead somewhere."""
    forms = {
        path.name: yaml.safe_load(path.read_text(encoding="utf-8"))
        for path in (root / ".github" / "ISSUE_TEMPLATE").glob("*.yml")
    }
    config = forms.pop("config.yml")
    pages = [
        found[1]
        for link in config["contact_links"]
        if (found := re.search(r"/blob/main/(.+)$", link["url"]))
    ]

    assert {"bug.yml", "idea.yml"} == set(forms)
    assert [] == [
        name for name, form in forms.items() if not (form["name"] and form["description"])
    ]
    assert [] == [
        name
        for name, form in forms.items()
        for field in form["body"]
        if field["type"] != "markdown" and not field["attributes"]["label"]
    ]
    assert [] == [page for page in pages if not (root / page).is_file()]
