"""Messages whose process dies: every call counts, and their neighbours do not wait for them."""

from __future__ import annotations

import os
import signal
from contextlib import closing
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from tests.children import PYTHON, Child, run
from tests.waiting import until

from onceward import Postbox
from onceward.core.rows import lanes
from onceward.core.run import recovery
from onceward.core.run.engine_loop import lane_reaper
from onceward.errors import InvalidArgument
from onceward.features.runs.runs import OpenRun
from onceward.features.runs.worker import RunNotes
from onceward.file import file_checks, in_flight
from onceward.file.in_flight import NOTE, CallRecords
from onceward.file.transaction import StoreTransaction

KILLED = 9
"""Exit code of a process that the message 0 has ended."""
CHILD = """
import asyncio, os, sys, time
from onceward import Agent, Context, Postbox, Run

kind, most = sys.argv[2], int(sys.argv[3])
agent = Agent("worker")

def called(*found):
    with open("calls", "a") as calls:
        calls.write("".join(f"{body}:{attempt} " for body, attempt in found))
    if 0 in dict(found):
        os._exit(9)

if kind == "function":
    @agent.on("job", attempts=most)
    def job(body: int, ctx: Context) -> None:
        called((body, ctx.message.attempt))
elif kind == "step":
    @agent.on("job", attempts=most)
    def job(body: int, ctx: Context) -> None:
        ctx.step(called, (body, ctx.message.attempt))
elif kind == "coroutine":
    @agent.on("job", attempts=most)
    async def job(body: int, ctx) -> None:
        await asyncio.sleep(0)
        called((body, ctx.message.attempt))
elif kind == "batch":
    @agent.on("job", attempts=most, batch=10)
    def job(bodies: list[int], ctx) -> None:
        called(*((each.body, each.attempt) for each in ctx.messages))
elif kind == "run":
    @agent.runs("*", attempts=most)
    def serve(run: Run) -> None:
        called((run.message.body, run.message.attempt))
elif kind == "run beside jobs":
    @agent.runs("s0", attempts=most)
    def serve(run: Run) -> None:
        called((run.message.body, run.message.attempt))

    @agent.on("job", attempts=most)
    def job(body: int, ctx: Context) -> None:
        called((body, ctx.message.attempt))

reads = kind == "reader"
# Its one call ends the process: of several, one may be noted, and not have begun.
options = {"handler_attempts": most, "workers": 1, "max_runs": 1}
options |= dict.fromkeys(("delivery_retry", "handler_retry"), "10ms..10ms")
with Postbox(sys.argv[1], agent="worker" if reads else agent, start=not reads, **options) as box:
    while (now := box.file.stats())["inbox_pending"] + now["inbox_processing"]:
        if reads:
            while message := box.receive():
                called((message.body, message.attempt))
                message.ack()
        time.sleep(0.01)
"""
KINDS = ("function", "step", "coroutine", "batch", "run", "reader")
BESIDE = "run beside jobs"


def stored(home: Path, count: int, *, sessions: int | None = None) -> Path:
    """Store the jobs 0, 1, …, each in a lane of its own or in *sessions*; return their file."""
    Postbox(home / "worker.db", agent="worker", start=False).close()
    with Postbox(home / "shop.db", agent="shop", start=False) as shop:
        for n in range(count):
            shop.session(f"s{n % (sessions or count)}").send("worker", n, type="job")
        shop.run_until_idle()
    return home / "worker.db"


def worked(file: Path, kind: str, attempts: int) -> list[list[str]]:
    """Restart a worker until all jobs have ended; return the calls of each process."""
    calls, command = file.parent / "calls", [*PYTHON, "-c", CHILD, file, kind, attempts]
    found, code = list[list[str]](), KILLED
    while code == KILLED:
        assert len(found) <= attempts
        calls.write_text("")
        code = run(command, check=False, cwd=file.parent).returncode
        found.append(calls.read_text().split())
    assert code == 0
    return found


@pytest.mark.parametrize("attempts", [1, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_every_call_counts(tmp_path: Path, kind: str, attempts: int) -> None:
    """A message that ends each process is called as often as allowed, with consecutive numbers."""
    file = stored(tmp_path, 1)

    calls = [call for process in worked(file, kind, attempts) for call in process]

    assert [f"0:{n + 1}" for n in range(attempts)] == calls
    with Postbox(file, start=False) as box:
        assert [("attempts_spent", attempts)] == [
            (each.reason, each.attempts) for each in box.dead_letters.list()
        ]


@pytest.mark.parametrize("kind", [each for each in (*KINDS, BESIDE) if each != "batch"])
def test_neighbours_do_not_wait_for_a_killer(tmp_path: Path, kind: str) -> None:
    """All other jobs are done before the killer is called again, and each of them succeeds."""
    file = stored(tmp_path, 21)

    processes = worked(file, kind, 3)

    done = {int(call.split(":")[0]) for process in processes[:2] for call in process}
    assert set(range(21)) == done
    last = processes[2:]
    if kind == BESIDE:  # a job that begins at the same moment as the run may die with it once more
        last = [[call for call in process if call.startswith("0:")] for process in last]
    assert [["0:3"], []] == last
    with Postbox(file, start=False) as box:
        assert (20, 1) == (box.file.stats()["processed"], len(box.dead_letters.list()))


@pytest.mark.parametrize("sessions", [1, 5])
def test_neighbours_of_a_batch_that_died_are_called_alone(tmp_path: Path, sessions: int) -> None:
    """
    Each message of the batch is called again on its own, the killer's third call included.

    Those behind it in its lane are too: the lane remembers up to which message it isolates.
    """
    processes = worked(stored(tmp_path, 5, sessions=sessions), "batch", 3)

    later = [call for process in processes[1:] for call in process]
    assert sorted([*(f"{n}:2" for n in range(5)), "0:3"]) == sorted(later)


SLOW = """
import ctypes, sys
from onceward import Agent, Context, Postbox

agent = Agent("worker")

@agent.on("job", attempts=3)
def job(body: int, ctx: Context) -> None:
    print(ctx.message.attempt, flush=True)
    if sys.argv[2] == "holds":
        ctypes.PyDLL(None).usleep(1_500_000)
    elif sys.argv[2] == "waits":
        sys.stdin.readline()

with Postbox(sys.argv[1], agent=agent, lease=0.2) as box:
    sys.stdin.readline()
"""


def handled(file: Path) -> int:
    """Return how many messages were handled."""
    with Postbox(file, start=False) as box:
        return int(box.file.stats()["processed"])


def worker(file: Path, kind: str) -> Child:
    """Start a worker whose call holds its interpreter, waits for a line, or returns at once."""
    return Child([*PYTHON, "-c", SLOW, file, kind], "stdin", "stdout", "stderr")


def test_a_call_that_holds_its_interpreter_keeps_its_lease(tmp_path: Path) -> None:
    """Its heartbeat cannot run for seven leases, but its lock shows that its process lives."""
    file = stored(tmp_path, 1)
    with worker(file, "holds") as first, worker(file, "holds") as second:
        until(lambda: handled(file) == 1)
        heard = first.ended("\n")[0] + second.ended("\n")[0]

    assert "1\n" == heard


def test_a_stopped_process_loses_its_lease_later(tmp_path: Path) -> None:
    """Another process then takes its message, as the next attempt, and logs what it has seen."""
    file = stored(tmp_path, 1)
    with worker(file, "waits") as stopped:
        assert "1" == stopped.hear()
        stopped.send_signal(signal.SIGSTOP)
        with worker(file, "quick") as other:
            until(lambda: handled(file) == 1)
            out, err = other.ended("\n")
        stopped.send_signal(signal.SIGCONT)
        stopped.ended("\n\n")

    assert ("2\n", True) == (out, f"its process {stopped.pid} lives" in err)


def test_calls_are_counted_once_whoever_looks(tmp_path: Path) -> None:
    """Takers that look again, or whose commit is undone, neither miss nor repeat a call."""
    file = stored(tmp_path, 3)
    with worker(file, "waits") as dying:
        assert "1" == dying.hear()
        dying.send_signal(signal.SIGKILL)
        dying.wait()
    with Postbox(file, agent="worker", start=False) as box:
        db = box._db
        db.in_flight.enter(file_checks.owner_name(), "reader", 1000)

        def undone(tx: StoreTransaction) -> None:
            recovery.take_over(tx)
            raise InvalidArgument("undo")

        for _ in range(2):
            with pytest.raises(InvalidArgument):
                db.write(undone)
        for _ in range(3):
            db.write(recovery.take_over)

        assert [(1,), (0,), (0,)] == db.read("SELECT attempts FROM _onceward_inbox ORDER BY seq")
        assert [] == db.in_flight.dead()


@pytest.mark.parametrize("claimed", [True, False])
def test_a_note_of_a_settled_call_counts_nothing(tmp_path: Path, claimed: bool) -> None:
    """Only the lane's token tells: notes are left behind, and may be older than the file."""
    file = stored(tmp_path, 1)
    with Postbox(file, agent="worker", start=False) as box, closing(CallRecords(file)) as other:
        box._db.in_flight.enter(file_checks.owner_name(), "reader", 1000)
        notes = other.enter(file_checks.owner_name(), "call", 1000)
        assert notes is not None
        [(lane, token)] = box._db.read("SELECT lane_id, token FROM _onceward_lanes")
        note = NOTE.pack(notes.turn, lane, token + claimed, 1)
        os.pwrite(notes.file.handle, note, notes.at)
        box._db.write(recovery.take_over)
        box._db.in_flight._known.clear()  # as in another process, which looks next
        box._db.write(recovery.take_over)

        # A claim that was rolled back has the next token; a settled one has the lane's.
        assert [(int(claimed),)] == box._db.read("SELECT attempts FROM _onceward_inbox")


def test_the_note_of_a_run_is_not_hidden_by_one_that_is_still_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Notes are read up to the first place without one: no later place is written before it."""
    owner, seen, write = file_checks.owner_name(), list[int](), os.pwrite
    first, second = (
        OpenRun(n, f"run {n}", f"s{n}", "collect", n, 1, owner, "[]", None) for n in (1, 2)
    )
    file = stored(tmp_path, 1)
    with closing(CallRecords(file)) as mine, closing(CallRecords(file)) as other:
        notes = RunNotes(mine, owner)
        notes.enter(1000)

        def begin_second() -> None:
            notes.begin(second)
            record = other.find(owner)
            assert record is not None
            seen.extend(each.lane_id for each in record.calls)

        beside = Thread(target=begin_second)

        def write_late(*given: Any) -> int:
            if beside.ident is None:
                beside.start()
                beside.join(0.2)
            return write(*given)

        monkeypatch.setattr(os, "pwrite", write_late)
        notes.begin(first)
        beside.join()

    assert [1, 2] == seen


@pytest.mark.parametrize("reaped", [True, False])
def test_two_that_died_of_one_message_count_two_calls(tmp_path: Path, reaped: bool) -> None:
    """The second one had taken the lease of the first over, and its claim was rolled back."""
    file = stored(tmp_path, 1)
    with Postbox(file, agent="worker", start=False) as box:
        db = box._db
        db.in_flight.enter(file_checks.owner_name(), "reader", 1000)
        others = [CallRecords(file) for _ in range(2)]
        owners = [file_checks.owner_name() for _ in others]
        records = [
            other.enter(owner, "call", 1000) for other, owner in zip(others, owners, strict=True)
        ]
        [(lane, token)] = db.read("SELECT lane_id, token FROM _onceward_lanes")

        def claim(tx: StoreTransaction) -> None:
            lanes.lease(tx, (lane, token, 0), [1], owner=owners[1], until=tx.now + 1000)

        db.write(claim)
        for ahead, notes in zip((2, 1), records, strict=True):  # the second has the first record
            assert notes is not None
            note = NOTE.pack(notes.turn, lane, token + ahead, 1)
            os.pwrite(notes.file.handle, note, notes.at)
        for other in others:
            other.abandon()
        if reaped:
            lane_reaper(db).release_leases()
        db.write(recovery.take_over)

        assert [(2,)] == db.read("SELECT attempts FROM _onceward_inbox")
        assert [] == db.in_flight.dead()


def test_a_child_leaves_the_records_of_its_parent(tmp_path: Path) -> None:
    """It holds neither their locks nor their file, so the parent's death is seen at once."""
    file = stored(tmp_path, 1)
    with Postbox(file, agent="worker", start=False) as box, closing(CallRecords(file)) as other:
        assert box._db.in_flight.enter("1.2.3.4/parent", "call", 1000) is not None
        if (child := os.fork()) == 0:
            box._db.in_flight.leave("1.2.3.4/parent")
            os._exit(0 if box._db.in_flight.handle < 0 else 1)

        assert 0 == os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        assert [True] == [each.lives for each in other._records()]


def test_claims_do_not_each_ask_whether_a_process_lives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    The system is asked once in a while: it takes as long as a claim, while writers wait.

    A process that frees its lock without its record has died, whenever it was asked for last.
    """
    file, asked = stored(tmp_path, 1), list[str]()
    monkeypatch.setattr(in_flight, "is_dead", asked.append)
    monkeypatch.setattr(in_flight, "ALIVE_FOR", 60.0)
    with Postbox(file, agent="worker", start=False) as box, closing(CallRecords(file)) as other:
        box._db.in_flight.enter(file_checks.owner_name(), "reader", 1000)
        owner = file_checks.owner_name()
        other.enter(owner, "call", 1000)
        for _ in range(5):
            box._db.write(recovery.take_over)

        assert [owner] == asked
        other.abandon()
        assert [owner] == [each.owner for each in box._db.in_flight.dead()]
        assert [owner] == asked
