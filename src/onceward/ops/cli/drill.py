"""Restore the newest copy of an agent's file into a scratch folder, and examine it."""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from shutil import copyfile, rmtree
from tempfile import TemporaryDirectory
from typing import Any, Final

from onceward.errors import OncewardError
from onceward.file.backup import copy_file, read_at_rest, read_info
from onceward.file.environment import load_settings
from onceward.file.file_checks import is_dead, is_replicated, process_id
from onceward.file.last_seen import LastSeen
from onceward.message.clock import Millis, SystemClock
from onceward.ops.cli import litestream
from onceward.ops.cli.command import emit, picked
from onceward.ops.cli.copies import info_of, remember, same_agent, since
from onceward.ops.cli.exit_codes import DONE, FAILED, NothingThere, Usage
from onceward.ops.cli.output import note
from onceward.ops.cli.readonly import views
from onceward.ops.cli.target import Answer, open_box
from onceward.ops.views.overview import stats

COLUMNS: Final = ("source", "agent", "at", "behind", "sent", "received", "offenders")
HELD: Final = ("pending", "inbox_pending", "inbox_processing", "dead_letters")
SIDE: Final = ("-wal", "-shm", "-run", "-journal")
SCRATCH: Final = "onceward-drill-"
SECOND: Final = 1000
LITESTREAM: Final = ("litestream", "restore", "-o")


class NotRestored(OncewardError):
    """The copy cannot be restored: correct its name or its credentials, or make a new one."""


def rehearse(path: Path | None, source: str | None, answer: Answer) -> int:
    """Restore and examine the newest copy of the file at *path*; return the exit code."""
    began, present = SystemClock().now(), info_of(path)
    with _scratch() as scratch:
        copy = scratch / "copy.db"
        agent = present.agent if present else path.stem if path else None
        origin = _restore(path, source, copy, agent)
        with _naming(origin, copy):
            info = read_info(copy)
            same_agent(path, info)
            LastSeen(copy).adopt(info.file_id)
            found = _examined(copy)
    missing = max(0, (present.at if present else began) - info.at)
    late = missing > SECOND * load_settings(None, {}).tuning.max_backup_age
    sound = not found["offenders"]
    if path is not None and present and sound:
        remember(path, info.at if missing else began)
    told = {"source": origin, "agent": info.agent, "at": info.at, "behind": missing / SECOND}
    told |= found | {"late": late, "since": [*map(asdict, since(path, info))]}
    shown = told if answer.json else told | {"offenders": len(found["offenders"])}
    emit(shown, COLUMNS, answer)
    _explain(told)
    return DONE if sound and not late else FAILED


@contextmanager
def _scratch() -> Iterator[Path]:
    """Yield a folder for the copy; remove it at the end, and those of drills that were killed."""
    with TemporaryDirectory(prefix=f"{SCRATCH}{process_id()}-") as folder:
        scratch = Path(folder)
        for other in scratch.parent.glob(f"{SCRATCH}*"):
            if is_dead(other.name.removeprefix(SCRATCH).partition("-")[0]):
                rmtree(other, ignore_errors=True)
        yield scratch


@contextmanager
def _naming(origin: str, copy: Path) -> Iterator[None]:
    """Let errors of the scratch copy name its origin."""
    try:
        yield
    except OncewardError as error:
        error.args = (str(error).replace(str(copy), origin),)
        raise


def _explain(told: dict[str, Any]) -> None:
    for each in told["offenders"]:
        note(f"{each['invariant']}: {each['offender']}: {each['rule']}")
    for row in told["since"]:
        counts = f"{row['sent']} messages sent to it and {row['received']} received"
        note(f"{row['peer']}: {counts} are not in the copy")
    if told["late"]:
        note(f"{told['behind']:.0f} s are missing, more than max_backup_age")


def _examined(copy: Path) -> dict[str, Any]:
    """Return what a restored file holds, and the invariants that it violates."""
    with open_box(copy) as box:  # without engines: nothing is delivered from it
        offenders = [picked(each, ("invariant", "offender", "rule")) for each in box.file.check()]
    with views(copy) as found:
        numbers = stats(found)
    held = {name: numbers[name] for name in HELD}
    size = copy.stat().st_size
    totals = {"sent": numbers["enqueued"], "received": numbers["received"], "bytes": size}
    return totals | held | {"offenders": offenders}


def _restore(path: Path | None, source: str | None, copy: Path, agent: str | None) -> str:
    """Write the newest copy to *copy*, and return its origin in words."""
    if source is None:
        if path is None or not is_replicated(path):
            said = "give --from COPY, FOLDER, URL or COMMAND"
            raise Usage(f"where is the copy? Litestream does not replicate the file here: {said}")
        return _run([*LITESTREAM, str(copy), str(path)], copy)
    if "{}" in source:
        return _run([word.replace("{}", str(copy)) for word in shlex.split(source)], copy)
    if "://" in source:
        return _run([*LITESTREAM, str(copy), source], copy)
    place = Path(source)
    if place.is_dir() and (url := litestream.url_of(place)):
        return _run([*LITESTREAM, str(copy), url], copy)
    newest = _newest(place, agent) if place.is_dir() else place
    if not newest.exists():
        raise NothingThere(f"there is no copy {newest}: correct the name")
    _take(newest, copy)
    return str(newest)


def _take(source: Path, copy: Path) -> None:
    """Copy a backup and leave no file beside it; a file in use is copied by SQLite."""
    if Path(f"{source}-wal").exists():
        copy_file(source, copy)
        return
    try:
        copyfile(source, copy)
    except OSError as error:
        raise NotRestored(f"{source} cannot be copied: {error.strerror}") from error


def _newest(folder: Path, agent: str | None) -> Path:
    """Return the backup with the latest moment in a folder; of the agent, if it is known."""
    found = list[tuple[Millis, str, Path]]()
    for each in folder.iterdir():
        if each.is_file() and not each.name.endswith(SIDE):
            with suppress(OncewardError):
                info = read_at_rest(each)
                if agent in {None, info.agent}:
                    found.append((info.at, each.name, each))
    if not found:
        of = f"of agent {agent!r}" if agent else "of an agent's file"
        raise NothingThere(f"{folder} has no backup {of}: make one with onceward backup")
    return max(found)[-1]


def _run(words: Sequence[str], copy: Path) -> str:
    """Run a program that writes *copy*, and return its command line."""
    try:
        ran = subprocess.run(  # noqa: S603 - the operator's own command, without a shell
            words, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
            errors="replace",
        )  # fmt: skip
    except OSError as error:
        raise NotRestored(f"{words[0]} cannot be run: {error.strerror}") from error
    if ran.returncode or not copy.exists():
        last = (ran.stderr.strip() or ran.stdout.strip() or "it wrote no copy").splitlines()[-1]
        raise NotRestored(f"{words[0]} ended with exit code {ran.returncode}: {last[:300]}")
    return shlex.join(words).replace(str(copy), "{}")
