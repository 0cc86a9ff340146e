"""``onceward check``: check the invariants of files."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

from onceward import Postbox
from onceward.errors import OncewardError
from onceward.ops.cli.command import picked
from onceward.ops.cli.exit_codes import DONE, FAILED, PARTLY, code_of, problem
from onceward.ops.cli.output import document, note, show
from onceward.ops.cli.target import WHERE, Where, chosen_files, open_box

COLUMNS: Final = ("path", "invariant", "offender", "rule")


def check(*files: Path, where: Where = WHERE) -> int:
    """
    Check the invariants of files and of the messages between them, and print violations.

    They include SQLite's integrity check and the digest of every frame. Given both ends of a stream
    it also checks that the sender pruned only messages that the recipient has stored. Exit code 1
    if there is a violation; 6 if some files could not be opened and the others are sound.

    Columns: path, invariant, offender, rule.

    Example: onceward check shop.db billing.db

    Args:
        files: The files; default as for --db, or all files of the --home.

    """
    unread: list[tuple[Path, OncewardError]] = []
    paths = chosen_files(files, where)
    with ExitStack() as stack:
        boxes: list[tuple[Path, Postbox]] = []
        for path in paths:
            try:
                boxes.append((path, stack.enter_context(open_box(path))))
            except OncewardError as error:
                unread.append((path, error))
        offenders = [found for index in range(len(boxes)) for found in _offenders(boxes[index:])]
    if where.json:
        failures = [{"path": str(path)} | problem(error) for path, error in unread]
        checked = [str(path) for path in paths]
        document({"checked": checked, "offenders": offenders, "unread": failures})
    else:
        show(offenders, COLUMNS, where.style)
        for path, why in unread:
            note(f"{path}: {why}")
        read = len(paths) - len(unread)
        note(f"{read} of {len(paths)} files checked, {len(offenders)} offenders")
    if offenders:
        return FAILED
    if unread:
        return PARTLY if len(unread) < len(paths) else code_of(unread[0][1])
    return DONE


def _offenders(boxes: list[tuple[Path, Postbox]]) -> list[dict[str, Any]]:
    """Check the first file, and the messages between it and the others."""
    (path, box), *others = boxes
    found = box.file.check(*(other.file for _, other in others))
    return [{"path": str(path)} | picked(each, COLUMNS[1:]) for each in found]
