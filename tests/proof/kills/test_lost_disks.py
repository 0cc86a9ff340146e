"""
An agent whose disk is lost, and that is restored from an older backup, several times.

It has work from one peer and sends on to another one. After each restore no peer sends anything
new: all jobs are done nevertheless, and take effect once.
"""

from __future__ import annotations

import random
import signal
import subprocess
import time
from contextlib import ExitStack
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import apsw
import pytest
from tests.children import PYTHON, Child
from tests.ports import free_port
from tests.proof.seed import proof_seed, size
from tests.transports.nats_server import nats_server

from onceward import Postbox
from onceward.file.backup import copy_file
from onceward.http import HttpListener, PollListener
from onceward.keys import Keys
from onceward.nats import NatsListener

if TYPE_CHECKING:
    from collections.abc import Callable


LOSSES = size(8, 2, "ONCEWARD_LOST_DISKS")
KILLED = size(8, 2)
SEED = proof_seed()
WITHIN = 30.0
"""Seconds within which all jobs are done after a restore; idle machines take about two."""
DONE = "SELECT n FROM effects"
UNDER_WAY = "SELECT count(*) FROM onceward_outbox WHERE state IN ('pending', 'sending', 'sent')"
NAMES = ("shop", "billing", "ledger")
PROCESS = """
import sys
from threading import Event
from onceward import Agent, Context
from tests.proof.kills.test_lost_disks import opened

folder, name, way, mistake = sys.argv[1:]
exec(mistake)
agent = Agent(name)

@agent.on("job")
def work(job: dict, ctx: Context) -> None:
    ctx.tx.execute("INSERT INTO effects VALUES (?)", (job["n"],))
    if name == "billing":
        ctx.send("ledger", job, type="job")

with opened(folder, agent, way):
    Event().wait()
"""
RESTORE = """
import os, signal, sys
from itertools import count
from onceward.ops.cli import main

path, backup, at = sys.argv[1:]
STEPS = frozenset({"os.link", "os.remove", "os.rename", "os.truncate"})
steps = count()

def kill(event, _):
    if event in STEPS and next(steps) == int(at):
        os.kill(os.getpid(), signal.SIGKILL)

sys.addaudithook(kill)
sys.exit(main(["restore", path, backup]))
"""
MISTAKES = {
    "the file is not known as restored": """
from onceward.file.last_seen import LastSeen
assert callable(LastSeen.is_restored)
LastSeen.is_restored = lambda self, found: LastSeen._continues is None
""",
    "a handler sends new ids": """
from onceward.message import ids
assert callable(ids.RepeatableIds.__call__)
ids.RepeatableIds.__call__ = lambda *_: ids.new_id()
""",
}


Ear = HttpListener | PollListener | NatsListener


def opened(folder: str | Path, agent: object, way: str, *, start: bool = True) -> Postbox:
    """Open one of the agents, in one home or in a home of its own that its peers reach."""
    name = str(getattr(agent, "name", agent))
    home = Path(folder) if way == "file" else Path(folder, name)
    ears = listeners(Path(folder), name, way) if start else []
    return Postbox(home / f"{name}.db", agent=agent, start=start, listeners=ears)  # type: ignore[arg-type]


def listeners(
    folder: Path, name: str, way: str
) -> list[HttpListener | PollListener | NatsListener]:
    """Return what an agent hears by; by poll each one asks the one before it for its parcels."""
    if way == "file":
        return []
    if way == "nats":
        return [NatsListener(url_of(folder, name))]
    own = HttpListener(url_of(folder, name))
    if way == "http" or name == NAMES[0]:
        return [own]
    before = NAMES[NAMES.index(name) - 1]
    return [own, PollListener(url_of(folder, before), before)]


def url_of(folder: Path, name: str) -> str:
    """Return the url that an agent listens at."""
    return (folder / name / "url").read_text()


def prepared(folder: Path, way: str, server: str = "") -> dict[str, Path]:
    """Create the files of the agents, which know each other; return them."""
    homes = {name: folder if way == "file" else folder / name for name in NAMES}
    for home in homes.values():
        home.mkdir(exist_ok=True)
        (home / "url").write_text(server or f"http://127.0.0.1:{free_port()}")
    for one, other in pairwise(NAMES) if way in {"http", "poll"} else ():
        Keys(homes[other]).add(one, Keys(homes[one]).create(other))
    for name in NAMES:
        with opened(folder, name, way, start=False) as box, box.begin() as tx:
            tx.execute("CREATE TABLE effects (n)")
            if way != "file":
                box.peers.add(addresses(folder, name, way))
    return {name: home / f"{name}.db" for name, home in homes.items()}


def addresses(folder: Path, name: str, way: str) -> dict[str, str]:
    """Return where an agent reaches its neighbours."""
    at = NAMES.index(name)
    found: dict[str, str] = {}
    for place, other in enumerate(NAMES):
        if abs(place - at) == 1:
            url = url_of(folder, other)
            found[other] = f"{url}/{other}" if way == "nats" else url
            if way == "poll" and place > at:
                found[other] = "poll:"
    return found


def ask(path: Path, sql: str) -> list[int]:
    """Return the numbers that a statement finds in a file in use; none while it is restored."""
    return [int(n) for (n,) in rows_of(path, sql)]


def rows_of(path: Path, sql: str) -> list[tuple[Any, ...]]:
    """Return what a statement finds in a file in use; nothing while it is restored."""
    con = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
    con.set_busy_timeout(1000)
    try:
        return con.execute(sql).fetchall()
    except apsw.Error:
        return []
    finally:
        con.close()


def has_done(files: dict[str, Path], jobs: int) -> bool:
    """Return whether so many different jobs had an effect at both agents."""
    return all(len({*ask(files[name], DONE)}) >= jobs for name in ("billing", "ledger"))


def is_quiet(files: dict[str, Path]) -> bool:
    """Return whether every message that was sent is acknowledged."""
    return all(ask(path, UNDER_WAY) == [0] for path in files.values())


def comes_true(look: Callable[[], bool]) -> bool:
    """Return whether something becomes true soon."""
    deadline = time.monotonic() + WITHIN
    while not (found := look()) and time.monotonic() < deadline:
        time.sleep(0.05)
    return found


def lose(path: Path, backup: Path) -> None:
    """Replace the file of a killed process by its backup."""
    for suffix in ("", "-wal", "-shm"):
        Path(f"{path}{suffix}").unlink(missing_ok=True)
    backup.rename(path)


def restored_by_command(path: Path, backup: Path, at: int) -> bool:
    """Run the command that restores a file, killed before its step *at*; return if it was."""
    words = [*map(str, PYTHON), "-c", RESTORE, str(path), str(backup), str(at)]
    ended = subprocess.run(words, check=False, capture_output=True)
    assert ended.returncode in {0, -signal.SIGKILL}, ended.stderr.decode()
    return ended.returncode != 0


def trial(
    folder: Path, way: str, lost: str, losses: int, mistake: str = "", *, killed: bool = False
) -> list[str]:
    """
    Lose the disk of one agent under traffic, several times; return what is wrong.

    With *killed* the command that restores it is killed at some of its steps; what it has left each
    time is opened, handles messages, and is killed; then the same backup is restored again.
    """
    dice, jobs = random.Random(SEED), 0
    with ExitStack() as stack:
        server = stack.enter_context(nats_server(folder)).url() if way == "nats" else ""
        files = prepared(folder, way, server)
        shop = stack.enter_context(opened(folder, "shop", way))

        def begun(name: str) -> Child:
            words = [*PYTHON, "-c", PROCESS, folder, name, way, mistake if name == lost else ""]
            return stack.enter_context(Child(words, cwd=Path.cwd()))

        people = {name: begun(name) for name in ("billing", "ledger")}
        for round_ in range(losses):
            for _ in range(dice.randrange(20, 80)):
                shop.send("billing", {"n": (jobs := jobs + 1)}, type="job")
            comes_true(partial(has_done, files, jobs - 15))
            copy_file(files[lost], folder / "backup")
            for _ in range(dice.randrange(20, 80)):
                shop.send("billing", {"n": (jobs := jobs + 1)}, type="job")
            if round_ % 2:  # else nothing is on its way any more
                comes_true(partial(has_done, files, jobs - dice.randrange(40)))
            else:
                comes_true(partial(is_quiet, files))
                comes_true(partial(has_done, files, jobs))
            people[lost].kill()
            for at in (*dice.sample(range(8), KILLED), 99) if killed else ():
                assert (at < 99) == restored_by_command(files[lost], folder / "backup", at)
                people[lost] = begun(lost)
                shop.send("billing", {"n": (jobs := jobs + 1)}, type="job")
                time.sleep(dice.uniform(0.0, 1.0))
                people[lost].kill()
            lose(files[lost], folder / "backup")
            people[lost] = begun(lost)
            if not comes_true(partial(has_done, files, jobs)):
                return [f"loss {round_}: not all of {jobs} jobs are done"]
        if not comes_true(partial(is_quiet, files)):
            return ["messages are under way"]
    found = ask(files["ledger"], DONE)
    return [f"done twice: {n}" for n in set(found) if found.count(n) > 1]


@pytest.mark.proof
@pytest.mark.timeout(600)
@pytest.mark.parametrize("lost", ["billing", "ledger"])
@pytest.mark.parametrize("way", ["file", "http", "poll", "nats"])
def test_a_lost_disk_loses_nothing_that_peers_have(tmp_path: Path, way: str, lost: str) -> None:
    """All jobs are done soon after the restart, without new messages, and once."""
    assert [] == trial(tmp_path, way, lost, LOSSES)


@pytest.mark.proof
@pytest.mark.timeout(600)
@pytest.mark.parametrize("lost", ["billing", "ledger"])
@pytest.mark.parametrize("way", ["http", "poll", "nats"])
def test_a_restore_is_killed_under_traffic(tmp_path: Path, way: str, lost: str) -> None:
    """So is each process that opens what it has left; peers see every job once nevertheless."""
    assert [] == trial(tmp_path, way, lost, 1, killed=True)


@pytest.mark.proof
@pytest.mark.timeout(600)
@pytest.mark.broken("planted mistakes")
@pytest.mark.parametrize("mistake", MISTAKES)
def test_planted_mistakes_are_found(tmp_path: Path, mistake: str) -> None:
    """A greeting that is lost, and new ids of what is done again."""
    assert [] != trial(tmp_path, "file", "billing", 2, MISTAKES[mistake])
