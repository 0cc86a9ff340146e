"""``onceward check``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from onceward.cli.codes import DONE, FAILED, PARTLY, code_of, problem
from onceward.cli.paint import document, note, show
from onceward.cli.place import Where, open_box
from onceward.errors import OncewardError

WHERE = Where()


def check(*files: Path, where: Where = WHERE) -> int:
    """
    Run the invariants over files and print the offenders.

    SQLite's integrity check and every frame's digest are among them. Columns: path, invariant, offender, rule. Exit code 1 if
    there is any; 6 if some files could not be opened and the
    others are sound.

    Args:
        files: The files; default as for --db.
        where: Whose file, where none is given.

    """
    offenders: list[dict[str, Any]] = []
    unread: list[tuple[Path, OncewardError]] = []
    paths = list(files) or [where.path()]
    for path in paths:
        try:
            offenders += _offenders(path)
        except OncewardError as error:
            unread.append((path, error))
    if where.json:
        failures: list[dict[str, Any]] = [{"path": str(path)} | problem(error) for path, error in unread]
        document({"checked": [str(path) for path in paths], "offenders": offenders, "unread": failures})
    else:
        show(offenders, ("path", "invariant", "offender", "rule"), where.style)
        _say(len(paths), len(offenders), unread)
    if offenders:
        return FAILED
    if unread:
        return PARTLY if len(unread) < len(paths) else code_of(unread[0][1])
    return DONE


def _offenders(path: Path) -> list[dict[str, Any]]:
    with open_box(path) as box:
        return [{"path": str(path), "invariant": found.invariant, "offender": found.offender, "rule": found.rule} for found in box.check()]


def _say(files: int, offenders: int, unread: list[tuple[Path, OncewardError]]) -> None:
    for path, error in unread:
        note(f"{path}: {error}")
    note(f"{files - len(unread)} of {files} files checked, {offenders} offenders")
