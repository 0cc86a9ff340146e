"""Sixteen processes write to one file: none is refused, none starves, nothing is lost."""

import os
import time
from collections.abc import Callable
from multiprocessing import get_context
from pathlib import Path

import pytest
from tests.proof.seed import size

from onceward import Postbox
from onceward.testing.history import Log
from onceward.testing.kills import end_with_parent

WRITERS = 16
SECONDS = size(20, 5, "ONCEWARD_CONTENTION")
QUIET = "ONCEWARD_QUIET" in os.environ
"""
Whether nothing else runs on this machine, so that waits may be judged.

Elsewhere they are printed.
"""
LONGEST = 2.0
FAIREST = 0.2


def write(folder: Path, name: str) -> None:
    """Send until the time is up; log the ids, and the longest wait for a commit."""
    end_with_parent()
    sent: list[str] = []
    longest = 0.0
    with Postbox(folder / "ann.db", agent="ann", start=False, hold_unknown=True) as box:
        Log(folder / "ready.log").add(name)
        while len(list(Log(folder / "ready.log"))) < WRITERS:
            time.sleep(0.01)
        end = time.monotonic() + SECONDS
        while (begun := time.monotonic()) < end:
            sent.append(box.send("bob", name))
            longest = max(longest, time.monotonic() - begun)
    Log(folder / "sent.log").add([name, longest, sent])


@pytest.mark.timeout(120 + 2 * SECONDS)
def test_many_writers_share_one_file(tmp_path: Path, aloud: Callable[[object], None]) -> None:
    """
    No Busy surfaces, every send is there, and every process gets on.

    On a quiet machine the worst wait and the shares are judged too.
    """
    with Postbox(tmp_path / "ann.db", agent="ann", start=False, max_pending=10**7):
        pass
    context = get_context("forkserver")
    context.set_forkserver_preload(["onceward"])
    writers = [
        context.Process(target=write, args=(tmp_path, f"w{number}"), daemon=True)
        for number in range(WRITERS)
    ]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()

    assert [0] * WRITERS == [writer.exitcode for writer in writers]
    told = {
        str(name): (float(longest), ids)
        for name, longest, ids in map(_told, Log(tmp_path / "sent.log"))
    }
    with Postbox(tmp_path / "ann.db", agent="ann", start=False) as box, box.begin() as tx:
        kept = {str(i) for (i,) in tx.execute("SELECT id FROM _onceward_outbox")}
    counts = sorted(len(ids) for _, ids in told.values())
    worst = max(longest for longest, _ in told.values())
    aloud(
        f"contention: {sum(counts)} sends in {SECONDS:.0f} s,"
        f" least {counts[0]}, most {counts[-1]}, worst wait {worst:.2f} s"
    )

    assert WRITERS == len(told)
    assert kept == {i for _, ids in told.values() for i in ids}
    assert counts[0] > 0
    if QUIET:
        assert counts[0] >= FAIREST * counts[-1]
        assert worst < LONGEST


def _told(fact: object) -> tuple[str, float, list[str]]:
    assert isinstance(fact, list)
    name, longest, ids = fact
    return name, longest, ids
