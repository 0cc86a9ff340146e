"""``onceward migrate``: update a file's schema."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from onceward.ops.cli.exit_codes import DONE
from onceward.ops.cli.options import Quiet
from onceward.ops.cli.output import document, note, show
from onceward.ops.cli.readonly import look, pending
from onceward.ops.cli.target import WHERE, Where, chosen, open_box


def migrate(
    db: Path | None = None,
    /,
    *,
    dry_run: Annotated[bool, Quiet] = False,
    where: Where = WHERE,
) -> int:
    """
    Migrate a file's schema to this version and print the steps.

    Steps only go forward, all in one transaction; opening a file does the same. A file of a newer
    version is refused (exit code 7).

    Columns: version, name.

    Example: onceward migrate shop.db --dry-run

    Args:
        db: The agent's file; default as for --db.
        dry_run: Print the steps, and change nothing.

    """
    [path] = chosen([db] if db else [], where)
    with look(path) as found:
        steps = [{"version": step.version, "name": step.name} for step in pending(found)]
    if not dry_run:
        with open_box(path):
            pass
    if where.json:
        document({"path": str(path), "steps": steps, "dry_run": dry_run})
        return DONE
    show(steps, ("version", "name"), where.style)
    if not steps:
        note(f"{path} is up to date")
    return DONE
