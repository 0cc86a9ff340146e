"""``onceward doctor``."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Final

from onceward.cli import findings
from onceward.cli.codes import DONE, FAILED
from onceward.cli.findings import Finding
from onceward.cli.look import look
from onceward.cli.paint import document, show
from onceward.cli.place import Where, existing, open_box
from onceward.errors import Busy, OncewardError

WHERE = Where()
COLUMNS: Final = ("check", "level", "found", "cure")


def doctor(db: Path | None = None, /, *, where: Where = WHERE) -> int:
    """
    Examine a file and its surroundings; each finding names its cure.

    It looks at the SQLite library, permissions, file system, other processes that hold the file, schema version, the WAL, the clock,
    the kill-switch, breakers, dead letters, limits, and mail that nobody delivers or handles. It writes, too: one durable commit that
    stores how far the clock has come and changes nothing else. Exit code 1 if any finding is serious. Whether the content is sound,
    onceward check says.

    Args:
        db: The agent's file; default as for --db.
        where: Whose file.

    """
    path = existing(db or where.path())
    found = list(examine(path))
    serious = any(finding.level == "serious" for finding in found)
    if where.json:
        document({"path": str(path), "healthy": not serious, "findings": [asdict(finding) for finding in found]})
    else:
        show([asdict(finding) for finding in found], COLUMNS, where.style)
    return FAILED if serious else DONE


def examine(path: Path) -> Iterator[Finding]:
    """Examine everything; what cannot be opened safely is not opened."""
    outside = [findings.library(), findings.permissions(path), findings.disk(path), findings.others(path)]
    yield from outside
    if any(finding.level == "serious" for finding in outside if finding.check != "permissions"):
        yield Finding("write", "warning", "not tried: the file is not safe to open", "cure the findings above first")
        return
    try:
        yield from _inside(path)
    except Busy as error:
        yield findings.locked(path, error)
    except OncewardError as error:
        yield Finding("open", "serious", str(error), (type(error).__doc__ or "").strip().partition("\n")[0])


def _inside(path: Path) -> Iterator[Finding]:
    with look(path) as found:
        yield (schema := findings.schema(found, path))
        if schema.level == "serious":
            return
        with open_box(path) as box:
            yield findings.writing(box, found)
            health = box.health()
            yield findings.wal(health, path)
            yield findings.clock(found)
            yield findings.switch(health, path)
            yield from findings.breakers(found, path)
            yield findings.graves(health, path)
            yield from findings.idle(box, found)
            yield findings.unhandled(found, path)
            yield findings.failing(found, path)
            yield findings.limits(box, path)
