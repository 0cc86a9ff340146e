"""``onceward doctor``: examine files and their surroundings."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Final

from onceward.errors import Busy, OncewardError
from onceward.ops.cli import findings, litestream
from onceward.ops.cli.exit_codes import DONE, FAILED, Usage
from onceward.ops.cli.findings import Finding, serious, warning
from onceward.ops.cli.mending import Change, mend
from onceward.ops.cli.options import Quiet, said
from onceward.ops.cli.output import document, note, show
from onceward.ops.cli.readonly import look
from onceward.ops.cli.target import WHERE, Where, chosen_files, existing, open_box

Repair = Annotated[bool, Quiet, said("Repair what can be repaired, and print each change.")]
DryRun = Annotated[bool, Quiet, said("Print what --repair would change, and change nothing.")]
RISKS: Final = frozenset({"permissions", "space"})
"""Checks after whose serious finding the file can still be opened safely."""
COLUMNS: Final = ("check", "level", "found", "cure")


def doctor(
    *files: Path, repair: Repair = False, dry_run: DryRun = False, where: Where = WHERE
) -> int:
    """
    Examine files and their surroundings; each finding says what to do.

    It examines the SQLite library, permissions, file system, free space, other processes that have
    the file open, schema version, for a second the types of values, WAL, whether Litestream
    follows, the age of the newest backup, commits that were lost with a deleted WAL in the last 30
    days, clock, pause, breakers, keys, other homes, connections of listeners,
    peers on other machines, streams of NATS servers, dead letters, schedules, limits, and messages
    that wait although they could be delivered or handled, or that wait for another agent's reply
    or for a member of a pool.
    It also writes: one durable commit that stores the time and changes nothing else. Exit code 1 if
    any finding is serious. onceward check examines the content. With --repair it first repairs what
    it can, and prints each change: file modes, leases of ended processes, leases that end a month
    or more from now, and positions past the last message. For several files only findings that are
    not ok are printed, each after its path.

    Columns: check, level, found, cure; of changes: check, change.

    Example: onceward doctor *.db

    Example: onceward doctor shop.db --repair --dry-run

    Args:
        files: The files; default as for --db, or all files of the --home.

    """
    if dry_run and not repair:
        raise Usage("--dry-run says what --repair would change: give both")
    paths = [existing(path) for path in chosen_files(files, where)]
    changes = {path: mend(path, dry_run=dry_run) if repair else [] for path in paths}
    found = {path: list(examine(path)) for path in paths}
    sick = [path for path in found if any(each.level == "serious" for each in found[path])]
    if where.json:
        documents = [
            _document(path, found[path], changes[path], healthy=path not in sick) for path in found
        ]
        document(documents[0] if len(documents) == 1 else {"healthy": not sick, "files": documents})
        return FAILED if sick else DONE
    _tell(changes, dry_run=dry_run)
    if len(paths) == 1:
        show([asdict(each) for each in found[paths[0]]], COLUMNS, where.style)
    else:
        several = [(path, each) for path in found for each in found[path] if each.level != "ok"]
        rows = [{"path": str(path)} | asdict(each) for path, each in several]
        show(rows, ("path", *COLUMNS), where.style)
        note(f"{len(paths)} files examined, {len(sick)} with a serious finding")
    return FAILED if sick else DONE


def _document(
    path: Path, found: list[Finding], changes: list[Change], *, healthy: bool
) -> dict[str, Any]:
    findings_of, changed = [asdict(each) for each in found], [asdict(each) for each in changes]
    return {"path": str(path), "healthy": healthy, "findings": findings_of, "changes": changed}


def _tell(changes: dict[Path, list[Change]], *, dry_run: bool) -> None:
    """Write a line to stderr for each change; none without --repair."""
    verb = "would change" if dry_run else "changed"
    for path, made in changes.items():
        for each in made:
            note(f"{path}: {verb} {each.check}: {each.change}")


def examine(path: Path) -> Iterator[Finding]:
    """Examine everything, without opening a file that cannot be opened safely."""
    examined = (findings.permissions, findings.disk, findings.space, findings.others)
    outside = [findings.library(), *(each(path) for each in examined)]
    yield from outside
    if any(finding.level == "serious" for finding in outside if finding.check not in RISKS):
        cure = "fix the findings above first"
        yield warning("write", "not tried: the file is not safe to open", cure)
        return
    try:
        yield from _inside(path)
    except Busy as error:
        yield findings.locked(path, error)
    except OncewardError as error:
        yield serious("open", str(error), (type(error).__doc__ or "").strip().partition("\n")[0])


def _inside(path: Path) -> Iterator[Finding]:
    with look(path) as found:
        yield (schema := findings.schema(found, path))
        if schema.level == "serious":
            return
        yield findings.values(found)
    copied = litestream.copies(path)
    # The box closes last: the last close of a read-only connection would leave the WAL behind.
    with open_box(path) as box, look(path) as found:
        yield findings.writing(box, found)
        health = box.file.health()
        yield findings.wal(health, path)
        yield from findings.replica(path, copied)
        yield findings.backup(found, path)
        yield from findings.lost(found, path)
        yield from findings.taken_over(found)
        yield findings.clock(health)
        yield from findings.disabled()
        yield from findings.held(found, path)
        yield from findings.keys(path)
        yield from findings.homes(path)
        yield from findings.connections(path)
        yield from findings.machines(box)
        yield from findings.nats(box)
        yield from findings.undelivered(box, found)
        yield findings.handling(health, found, path)
        yield findings.calls(health, path)
        yield from findings.leases(box, path)
        yield findings.limits(box, found, path)
        yield findings.drops(found, path)
        yield from findings.differing(found, path)
