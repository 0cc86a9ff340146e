"""``onceward doctor``."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from onceward.cli import findings
from onceward.cli.exit_codes import DONE, FAILED
from onceward.cli.findings import Finding
from onceward.cli.output import document, note, show
from onceward.cli.readonly import look
from onceward.cli.target import Where, existing, open_box
from onceward.errors import Busy, OncewardError

WHERE = Where()
COLUMNS: Final = ("check", "level", "found", "cure")


def doctor(*files: Path, where: Where = WHERE) -> int:
    """
    Examine files and their surroundings; each finding names its cure.

    It looks at the SQLite library, permissions, file system, other processes that hold the file, schema version, the WAL, the clock,
    the kill-switch, breakers, dead letters, limits, and mail that nobody delivers or handles. It writes, too: one durable commit that
    stores how far the clock has come and changes nothing else. Exit code 1 if any finding is serious. Whether the content is sound,
    onceward check says. Of several files only what is not ok is printed, with the path in front.

    Args:
        files: The files; default as for --db.
        where: Whose file, where none is given.

    """
    paths = [existing(path) for path in files or (where.path(),)]
    found = {path: list(examine(path)) for path in paths}
    sick = {
        path
        for path, findings in found.items()
        if any(finding.level == "serious" for finding in findings)
    }
    if where.json:
        documents = [
            _document(path, findings, healthy=path not in sick) for path, findings in found.items()
        ]
        document(documents[0] if len(documents) == 1 else {"healthy": not sick, "files": documents})
    elif len(paths) == 1:
        show([asdict(finding) for finding in found[paths[0]]], COLUMNS, where.style)
    else:
        rows = [
            {"path": str(path)} | asdict(each)
            for path, findings in found.items()
            for each in findings
            if each.level != "ok"
        ]
        show(rows, ("path", *COLUMNS), where.style)
        note(f"{len(paths)} files examined, {len(sick)} with a serious finding")
    return FAILED if sick else DONE


def _document(path: Path, found: list[Finding], *, healthy: bool) -> dict[str, Any]:
    return {
        "path": str(path),
        "healthy": healthy,
        "findings": [asdict(finding) for finding in found],
    }


def examine(path: Path) -> Iterator[Finding]:
    """Examine everything; what cannot be opened safely is not opened."""
    outside = [
        findings.library(),
        findings.permissions(path),
        findings.disk(path),
        findings.others(path),
    ]
    yield from outside
    if any(finding.level == "serious" for finding in outside if finding.check != "permissions"):
        yield Finding(
            "write",
            "warning",
            "not tried: the file is not safe to open",
            "cure the findings above first",
        )
        return
    try:
        yield from _inside(path)
    except Busy as error:
        yield findings.locked(path, error)
    except OncewardError as error:
        yield Finding(
            "open", "serious", str(error), (type(error).__doc__ or "").strip().partition("\n")[0]
        )


def _inside(path: Path) -> Iterator[Finding]:
    with look(path) as found:
        yield (schema := findings.schema(found, path))
    if schema.level == "serious":
        return
    with (
        open_box(path) as box,
        look(path) as found,
    ):  # the box closes last: who only reads leaves the WAL behind
        yield findings.writing(box, found)
        health = box.health()
        yield findings.wal(health, path)
        yield findings.clock(found)
        yield findings.switch(health, path)
        yield from findings.breakers(found, path)
        yield findings.graves(health, path)
        yield from findings.idle(box, found)
        yield findings.unhandled(health, found, path)
        yield findings.failing(found, path)
        yield findings.limits(box, path)
