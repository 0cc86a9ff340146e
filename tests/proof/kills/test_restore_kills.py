"""
The commands that restore a file are killed at each of their steps, and run again.

After the kill a process finds the old file, or the restored one, or is told to restore again.
"""

from __future__ import annotations

import os
import signal
import sys
import traceback
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

import apsw
import pytest

from onceward import Postbox
from onceward.errors import StoreUnusable
from onceward.file.backup import Takeovers, copy_file
from onceward.ops.cli import backup, takeover

if TYPE_CHECKING:
    from collections.abc import Callable

STEPS = frozenset({"os.link", "os.remove", "os.rename", "os.truncate"})
OLD, RESTORED = ["first", "second"], ["first"]


def _fresh(_backup: Takeovers, _old: Takeovers) -> Takeovers:
    return takeover._next(_backup, _old, url=None)


COMMANDS = {"restore": backup._kept, "takeover": _fresh}


def written(folder: Path) -> tuple[Path, Path]:
    """Return a file with a WAL, as a killed process leaves it, and an older backup of it."""
    path, copy = folder / "shop.db", folder / "copy"
    with Postbox(path, agent="shop", start=False) as box:
        box.peers.add("billing", "http://127.0.0.1:9")
        box.send("billing", "first", type="text")
        copy_file(path, copy)
    ended_by_kill(lambda: Postbox(path, start=False).send("billing", "second", type="text"))
    assert Path(f"{path}-wal").stat().st_size
    return path, copy


def ended_by_kill(work: Callable[[], object], at: int | None = None) -> bool:
    """Run *work* in a child that is killed before its step *at*, or after it; return if it was."""
    child = os.fork()
    if not child:
        steps = count()

        def kill(event: str, _: object) -> None:
            if event in STEPS and next(steps) == at:
                os.kill(os.getpid(), signal.SIGKILL)

        if at is not None:
            sys.addaudithook(kill)
        try:
            work()
        except BaseException:  # noqa: BLE001 - the parent reports it
            traceback.print_exc()
            os._exit(2)
        os.kill(os.getpid(), signal.SIGKILL) if at is None else os._exit(0)
    _, status = os.waitpid(child, 0)
    assert status in {0, signal.SIGKILL}, "the command failed"
    return status == signal.SIGKILL


def found(path: Path) -> list[str] | None:
    """Return the messages that an opening finds; None if it is told to restore again."""
    try:
        with Postbox(path, agent="shop", start=False) as box:
            return [str(body) for (body,) in box.query("SELECT body FROM onceward_outbox")]
    except StoreUnusable as error:
        if "was interrupted: run it again" not in str(error):
            raise
        return None


@pytest.mark.proof
@pytest.mark.broken("no process ends the half of a restore")
@pytest.mark.parametrize("again", ["opened", "run again", "gone back"])
@pytest.mark.parametrize("command", COMMANDS)
def test_a_killed_restore_leaves_the_old_file_or_the_restored_one(
    tmp_path: Path, command: str, again: str
) -> None:
    """It never leaves an empty one or one without its WAL; a second run ends it."""
    seen: list[list[str] | None] = []
    for at in count():
        (folder := tmp_path / str(at)).mkdir()
        path, copy = written(folder)

        def put(source: Path, path: Path = path) -> None:
            backup.put_back(path, source, dry_run=False, takeovers=COMMANDS[command])

        killed = ended_by_kill(lambda put=put, copy=copy: put(copy), at)  # type: ignore[misc]
        if again == "opened":
            seen.append(found(path))
            assert seen[-1] in (OLD, RESTORED, None)
        saved = [each for each in folder.glob("shop.db.before-*") if each.suffix[-4:] != "-wal"]
        if again == "gone back" and saved and saved[0].samefile(path):
            put(saved[0])
            assert OLD == found(path)
        elif found(path) != RESTORED:
            put(copy)
            assert RESTORED == found(path)
        if not killed:
            break
    assert at > 5
    if again == "opened":
        assert {str(OLD), str(RESTORED), "None"} == {*map(str, seen)}
        with apsw.Connection(str(path)) as con:
            [(own,)] = con.execute("SELECT takeover FROM _onceward_file_info")
        assert (command == "takeover") == (own is not None)
