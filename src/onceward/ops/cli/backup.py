"""``onceward backup`` and ``onceward restore``: copy a file in use, and put a copy in its place."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Final

from onceward.errors import OncewardError, StoreUnusable
from onceward.file.backup import CopyInfo, Replacement, copy_file, read_info
from onceward.message.clock import SystemClock, iso
from onceward.ops.cli.command import emit
from onceward.ops.cli.exit_codes import Conflicting, Usage
from onceward.ops.cli.options import Quiet, said
from onceward.ops.cli.output import note
from onceward.ops.cli.readonly import views
from onceward.ops.cli.target import WHERE, Where, as_path, chosen, existing
from onceward.ops.views.handles import holders
from onceward.ops.views.waiting import Exchanged, exchanged

COPIED: Final = ("copy", "agent", "at")
RESTORED: Final = ("file", "agent", "at", "saved")
PEERS: Final = """\
What this means for its peers:
- With their next parcel they see that the file is older. They send again the messages that it had
received after {at}, and report by id those that they no longer have.
- Messages that it sent after {at} are no longer in its outbox. Peers that received them keep them;
its next message starts a new epoch, so that no peer takes it for a duplicate.
- Messages that it handled after {at} are handled again when they arrive again: effects outside the
file happen twice. Its own tables are as of {at}."""
Words = Annotated[Path, said("The file, unless --db or --agent names it, and the copy.")]


def backup(*words: Words, where: Where = WHERE) -> int:
    """
    Copy an agent's file while its processes write it, by SQLite's own backup.

    The copy is one snapshot of all committed data, durable, checked, and readable by its owner
    only. Choose a name that is not found as an agent: not NAME.db in a folder of agents. An
    existing copy is not overwritten (exit code 5).

    Columns: copy, agent, at.

    Example: onceward backup shop.db /backups/shop.backup
    """
    source, target = _pair(words, where, "COPY")
    info = _copied(existing(source), target)
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
    _refuse_open(path)
    now = iso(SystemClock().now()).replace(":", "").replace("-", "")
    fresh, saved = Path(f"{path}.restoring-{now}"), Path(f"{path}.before-{now}")
    with Replacement(path) as place:
        info = _copied(existing(source), fresh)
        try:
            _same_agent(path, info)
            since = _since(path, info)
            if not dry_run:
                place.put(fresh, saved)
        finally:
            fresh.unlink(missing_ok=True)
    found = {"file": str(path), "agent": info.agent, "at": info.at, "saved": str(saved)}
    code = emit(found | {"dry_run": dry_run, "since": [*map(asdict, since)]}, RESTORED, where)
    _explain(info, since)
    return code


def _pair(words: tuple[Path, ...], where: Where, second: str) -> tuple[Path, Path]:
    """Return the agent's file and the other one; the file may be named by an option instead."""
    if len(words) not in (1, 2):
        raise Usage(f"give FILE and {second}, or {second} and --db or --agent")
    [path] = chosen(words[:-1], where)
    return path, as_path(words[-1])


def _copied(source: Path, target: Path) -> CopyInfo:
    try:
        return copy_file(source, target)
    except FileExistsError as error:
        raise Conflicting(f"{target} exists: give another name, or move it away") from error


def _refuse_open(path: Path) -> None:
    if found := holders(path):
        pids = " ".join(str(holder.pid) for holder in found)
        raise StoreUnusable(f"{path} is open in process {pids}: stop it first, then restore")


def _same_agent(path: Path, info: CopyInfo) -> None:
    """Refuse another agent's backup; a file that cannot be read is replaced by any."""
    owner = None
    with suppress(OncewardError):
        owner = read_info(path).agent if path.exists() else None
    if owner not in {None, info.agent}:
        msg = f"{path} is agent {owner!r}, the backup is agent {info.agent!r}: give its own backup"
        raise StoreUnusable(msg)


def _since(path: Path, info: CopyInfo) -> tuple[Exchanged, ...]:
    """Return by peer what the old file sent and received after the backup, if it can be read."""
    with suppress(OncewardError), views(path) as found:
        return exchanged(found, info.sent_upto_seq, info.received_upto_seq)
    return ()


def _explain(info: CopyInfo, since: tuple[Exchanged, ...]) -> None:
    for row in since:
        counts = f"{row.sent} messages sent to it and {row.received} received"
        note(f"{row.peer}: {counts} after the backup")
    for line in PEERS.format(at=iso(info.at)).splitlines():
        note(line)
