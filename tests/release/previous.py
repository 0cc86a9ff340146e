"""
Bring the release before this tree into an environment of its own.

It is the wheel of the last tag. Before the first tag it is this tree itself under a lower version,
so that the tests which hold two releases side by side run from the first one on.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import sysconfig
import venv
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
STAND_IN: Final = "0.0.9"
"""The version under which this tree stands in for a release before the first one."""
WHEEL: Final = ("src", "schema", "examples", "README.md", "LICENSE", "pyproject.toml")
"""What a wheel is built from."""
VERSION: Final = re.compile(r'^version = "(.+)"$', re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Release:
    """An installed release: its version, and its own interpreter."""

    version: str
    python: Path
    is_stand_in: bool


def last_tag() -> str | None:
    """Return the newest tag of a release that this tree comes from; None if there is none."""
    if not (ROOT / ".git").exists():  # a source archive
        return None
    named = subprocess.run(
        ["git", "describe", "--tags", "--abbrev=0", "--match", "v[0-9]*", "HEAD"],  # noqa: S607
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    return named.stdout.strip() or None


def install(folder: Path, *, tag: str | None) -> Release:
    """Build the wheel of a tag, or that of the stand-in, and install it under *folder*."""
    source = folder / "source"
    if tag is None:
        copy_tree(source)
    else:
        unpack_tag(tag, source)
    declared = VERSION.search((source / "pyproject.toml").read_text(encoding="utf-8"))
    assert declared is not None
    return Release(declared[1], environment(folder / "venv", wheel(source)), tag is None)


def copy_tree(source: Path) -> None:
    """Copy what the wheel is built from, under the version of the stand-in."""
    for name in WHEEL:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("*.pyc"))
        else:
            shutil.copy(ROOT / name, source / name)
    project = source / "pyproject.toml"
    text = VERSION.sub(f'version = "{STAND_IN}"', project.read_text(encoding="utf-8"), count=1)
    project.write_text(text, encoding="utf-8")


def unpack_tag(tag: str, source: Path) -> None:
    """Unpack the tree of a tag."""
    packed = source.with_suffix(".zip")
    command = ["git", "archive", "--format=zip", f"--output={packed}", tag]
    subprocess.run(command, cwd=ROOT, check=True)
    shutil.unpack_archive(packed, source)


def wheel(source: Path) -> Path:
    """Build the wheel of a tree."""
    out = source.parent / "dist"
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(out)]
    subprocess.run([*command, str(source)], check=True, capture_output=True)
    [built] = out.glob("*.whl")
    return built


def environment(folder: Path, built: Path) -> Path:
    """
    Return the interpreter of a new environment with a wheel, beside the dependencies of the tests.

    A wheel is unpacked, as the specification of wheels has it: no index is asked.
    """
    venv.create(folder, with_pip=False, symlinks=True)
    python = folder / "bin" / "python"
    asked = "import sysconfig; print(sysconfig.get_path('purelib'))"
    found = subprocess.run([python, "-c", asked], check=True, capture_output=True, text=True)
    packages = Path(found.stdout.strip())
    shutil.unpack_archive(built, packages, "zip")
    paths = dict.fromkeys((sysconfig.get_path("purelib"), sysconfig.get_path("platlib")))
    (packages / "dependencies.pth").write_text("\n".join(paths), encoding="utf-8")
    return python
