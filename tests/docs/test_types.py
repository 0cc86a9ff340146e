"""
The code of the pages passes ``mypy --strict``: what a reader copies is what a project takes.

Misspelt options, filters, modes and events are errors of the type checker.
"""

import json
import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CACHE = Path(os.environ.get("MYPY_CACHE_DIR", ROOT / ".mypy_cache"), "pages")
"""Kept from run to run: what did not change is analysed once."""
WRONG = [Path(__file__).with_name(name) for name in ("wrong_calls.py", "wrong_tasks.py")]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
CODE = re.compile(
    r"^```python(?: (?P<file>\S+))?\n(?P<text>.*?)^```$|^<!-- setup\n(?P<setup>.*?)^-->$",
    re.MULTILINE | re.DOTALL,
)
UNTYPED = frozenset({"django", "flask_migrate"})
"""Packages without types of their own."""
NEEDS = re.compile(r"^<!-- needs (\w+) -->$", re.MULTILINE)


def modules(page: Path) -> dict[str, str]:
    """Return the code of a page by module: its blocks as one, each file that it names apart."""
    found, lines = dict[str, str](), list[str]()
    text = page.read_text(encoding="utf-8")
    needed = NEEDS.findall(text)
    if not UNTYPED.isdisjoint(needed) or not all(map(find_spec, needed)):
        return found
    for match in CODE.finditer(text):
        if match["file"]:
            found[match["file"].removesuffix(".py")] = match["text"]
            continue
        part = match["text"] or match["setup"]
        start = text.count("\n", 0, match.start()) + 1
        lines += [""] * (start - len(lines)) + part.splitlines()  # numbered as in the page
    return {"page": "\n".join(lines) + "\n", **found} if lines else found


def write(folder: Path) -> list[str]:
    """Write the modules of all pages, each page in a package of its own; return the packages."""
    packages = []
    for page in PAGES:
        found = modules(page)
        name = re.sub(r"\W", "_", page.relative_to(ROOT).with_suffix("").as_posix())
        beside = re.compile(rf"^import (?=({'|'.join(found)})$)", re.MULTILINE)
        for module, text in found.items():
            path = folder / name / (re.sub(r"\W", "_", module) + ".py")
            path.parent.mkdir(exist_ok=True)
            path.write_text(beside.sub("from . import ", text), encoding="utf-8")
        packages += [name] if found else []
    return packages


def test_the_code_of_the_pages_is_typed_and_wrong_calls_are_refused(tmp_path: Path) -> None:
    """
    One run over all pages and the files of wrong calls; an error names the page and its line.

    Each marked line of wrong calls gives its marked error, and no other line any.
    """
    packages = write(tmp_path)
    command = [
        sys.executable,
        "-m",
        "mypy",
        "--strict",
        "--config-file",
        "",
        f"--cache-dir={CACHE}",
        "--explicit-package-bases",
    ]
    paths = [path for name in packages for path in sorted((tmp_path / name).glob("*.py"))]

    clone = os.environ | {"MYPYPATH": str(ROOT)}  # a page may use what is in tests/proof
    ran = subprocess.run(
        [*command, *paths, *WRONG],
        cwd=tmp_path,
        env=clone,
        capture_output=True,
        text=True,
        check=False,
    )

    assert 0 == ran.returncode, ran.stdout + ran.stderr
    assert len(packages) > 30


@pytest.mark.skipif(find_spec("basedpyright") is None, reason="the extra [test] installs pyright")
def test_pyright_refuses_the_same_calls_of_tasks(tmp_path: Path) -> None:
    """It gives an error for each marked line of ``wrong_tasks.py``, and for no other line any."""
    config = {
        "typeCheckingMode": "strict",
        "reportUnnecessaryTypeIgnoreComment": "error",
        "include": [str(WRONG[1])],
    }
    project = tmp_path / "pyrightconfig.json"
    project.write_text(json.dumps(config), encoding="utf-8")
    python = f"--pythonpath={sys.executable}"

    ran = subprocess.run(
        [sys.executable, "-m", "basedpyright", python, "-p", project],
        capture_output=True,
        text=True,
        check=False,
    )

    assert 0 == ran.returncode, ran.stdout + ran.stderr
    assert "0 errors" in ran.stdout
