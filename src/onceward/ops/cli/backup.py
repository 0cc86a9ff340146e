"""``onceward backup`` and ``onceward restore``: copy a file in use, and put a copy in its place."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Final, NamedTuple

from onceward.errors import OncewardError, StoreUnusable
from onceward.file.backup import CopyInfo, Replacement, Takeovers, read_takeovers, stamp
from onceward.file.file_checks import SAVED
from onceward.message.clock import SystemClock, iso
from onceward.ops.cli.command import emit
from onceward.ops.cli.copies import copied, remember, same_agent, since
from onceward.ops.cli.drill import rehearse
from onceward.ops.cli.exit_codes import NothingThere, Usage
from onceward.ops.cli.options import Quiet, said
from onceward.ops.cli.output import note
from onceward.ops.cli.target import WHERE, Where, as_path, chosen, existing
from onceward.ops.views.handles import holders
from onceward.ops.views.waiting import Exchanged

COPIED: Final = ("copy", "agent", "at")
RESTORED: Final = ("file", "agent", "at", "saved")
PEERS: Final = """\
What this means for its peers:
- Its next process greets them, so they learn that the file is older. They send again the messages
that it had received after {at}, and report by id those that they no longer have.
- Messages that it sent after {at} are no longer in its outbox. Its peers tell it which they have;
its greeting starts a new epoch there, so that no peer takes a message for a duplicate.
- Messages that it handled after {at} are handled again when they arrive again: effects outside the
file happen twice. Its own tables are as of {at}."""
Words = Annotated[Path, said("The file, unless --db or --agent names it, and the copy.")]


def backup(
    *words: Words,
    drill: Annotated[
        bool, Quiet, said("Restore the newest copy into a scratch folder, and examine it.")
    ] = False,
    source: Annotated[
        str | None,
        said(
            "With --drill: a backup, a folder of backups, the URL of a Litestream replica, or a "
            "command that writes the copy to {}.",
            name="--from",
        ),
    ] = None,
    where: Where = WHERE,
) -> int:
    """
    Copy an agent's file while its processes write it, by SQLite's own backup.

    The copy is one snapshot of all committed data, durable, checked, and readable by its owner
    only. Choose a name that is not found as an agent: not NAME.db in a folder of agents. An
    existing copy is not overwritten (exit code 5). The file notes the time of its newest copy, for
    doctor.

    With --drill nothing is copied from the file. The newest copy is restored into a scratch folder,
    which is removed at the end (by the next drill if this one is killed), and examined as by check:
    from --from, or with the program litestream where it replicates the file. *behind* is by how
    many seconds the copy is older than the file, or than this moment if there is no file. Exit
    code 1 if the copy cannot be restored, if it violates an invariant, or if *behind* is more than
    max_backup_age.

    Columns: copy, agent, at; of a drill: source, agent, at, behind, sent, received, offenders.

    Example: onceward backup shop.db /backups/shop.backup

    Example: onceward backup shop.db --drill --from /backups

    """
    if drill:
        return rehearse(_drilled(words, where), source, where)
    if source is not None:
        raise Usage("--from names the copy of a --drill: give both")
    path, target = _pair(words, where, "COPY")
    began = SystemClock().now()
    info = copied(existing(path), target)
    remember(path, began)
    return emit({"copy": str(target), "agent": info.agent, "at": info.at}, COPIED, where)


def restore(
    *words: Words,
    dry_run: Annotated[
        bool, Quiet, said("Examine the backup and the file; change nothing.")
    ] = False,
    where: Where = WHERE,
) -> int:
    """
    Replace an agent's file with a backup, and keep the old file beside it.

    No process may have the file open (exit code 7); no process can open it during the restore. The
    backup is copied and checked, and must be of the same agent. Then the command prints what the
    rollback means for peers, and how many messages each has exchanged since.

    Columns: file, agent, at, saved.

    Example: onceward restore shop.db /backups/shop.backup --dry-run
    """
    path, source = _pair(words, where, "BACKUP")
    done = put_back(path, source, dry_run=dry_run, takeovers=_kept)
    return tell(done, {"dry_run": dry_run}, RESTORED, where)


class PutBack(NamedTuple):
    """A backup in the place of a file."""

    path: Path
    saved: Path | None
    """The old file; None if there is none."""
    info: CopyInfo
    after: tuple[Exchanged, ...]
    """By peer, what the file has sent and received after the backup."""
    takeovers: Takeovers


def put_back(
    path: Path,
    source: Path,
    *,
    dry_run: bool,
    takeovers: Callable[[Takeovers, Takeovers], Takeovers],
) -> PutBack:
    """
    Replace a file with a backup, and keep the old one; with *dry_run* examine both only.

    *takeovers* returns those of the new file, from those of the backup and of the old file.
    """
    if not path.parent.is_dir():
        raise NothingThere(f"there is no folder {path.parent}: create it, or correct the name")
    if source.is_dir():
        raise NothingThere(f"{source} is a folder: give the name of a backup in it")
    _refuse_open(path)
    now = iso(SystemClock().now()).replace(":", "").replace("-", "")
    fresh, saved = Path(f"{path}.restoring-{now}"), Path(f"{path}{SAVED}{now}")
    there = path.exists()
    with Replacement(path) if there or not dry_run else nullcontext() as place:
        info = copied(existing(source), fresh, at_rest=True)
        try:
            same_agent(path, info)
            after = since(path, info)
            known = takeovers(read_takeovers(fresh), _takeovers_of(path))
            stamp(fresh, known)
            if place and not dry_run:
                place.put(fresh, saved)
        finally:
            fresh.unlink(missing_ok=True)
    return PutBack(path, saved if there else None, info, after, known)


def tell(done: PutBack, more: dict[str, object], columns: Sequence[str], where: Where) -> int:
    """Print what was restored, and what that means for peers; return the exit code."""
    info = done.info
    saved = None if done.saved is None else str(done.saved)
    found = {"file": str(done.path), "agent": info.agent, "at": info.at, "saved": saved}
    code = emit(found | more | {"since": [*map(asdict, done.after)]}, columns, where)
    _explain(info, done.after)
    if more["dry_run"]:
        note("a dry run: nothing was changed")
    return code


def _takeovers_of(path: Path) -> Takeovers:
    """Return the takeovers of the old file; none if it cannot be read."""
    with suppress(OncewardError):
        return read_takeovers(path) if path.exists() else Takeovers()
    return Takeovers()


def _kept(backup: Takeovers, old: Takeovers) -> Takeovers:
    """Return the newest of both: a backup from before a takeover is not refused by peers."""
    return Takeovers(_newest(backup.own, old.own), _newest(backup.superseded_by, old.superseded_by))


def _newest(*takeovers: str | None) -> str | None:
    return max(filter(None, takeovers), default=None)


def _pair(words: tuple[Path, ...], where: Where, second: str) -> tuple[Path, Path]:
    """Return the agent's file and the other one; the file may be named by an option instead."""
    if len(words) not in (1, 2):
        raise Usage(f"give FILE and {second}, or {second} and --db or --agent")
    [path] = chosen(words[:-1], where)
    return path, as_path(words[-1])


def _drilled(words: tuple[Path, ...], where: Where) -> Path | None:
    """Return the agent's file, which need not exist; None if nothing names one."""
    if len(words) > 1:
        raise Usage("--drill copies nothing from the file: give FILE alone")
    if words or where != Where(json=where.json):
        return chosen(words, where)[0]
    with suppress(Usage):
        return where.path()
    return None


def _refuse_open(path: Path) -> None:
    if found := holders(path):
        pids = " ".join(str(holder.pid) for holder in found)
        raise StoreUnusable(f"{path} is open in process {pids}: stop it first, then restore")


def _explain(info: CopyInfo, after: tuple[Exchanged, ...]) -> None:
    for row in after:
        counts = f"{row.sent} messages sent to it and {row.received} received"
        note(f"{row.peer}: {counts} after the backup")
    for line in PEERS.format(at=iso(info.at)).splitlines():
        note(line)
