"""``onceward check``."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any

from onceward import Postbox
from onceward.cli.exit_codes import DONE, FAILED, PARTLY, code_of, problem
from onceward.cli.output import document, note, show
from onceward.cli.target import Where, open_box
from onceward.errors import OncewardError

WHERE = Where()


def check(*files: Path, where: Where = WHERE) -> int:
    """
    Run the invariants over files, and over the mail between them, and print the offenders.

    SQLite's integrity check and every frame's digest are among them. Given both ends of a conversation it also checks custody:
    the sender forgot only what the recipient keeps. Columns: path, invariant, offender, rule. Exit code 1 if
    there is any; 6 if some files could not be opened and the
    others are sound.

    Args:
        files: The files; default as for --db.
        where: Whose file, where none is given.

    """
    unread: list[tuple[Path, OncewardError]] = []
    paths = list(files) or [where.path()]
    with ExitStack() as stack:
        boxes: list[tuple[Path, Postbox]] = []
        for path in paths:
            try:
                boxes.append((path, stack.enter_context(open_box(path))))
            except OncewardError as error:
                unread.append((path, error))
        offenders = [found for index in range(len(boxes)) for found in _offenders(boxes[index:])]
    if where.json:
        failures: list[dict[str, Any]] = [
            {"path": str(path)} | problem(error) for path, error in unread
        ]
        document(
            {"checked": [str(path) for path in paths], "offenders": offenders, "unread": failures}
        )
    else:
        show(offenders, ("path", "invariant", "offender", "rule"), where.style)
        _say(len(paths), len(offenders), unread)
    if offenders:
        return FAILED
    if unread:
        return PARTLY if len(unread) < len(paths) else code_of(unread[0][1])
    return DONE


def _offenders(boxes: list[tuple[Path, Postbox]]) -> list[dict[str, Any]]:
    """Check the first file, and the mail between it and the others."""
    (path, box), *others = boxes
    found = box.check(*(other for _, other in others))
    return [
        {
            "path": str(path),
            "invariant": each.invariant,
            "offender": each.offender,
            "rule": each.rule,
        }
        for each in found
    ]


def _say(files: int, offenders: int, unread: list[tuple[Path, OncewardError]]) -> None:
    for path, error in unread:
        note(f"{path}: {error}")
    note(f"{files - len(unread)} of {files} files checked, {offenders} offenders")
