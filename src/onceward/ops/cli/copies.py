"""Compare a copy of an agent's file with the file."""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from pathlib import Path

from onceward.errors import OncewardError, StoreUnusable
from onceward.file.backup import CopyInfo, copy_file, read_info
from onceward.file.identity import note_backup
from onceward.message.clock import Millis
from onceward.ops.cli.exit_codes import Conflicting
from onceward.ops.cli.output import note
from onceward.ops.cli.readonly import views
from onceward.ops.cli.target import open_box
from onceward.ops.views.waiting import Exchanged, exchanged


def copied(source: Path, target: Path, *, at_rest: bool = False) -> CopyInfo:
    """Copy a file in use, or *at_rest*, to a new file; raise Conflicting if that exists."""
    try:
        return copy_file(source, target, at_rest=at_rest)
    except FileExistsError as error:
        raise Conflicting(f"{target} exists: give another name, or move it away") from error


def info_of(path: Path | None) -> CopyInfo | None:
    """Return what a file holds; None if there is none, or it cannot be read."""
    with suppress(OncewardError):
        return read_info(path) if path is not None and path.exists() else None
    return None


def same_agent(path: Path | None, info: CopyInfo) -> None:
    """Refuse another agent's copy; a file that cannot be read is replaced by any."""
    owner = info_of(path)
    if owner is not None and owner.agent != info.agent:
        is_of = f"{path} is agent {owner.agent!r}, the backup is agent {info.agent!r}"
        raise StoreUnusable(f"{is_of}: give its own backup")


def since(path: Path | None, info: CopyInfo) -> tuple[Exchanged, ...]:
    """Return by peer what a file sent and received after its copy, if it can be read."""
    if path is not None:
        with suppress(OncewardError), views(path) as found:
            return exchanged(found, info.sent_upto_seq, info.received_upto_seq)
    return ()


def remember(path: Path, at: Millis) -> None:
    """
    Note in a file that a copy has every commit before *at*, for doctor and the metrics.

    The copy is complete without the note: a file that takes none, such as one on a full disk or of
    another version, is named on stderr.
    """
    try:
        with open_box(path) as box:
            box._db.write(partial(note_backup, at=at))
    except OncewardError as error:
        note(f"not noted in {path}, so doctor does not know of this copy: {error}")
