"""Parcels to the process that runs a worker: two processes, killed and stopped at each step."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.children import PYTHON, Child
from tests.waiting import until

from onceward import Postbox
from onceward.file import open_files
from onceward.file.backup import copy_file
from onceward.file.file_checks import file_key
from onceward.file.notify import folder_of
from onceward.message.parcel import Answer, Parcel
from onceward.transports import worker_connections, worker_wire
from onceward.transports.worker_connections import WorkerConnections, connections

WORKER = """
import os, signal, sys
from onceward import Agent, Context, Postbox
from onceward.transports import worker_socket, worker_wire
{plant}
agent = Agent("billing")

@agent.on("json")
def work(n: int, ctx: Context) -> None:
    ctx.tx.execute("INSERT INTO effects VALUES (?, ?)", (ctx.message.id, n))

with Postbox(sys.argv[1], agent=agent) as box:
    print("ready", flush=True)
    sys.stdin.readline()
"""
DIES_BEFORE_THE_COMMIT = """
worker_socket.decode_parcel = lambda text: os.kill(os.getpid(), signal.SIGKILL)
"""
DIES_AFTER_THE_COMMIT = """
worker_socket.encode_answer = lambda answer: os.kill(os.getpid(), signal.SIGKILL)
"""
ANSWERS_BEFORE_THE_COMMIT = """
from onceward.message.parcel import Answer, Receipt

def hasty(self, connection, served, request):
    number = worker_wire.REQUEST.unpack_from(request)[2]
    found = worker_socket.decode_parcel(request[worker_wire.REQUEST.size:])
    receipts = tuple(Receipt(each.id, "stored") for each in found.frames)
    told = worker_socket.encode_answer(Answer(verdict="accepted", receipts=receipts))
    connection.answer(worker_wire.ANSWER.pack(number, 0, len(told)) + told)
    os.kill(os.getpid(), signal.SIGKILL)

worker_socket.ParcelSocket._accept = hasty
"""
HANGS = """
import threading
worker_socket.decode_parcel = lambda text: threading.Event().wait()
"""
OF_ANOTHER_USER = """
worker_wire.other_end = lambda sock: (os.getpid(), os.geteuid() + 1)
"""
FORKED = """if not os.fork():
        signal.pause()
"""
SENDER = """
import os, signal, sys
from onceward import Postbox
from onceward.transports.worker_connections import WorkerConnection

def die(self, size):
    os.kill(os.getpid(), signal.SIGKILL)

with Postbox(sys.argv[1], agent="shop", start=False) as box:
    print(box.send("billing", 1), flush=True)
    WorkerConnection._read = die
    box.run_until_idle()
"""
QUIET = ("-W", "ignore::DeprecationWarning")
"""Python 3.12 warns of a fork beside other threads."""
FORKS = """
import os, sys
from onceward import Postbox

def send(agent, n):
    with Postbox(sys.argv[1] + f"/{agent}.db", agent=agent) as box:
        box.send("billing", n)
        assert 0 == box.flush(30)
        return box

box = Postbox(sys.argv[1] + "/shop.db", agent="shop")
box.send("billing", 1)
assert 0 == box.flush(30)
child = os.fork()
if not child:
    send("stall", 2)
    os._exit(0)
assert 0 == os.waitpid(child, 0)[1]
box.send("billing", 3)
assert 0 == box.flush(30)
box.close()
"""
Pushed = list[tuple[Parcel, Answer | None]]


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    """Return a folder with an agent that notes effects; its file is checked afterwards."""
    with Postbox(tmp_path / "billing.db", agent="billing", start=False) as box, box.begin() as tx:
        tx.execute("CREATE TABLE effects (id, n)")
    yield tmp_path
    with Postbox(tmp_path / "billing.db", start=False) as box:
        assert [] == box.file.check()
        assert 0 == box.file.stats()["forks"]


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait for workers as long as a slow machine needs."""
    monkeypatch.setattr(worker_connections, "PATIENCE", 60.0)


@pytest.fixture
def pushed(monkeypatch: pytest.MonkeyPatch) -> Pushed:
    """Return the parcels with messages that this process pushes to workers, with the answers."""
    found: Pushed = []
    push = connections.push
    connections.close_idle()
    monkeypatch.setattr(connections, "_known", {})
    monkeypatch.setattr(connections, "_processes", {})

    def noted(key: Any, parcel: Parcel, patience: float) -> Answer | None:
        answer = push(key, parcel, patience)
        if parcel.frames:
            found.append((parcel, answer))
        return answer

    monkeypatch.setattr(connections, "push", noted)
    return found


@contextmanager
def worker(home: Path, plant: str = "") -> Iterator[Child]:
    """Run a process that handles the messages of billing."""
    program = WORKER.format(plant=plant)
    with Child([*PYTHON, "-c", program, home / "billing.db"], "stdin", "stdout") as child:
        assert "ready" == child.hear()
        yield child


def shop_of(home: Path) -> Postbox:
    """Open the sender, which tries again soon."""
    return Postbox(
        home / "shop.db",
        agent="shop",
        delivery_retry="0.05s..0.2s ±0%",
        lease=2.0,
        deliver_timeout=120.0,
    )


def effects(home: Path) -> list[int]:
    """Return the numbers that were handled, in order."""
    with Postbox(home / "billing.db", start=False) as box:
        return [n for (n,) in box.query("SELECT n FROM effects ORDER BY rowid")]


def acked(box: Postbox, message_id: str) -> bool:
    """Return whether the recipient has told that it handled a message."""
    return box.state(message_id) == "acked"


def send(box: Postbox, *numbers: int) -> None:
    """Send messages, each once the one before was handled."""
    for n in numbers:
        sent = box.send("billing", n)
        until(partial(acked, box, sent))


def stop(child: Child) -> None:
    """Stop all threads of a process."""
    child.send_signal(signal.SIGSTOP)
    threads = [*Path(f"/proc/{child.pid}/task").iterdir()]
    until(lambda: all(") T " in (each / "stat").read_text() for each in threads))


def through(pushed: Pushed) -> list[bool]:
    """Return for each push whether it was answered."""
    return [answer is not None for _, answer in pushed]


def test_the_process_of_the_worker_commits_what_arrives(home: Path, pushed: Pushed) -> None:
    """The sender's process makes no commit in the recipient's file, and does not even open it."""
    with worker(home) as child, shop_of(home) as shop:
        for n in range(5):
            send(shop, n)
            assert not open_files.finds(home / "billing.db")
        child.tell()
        child.code()

    assert [True] * 5 == through(pushed)
    assert [*range(5)] == effects(home)


@pytest.mark.parametrize("plant", [DIES_BEFORE_THE_COMMIT, DIES_AFTER_THE_COMMIT])
def test_a_worker_that_is_killed_leaves_the_message_to_the_file(
    home: Path, pushed: Pushed, plant: str
) -> None:
    """A kill before or after its commit is a lost answer: the message takes effect once."""
    with worker(home, plant) as dying, shop_of(home) as shop:
        sent = shop.send("billing", 1)
        dying.wait(60)
        until(lambda: shop.state(sent) == "sent")
        with worker(home):
            until(partial(acked, shop, sent))

    assert [False] == through(pushed)
    assert [1] == effects(home)


@pytest.mark.broken("the planted mistake loses a message")
def test_an_answer_before_the_commit_is_found(home: Path, pushed: Pushed) -> None:
    """The planted mistake loses a message that its sender believes to be stored."""
    with worker(home, ANSWERS_BEFORE_THE_COMMIT) as dying, shop_of(home) as shop:
        sent = shop.send("billing", 1)
        dying.wait(60)
        until(lambda: shop.state(sent) == "sent")

    assert [True] == through(pushed)
    with Postbox(home / "billing.db", start=False) as billing:
        assert [] == billing.query("SELECT id FROM onceward_inbox")


def test_a_stopped_worker_holds_no_sender(home: Path, pushed: Pushed) -> None:
    """Its messages are stored in the file meanwhile; the late parcel has no effect and no fork."""
    with worker(home) as child, shop_of(home) as shop:
        send(shop, 1)
        stop(child)
        late = [shop.send("billing", n) for n in (2, 3)]
        until(lambda: all(shop.state(each) == "sent" for each in late))
        child.send_signal(signal.SIGCONT)
        until(lambda: all(shop.state(each) == "acked" for each in late))
        send(shop, 4)

    assert [True, False] == through(pushed)[:2]
    assert [1, 2, 3, 4] == effects(home)


def test_a_busy_worker_is_waited_for_until_the_patience_ends(
    home: Path, pushed: Pushed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that is not stopped, and does not answer, leaves the message to the file."""
    monkeypatch.setattr(worker_connections, "PATIENCE", 0.05)
    with worker(home, HANGS), shop_of(home) as shop:
        send(shop, 1)

    assert [False] == through(pushed)
    assert [1] == effects(home)


def test_a_sender_that_is_killed_pushes_the_parcel_again(home: Path) -> None:
    """The worker has handled the parcel whose answer the sender did not live to read."""
    with worker(home):
        with Child([*PYTHON, "-c", SENDER, home / "shop.db"], "stdout") as dying:
            sent = dying.hear()
            dying.wait(60)
        assert -signal.SIGKILL == dying.returncode
        with shop_of(home) as shop:
            until(partial(acked, shop, sent))

    assert [1] == effects(home)


def test_a_part_of_a_parcel_is_dropped(home: Path, pushed: Pushed) -> None:
    """A sender that dies while it writes leaves nothing, and holds no other one."""
    with worker(home), shop_of(home) as shop:
        send(shop, 1)
        [process] = connections._processes.values()
        dying = worker_connections.WorkerConnection(process.address)
        dying._socket.sendall(worker_wire.REQUEST.pack(worker_wire.MARK, 100, 1, 0, 0))
        send(shop, 2)
        dying.close()
        send(shop, 3)

    assert [True] * 3 == through(pushed)
    assert [1, 2, 3] == effects(home)


def test_a_removed_socket_means_the_file(home: Path, pushed: Pushed) -> None:
    """Without its name in the folder a new sender writes into the file."""
    with worker(home) as child, shop_of(home) as shop:
        for name in names(home):
            name.unlink()
        send(shop, 1)
        child.tell()
        child.code()

    assert [False] == through(pushed)
    assert [1] == effects(home)


def test_the_names_of_a_dead_worker_are_removed(home: Path, pushed: Pushed) -> None:
    """The sender that finds them uses the file, and the next worker is found."""
    with worker(home) as child:
        child.kill()
        child.wait()
    stale = names(home)
    with shop_of(home) as shop:
        sent = shop.send("billing", 1)
        until(lambda: shop.state(sent) == "sent")
        left = names(home)
        with worker(home):
            until(partial(acked, shop, sent))
            connections._known.clear()
            send(shop, 2)

    assert 2 == len(stale)
    assert [] == left
    assert [False, True] == through(pushed)
    assert [1, 2] == effects(home)


def test_a_child_of_a_dead_worker_does_not_keep_its_socket(home: Path, pushed: Pushed) -> None:
    """A sender learns at once that the parent has ended, although a forked child lives."""
    program = WORKER.format(plant="").replace('print("ready"', FORKED + '    print("ready"')
    with (
        Child([*PYTHON, "-c", program, home / "billing.db"], "stdin", "stdout") as parent,
        shop_of(home) as shop,
    ):
        assert "ready" == parent.hear()
        send(shop, 1)
        parent.kill()
        parent.wait()
        sent = [shop.send("billing", n) for n in (2, 3)]
        until(lambda: all(shop.state(each) == "sent" for each in sent))
        # a sender that finds it dead removes the link; it looks later if the first push was slow
        until(lambda: not names(home) or not shop.send("billing", 4))

    assert [True, False] == through(pushed)[:2]


def test_a_worker_that_ends_removes_its_link(home: Path) -> None:
    """Its socket goes with the process."""
    with worker(home) as child:
        during = names(home)
        child.tell()
        child.code()

    assert (2, []) == (len(during), names(home))


@pytest.mark.parametrize("other", [(0, 1), (1, 0)], ids=["another user", "another container"])
def test_a_socket_of_another_user_or_container_is_not_used(
    home: Path, pushed: Pushed, monkeypatch: pytest.MonkeyPatch, other: tuple[int, int]
) -> None:
    """The sender compares user and process at the other end before it sends anything."""
    end = worker_wire.other_end

    def foreign(sock: Any) -> tuple[int, int]:
        pid, user = end(sock)
        return pid + other[0], user + other[1]

    monkeypatch.setattr(worker_wire, "other_end", foreign)
    with worker(home), shop_of(home) as shop:
        send(shop, 1)

    assert [False] == through(pushed)
    assert [1] == effects(home)


def test_a_sender_of_another_user_is_not_heard(home: Path, pushed: Pushed) -> None:
    """The worker's process ends its connection, so it uses the file as far as it may."""
    with worker(home, OF_ANOTHER_USER), shop_of(home) as shop:
        send(shop, 1)

    assert [False] == through(pushed)
    assert [1] == effects(home)


def test_a_parcel_for_a_replaced_file_is_not_accepted(home: Path, pushed: Pushed) -> None:
    """The worker still has the old file: the new one at the path gets the message."""
    with worker(home), shop_of(home) as shop:
        send(shop, 1)
        copy_file(home / "billing.db", home / "new.db")
        for name in home.glob("billing.db*"):
            name.rename(name.with_name(name.name.replace("billing", "old")))
        (home / "new.db").rename(home / "billing.db")
        sent = shop.send("billing", 2)
        until(lambda: shop.state(sent) == "sent")
        with Postbox(home / "billing.db", start=False) as new:
            stored = new.query("SELECT id FROM onceward_inbox WHERE state = 'pending'")
    for name in home.glob("old.db*"):
        name.unlink()

    assert [True, False] == through(pushed)
    assert [(sent,)] == stored


def test_many_senders_at_once(home: Path) -> None:
    """Four agents of this process push to one worker: each message takes effect once."""
    names = ("a", "b", "c", "d")
    with worker(home):
        boxes = [Postbox(home / f"{name}.db", agent=name) for name in names]
        for n in range(25):
            for box in boxes:
                box.send("billing", n)
        for box in boxes:
            until(lambda box=box: box.file.stats()["acked"] == 25)  # type: ignore[misc]
            box.close()

    assert sorted([*range(25)] * 4) == sorted(effects(home))


def test_a_forked_child_has_its_own_connection(home: Path) -> None:
    """Parent and child send after a fork, each through its own connection."""
    with worker(home), Child([*PYTHON, *QUIET, "-c", FORKS, home], "stdout", "stderr") as sender:
        _, said = sender.ended()
        assert (0, "") == (sender.returncode, said)
        until(lambda: len(effects(home)) == 3)

    assert [1, 2, 3] == sorted(effects(home))


def test_a_postbox_that_is_opened_again_is_found_again(home: Path, pushed: Pushed) -> None:
    """A process without the file tells the sender so; a new opening is found at the next look."""
    program = WORKER.format(plant="").replace("    sys.stdin.readline()", "    pass")
    again = "sys.stdin.readline()\nwith Postbox(sys.argv[1], agent=agent) as box:"
    again += '\n    print("ready", flush=True)\n    sys.stdin.readline()'
    with (
        Child([*PYTHON, "-c", program + again, home / "billing.db"], "stdin", "stdout") as child,
        shop_of(home) as shop,
    ):
        assert "ready" == child.hear()
        until(lambda: not links(home))
        sent = shop.send("billing", 1)
        until(lambda: shop.state(sent) == "sent")
        child.tell()
        assert "ready" == child.hear()
        until(partial(acked, shop, sent))
        connections._known.clear()
        send(shop, 2)

    assert [False, True] == through(pushed)
    assert [1, 2] == effects(home)


def test_an_interrupted_push_is_not_answered_by_the_next_one(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its connection is closed: the answer that still comes is not for the next parcel."""
    read, there = worker_connections.WorkerConnection._read, WorkerConnections()

    def interrupted(self: worker_connections.WorkerConnection, size: int) -> bytes:
        del self, size
        raise KeyboardInterrupt

    with worker(home), shop_of(home) as shop, monkeypatch.context() as patch:
        send(shop, 1)
        parcel = Parcel(sender="stall", recipient="billing", epoch="e", number=1, previous="")
        patch.setattr(worker_connections.WorkerConnection, "_read", interrupted)
        with pytest.raises(KeyboardInterrupt):
            there.push(key_of(home), parcel, 60.0)
        idle = [each for some in there._processes.values() for each in some.idle]
        patch.setattr(worker_connections.WorkerConnection, "_read", read)
        answer = there.push(key_of(home), parcel, 60.0)
        there.close_idle()

    assert [] == idle
    assert answer is not None
    assert "accepted" == answer.verdict


def key_of(home: Path) -> tuple[int, int]:
    """Return device and inode of the recipient's file."""
    key = file_key(home / "billing.db")
    assert key is not None
    return key


def links(home: Path) -> list[Path]:
    """Return the links of the processes with workers of billing."""
    folder = folder_of(key_of(home))
    assert folder is not None
    return [*folder.glob(f"*{worker_wire.LINK}")]


def names(home: Path) -> list[Path]:
    """Return these links, and the sockets behind them."""
    return [
        name for link in links(home) for name in (link.resolve(), link) if os.path.lexists(name)
    ]
