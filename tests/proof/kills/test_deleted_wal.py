"""A process whose WAL is deleted while it sends, and which is killed: it loses no message."""

import random
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.children import PYTHON, Child
from tests.proof.seed import proof_seed, size
from tests.waiting import until

from onceward import Postbox
from onceward.errors import OncewardError

KILLS = size(60, 12, "ONCEWARD_WAL_KILLS")
SEED = proof_seed()
THREADS = 3
PROCESS = """
import os, sys, threading
from onceward import Postbox
from onceward.errors import OncewardError

file, threads, mistake = sys.argv[1:]
told = os.open("told", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
exec(mistake)

def send():
    failed = 0
    while failed < 100:
        try:
            os.write(told, f"{box.send('bob', 'x' * 500)}\\n".encode())
            failed = 0
        except OncewardError:  # not sent, or unsure
            failed += 1
    os._exit(1)

with Postbox(file, agent="alice", start=False, max_pending=10**6) as box:
    senders = [threading.Thread(target=send) for _ in range(int(threads))]
    for each in senders:
        each.start()
    for each in senders:
        each.join()
"""
MISTAKES = {
    "a deleted WAL is not noticed": """
from onceward.file.group_commit import ReplacedFileDetector
assert callable(ReplacedFileDetector.replaced)
ReplacedFileDetector.replaced = lambda self: False
""",
    "a deleted WAL counts as saved": """
from onceward.file.database import Database
assert callable(Database.save_deleted_wal)
Database.save_deleted_wal = lambda self: True
""",
}


def torture(folder: Path, kills: int, mistake: str = "") -> tuple[list[str], int]:
    """
    Delete the WAL of a sending process, and kill the process once it has sent again.

    Return what is wrong, and the number of messages whose sending had returned.
    """
    dice, file, told = random.Random(SEED), folder / "alice.db", folder / "told"
    Postbox(folder / "bob.db", agent="bob", start=False).close()
    told.touch()
    for _ in range(kills):
        with Child([*PYTHON, "-c", PROCESS, file, str(THREADS), mistake], cwd=folder) as child:
            _wait(child, told, dice.randrange(1, 40))
            for _ in range(dice.randrange(1, 4)):
                _delete(file, dice.choice((("-wal",), ("-wal", "-shm"))))
                # Of these, at most one for each thread was begun before the deletion.
                _wait(child, told, THREADS + dice.randrange(1, 20))
            ended = ["the process does not send any more"] * (child.poll() is not None)
            child.kill()
        if wrong := [*ended, *_lost(file, told)]:
            return wrong, _number(told)
    return [], _number(told)


def _number(told: Path) -> int:
    return told.read_bytes().count(b"\n")


def _wait(child: Child, told: Path, more: int) -> None:
    """Wait until so many more messages were sent."""
    enough = _number(told) + more
    until(lambda: _number(told) >= enough or child.poll() is not None)


def _delete(file: Path, ends: tuple[str, ...]) -> None:
    for end in ends:
        Path(f"{file}{end}").unlink(missing_ok=True)


def _lost(file: Path, told: Path) -> list[str]:
    """Return the messages that were sent and are not there, and the violations of the file."""
    try:
        with Postbox(file, agent="alice", start=False) as box:
            there = {row[0] for row in box.query("SELECT id FROM onceward_outbox")}
            lost = [each for each in told.read_text().splitlines() if each not in there]
            return [*(f"{each} is lost" for each in lost), *map(str, box.file.check())]
    except OncewardError as error:
        return [f"the file does not open: {error!r}"]


def test_no_sent_message_is_lost(tmp_path: Path, aloud: Callable[[object], None]) -> None:
    """Each message whose sending returned is in the file, which has no violation."""
    wrong, sent = torture(tmp_path, KILLS)
    aloud(f"deleted WALs: {KILLS} kills, {sent} messages, seed {SEED}")

    assert [] == wrong
    assert sent > KILLS * THREADS


@pytest.mark.broken("a planted mistake loses messages")
@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_shows(tmp_path: Path, mistake: str) -> None:
    """Planted in the processes, it loses messages."""
    wrong, _ = torture(tmp_path, KILLS, MISTAKES[mistake])

    assert [] != wrong
