"""The built site, for the tests that read it and those that look at it in a browser."""

import importlib.util
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Site:
    """A built site: the folder with its versions, that of this version, and what was printed."""

    folder: Path
    place: Path
    printed: str
    code: int


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Site:
    """Build the site as its reader does."""
    if importlib.util.find_spec("zensical") is None:
        pytest.skip("pip install -e '.[docs]' builds the site")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, str(ROOT / "docs" / "site" / "build.py"), "--out", str(folder)]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    place = next(iter(folder.glob("*/index.html")), folder / "none").parent
    return Site(folder, place, ran.stdout + ran.stderr, ran.returncode)
