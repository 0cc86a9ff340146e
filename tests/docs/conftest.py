"""The built site, for the tests that read it and those that look at it in a browser."""

import fcntl
import importlib
import importlib.util
import json
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


@pytest.fixture(scope="session")
def reference(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> dict[str, str]:
    """Return the reference pages of the site by path, which one process writes for the run."""
    base = tmp_path_factory.getbasetemp()
    folder = base.parent if hasattr(request.config, "workerinput") else base
    kept = folder / "reference.json"
    with (folder / "reference.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not kept.exists():
            kept.write_text(json.dumps(_reference()), encoding="utf-8")
    pages: dict[str, str] = json.loads(kept.read_text(encoding="utf-8"))
    return pages


def _reference() -> dict[str, str]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "docs" / "site"))
        pages: dict[str, str] = importlib.import_module("generate").reference()
    return pages
