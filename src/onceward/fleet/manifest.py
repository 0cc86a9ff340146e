"""Keep a job's inputs, rules and progress in one JSON file beside its results, written last."""

from __future__ import annotations

import fcntl
import json
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

from onceward.errors import OncewardError
from onceward.fleet.durable import replace_file
from onceward.fleet.files import find, of_each
from onceward.fleet.verdicts import Rules

NAME: Final = "manifest.json"
PLAN: Final = "work/plan.json"
"""Name of the file that exists while a job runs, and after an interruption."""


LOCK: Final = ".lock"


class OutputTaken(OncewardError):
    """The folder has files that no onceward job wrote: give a new folder."""


class OutputBusy(OncewardError):
    """Another process works on this folder: wait until it has ended."""


@contextmanager
def alone(out: Path, job: str) -> Iterator[Path]:
    """
    Lock the folder for one job while the block runs; the lock ends with its process.

    Raises:
        OutputTaken: the folder is not empty, and not this job's.
        OutputBusy: another process works on it.

    """
    out = out.absolute()  # Spark's own process may run in another folder
    refuse(out, job)
    out.mkdir(parents=True, exist_ok=True)
    with (out / LOCK).open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise OutputBusy(f"another process works on {out}: wait until it has ended") from error
        yield out


@contextmanager
def folder(out: str | Path | None) -> Iterator[Path]:
    """Yield the folder *out*, or a temporary one that is removed behind the block."""
    if out is not None:
        yield Path(out)
        return
    with tempfile.TemporaryDirectory(prefix="onceward-fleet-") as made:
        yield Path(made)


def plan(
    paths: Sequence[str], job: str, rules: Rules | None = None, *, resume: bool = False
) -> dict[str, Any]:
    """
    Return the files to read, with size and fingerprint, to detect a later change.

    Raises:
        NamesNoFile: a path names no file; unless to *resume*, as the files may have been read.

    """
    files = [
        {"path": found.path, "bytes": found.size, "mark": list(found.mark)}
        for found in (find(paths) if resume else of_each(paths))
    ]
    told = {} if rules is None else {"rules": asdict(rules)}
    return {
        "job": job,
        "onceward": version("onceward"),
        "paths": list(paths),
        "files": files,
    } | told


def prepare(out: Path, planned: dict[str, Any], *, resume: bool) -> dict[str, Any]:
    """Return the plan to follow once it is written; with *resume* that of an interrupted run."""
    before = read(out / PLAN)
    if resume and before is not None and same(before, planned):
        return before
    (out / NAME).unlink(missing_ok=True)
    shutil.rmtree(out / "work", ignore_errors=True)
    write(out / PLAN, planned)
    return planned


def finish(out: Path, done: dict[str, Any]) -> None:
    """Write the manifest that marks the results as complete, and remove work files."""
    write(out / NAME, done)
    shutil.rmtree(out / "work", ignore_errors=True)


def refuse(out: Path, job: str) -> None:
    """
    Refuse to write among files of other jobs.

    Raises:
        OutputTaken: the folder is not empty, and not this job's.

    """
    if any(
        found is not None and found["job"] == job for found in (read(out / NAME), read(out / PLAN))
    ):
        return
    if out.exists() and any(not path.name.startswith(".") for path in out.iterdir()):
        raise OutputTaken(f"{out} has files that no fleet {job} wrote: give a new folder")


def same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Return whether two plans are of one job, on the same paths by the same rules."""

    def essence(planned: dict[str, Any]) -> list[Any]:
        rules = planned.get("rules", {})
        return [
            planned["job"],
            planned["onceward"],
            planned["paths"],
            planned.get("log"),
            planned.get("retired"),
            rules.get("grace"),
            rules.get("late_after"),
        ]

    return essence(one) == essence(other)


def rules(planned: dict[str, Any]) -> Rules:
    """Return the rules of a plan."""
    return Rules(**planned["rules"])


def read(path: Path) -> dict[str, Any] | None:
    """Return a manifest, or None."""
    try:
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return None
    return found if "job" in found else None


def write(path: Path, content: dict[str, Any]) -> None:
    """Write a manifest atomically."""
    replace_file(path, json.dumps(content, indent=1).encode())
