"""Environment and project: the section is found from below; environment and arguments win."""

from pathlib import Path

import pytest

from onceward import Postbox, Settings
from onceward.errors import InvalidArgument
from onceward.file.environment import (
    disabled_by_environment,
    env_or_project,
    load_settings,
    project_section,
)

PROJECT = '[tool.onceward]\nhome = "mail"\nagent = "ann"\nsession = "s1"\nmax_pending = 7\n'


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder of a project, with the process somewhere below it."""
    (tmp_path / "pyproject.toml").write_text(PROJECT, encoding="utf-8")
    below = tmp_path / "src" / "deep"
    below.mkdir(parents=True)
    (tmp_path / "src" / "pyproject.toml").write_text(
        "[tool.other]\nagent = 'no'\n", encoding="utf-8"
    )
    monkeypatch.chdir(below)
    for name in ("HOME", "AGENT", "SESSION", "DB", "MAX_PENDING"):
        monkeypatch.delenv(f"ONCEWARD_{name}", raising=False)
    return tmp_path


def test_the_nearest_section_counts(project: Path) -> None:
    """
    A pyproject.toml without the section is passed over.

    Paths are relative to the file that names them.
    """
    assert (str(project / "mail"), "ann", "s1", None) == tuple(
        env_or_project(word) for word in ("home", "agent", "session", "db")
    )


def test_precedence(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Argument, then environment, then project, then default."""
    assert project.is_dir()
    assert 7 == load_settings(None, {}).max_pending
    with Postbox(project / "a.db", agent="a", start=False) as box:
        assert (7, 30.0) == (box._settings.max_pending, box._settings.lease)
    monkeypatch.setenv("ONCEWARD_MAX_PENDING", "8")
    monkeypatch.setenv("ONCEWARD_AGENT", "bob")
    assert (8, "bob") == (load_settings(None, {}).max_pending, env_or_project("agent"))
    assert 9 == load_settings(Settings(max_pending=9), {}).max_pending
    assert 10 == load_settings(Settings(max_pending=9), {"max_pending": 10}).max_pending


def test_a_change_is_seen(project: Path) -> None:
    """The section is remembered until its file changes."""
    assert 7 == project_section()["max_pending"]
    (project / "pyproject.toml").write_text("[tool.onceward]\nmax_pending = 70\n", encoding="utf-8")

    assert 70 == project_section()["max_pending"]


@pytest.mark.parametrize(
    ("text", "said_of_it"),
    [("[tool.onceward]\nx = ", "pyproject.toml"), ("[tool.onceward]\nlaese = 3", "laese")],
)
def test_a_mistake_is_told(project: Path, text: str, said_of_it: str) -> None:
    """A file that is not TOML, and a word that means nothing, are errors that name it."""
    (project / "pyproject.toml").write_text(text, encoding="utf-8")

    with pytest.raises(InvalidArgument, match=said_of_it):
        load_settings(None, {})


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("1", True),
        ("TRUE", True),
        (" on ", True),
        ("yes", True),
        ("0", False),
        ("", False),
        ("off", False),
    ],
)
def test_the_switch_in_the_environment(value: str, expected: bool) -> None:
    """ONCEWARD_DISABLED knows the usual words for yes; everything else is no."""
    assert expected == disabled_by_environment({"ONCEWARD_DISABLED": value})
    assert not disabled_by_environment({})


def test_the_switch_is_read_from_the_present_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each call sees what ``os.environ`` contains now."""
    monkeypatch.delenv("ONCEWARD_DISABLED", raising=False)
    seen = [disabled_by_environment()]
    for value in ("1", "off"):
        monkeypatch.setenv("ONCEWARD_DISABLED", value)
        seen.append(disabled_by_environment())
    monkeypatch.delenv("ONCEWARD_DISABLED")

    assert [False, True, False, False] == [*seen, disabled_by_environment()]
