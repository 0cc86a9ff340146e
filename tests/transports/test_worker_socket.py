"""The socket for parcels inside one process: its contract, its limits, and bad requests."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest
from tests.waiting import until

from onceward import Agent, Postbox
from onceward.core.run.threads import engine_threads
from onceward.file.database import Database
from onceward.file.file_checks import file_key
from onceward.file.notify import folder_of
from onceward.message.parcel import Answer, Parcel, ParcelFrame, Receipt
from onceward.transports import worker_connections, worker_socket, worker_wire
from onceward.transports.worker_connections import (
    WorkerConnection,
    WorkerConnections,
    WorkerProcess,
)

PATIENCE = 60.0
Key = tuple[int, int]


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait as long as a slow machine needs."""
    monkeypatch.setattr(worker_connections, "PATIENCE", PATIENCE)


@pytest.fixture
def box(tmp_path: Path) -> Iterator[Postbox]:
    """Return a postbox with a worker, which other processes reach by the socket."""
    agent = Agent("billing")
    agent.on("json")(lambda _: None)
    with Postbox(tmp_path / "billing.db", agent=agent) as opened:
        yield opened


@pytest.fixture
def processes() -> Iterator[Callable[[], WorkerConnections]]:
    """Return a function that makes the connections of a process that has not sent anything yet."""
    made = list[WorkerConnections]()

    def make() -> WorkerConnections:
        made.append(WorkerConnections())
        return made[-1]

    yield make
    for each in made:
        each.close_idle()


@pytest.fixture
def there(processes: Callable[[], WorkerConnections]) -> WorkerConnections:
    """Return the connections of a process that has not sent anything yet."""
    return processes()


def key_of(box: Postbox) -> Key:
    """Return device and inode of a postbox's file."""
    key = file_key(box.file.path)
    assert key is not None
    return key


def parcel(number: int = 1, *, recipient: str = "billing", frames: int = 0) -> Parcel:
    """Return a parcel with frames that no recipient takes, or without any."""
    texts = tuple(ParcelFrame(f"{number}.{n}", "x", b"") for n in range(frames))
    return Parcel(
        sender="shop", recipient=recipient, epoch="e", number=number, previous="", frames=texts
    )


def served(db: Database) -> worker_socket.ParcelSocket:
    """Return the socket of this process that serves a file."""
    [found] = [
        each
        for each in worker_socket._sockets.values()
        if any(served.db is db for served in each._served.values())
    ]
    return found


def address(box: Postbox) -> str:
    """Return the address of the socket that serves a postbox."""
    return str(served(box._db).path)


def test_a_parcel_and_its_answer_keep_every_field() -> None:
    """What is decoded equals what was encoded."""
    whole = Parcel(
        sender="shop",
        recipient="billing",
        epoch="e",
        number=2**60,
        previous="p",
        frames=(ParcelFrame("1", 'a "b" é\n', b"\0\xff"), ParcelFrame("2", "", b"", True)),
        receipts=(Receipt("3", "processed"), Receipt("4", "dead", "why")),
        durability="fast",
        base_position=("b", 1),
        unsettled=("5", "6"),
        stream_position=("s", 2),
    )
    answer = Answer(
        verdict="fork",
        receipts=whole.receipts,
        durability="fast",
        epoch="e",
        number=3,
        retry_after=4,
    )

    assert whole == worker_wire.decode_parcel(worker_wire.encode_parcel(whole))
    assert answer == worker_wire.decode_answer(worker_wire.encode_answer(answer))


def test_text_that_is_not_unicode_goes_into_the_file(
    box: Postbox, there: WorkerConnections
) -> None:
    """A parcel that cannot be encoded is not pushed; the next one is."""
    assert there.push(key_of(box), parcel(recipient="\udc80"), PATIENCE) is None
    there._known.clear()
    assert there.push(key_of(box), parcel(), PATIENCE) is not None


@pytest.mark.parametrize("many", ["frames", "bytes"])
def test_a_large_parcel_goes_into_the_file(
    box: Postbox, there: WorkerConnections, monkeypatch: pytest.MonkeyPatch, many: str
) -> None:
    """One with many messages, or with more bytes than a socket takes, is not pushed."""
    asked = list[object]()
    monkeypatch.setattr(WorkerConnection, "ask", lambda *given: asked.append(given))
    large = parcel(frames=worker_connections.FEW + 1)
    if many == "bytes":
        large = parcel(recipient="x" * worker_wire.LONGEST)

    assert there.push(key_of(box), large, PATIENCE) is None
    assert [] == asked


def test_a_parcel_for_another_agent_goes_into_the_file(
    box: Postbox, there: WorkerConnections
) -> None:
    """There it is refused with its reason; the connection takes the next parcel."""
    assert there.push(key_of(box), parcel(recipient="other"), PATIENCE) is None
    assert there.push(key_of(box), parcel(), PATIENCE) is not None
    assert [1] == [len(each.idle) for each in there._processes.values()]


def test_a_process_without_a_worker_of_the_file_says_so(
    box: Postbox, there: WorkerConnections, tmp_path: Path
) -> None:
    """It accepts nothing for it, and the sender looks for another process later."""
    device, inode = key_of(box)
    process = there._processes[""] = WorkerProcess(address(box))
    there._known[device, inode + 1] = process, 0.0
    with Postbox(tmp_path / "idle.db", agent="idle") as idle:
        there._known[key_of(idle)] = process, 0.0

        assert there.push((device, inode + 1), parcel(), PATIENCE) is None
        assert there.push(key_of(idle), parcel(recipient="idle"), PATIENCE) is None
        assert there._known[device, inode + 1][0] is None
        assert there._known[key_of(idle)][0] is None


def test_no_connection_is_made_while_no_worker_is_found(
    tmp_path: Path, there: WorkerConnections, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder of the file is read once in a while, not for each parcel."""
    looked = list[Any]()

    def noted(key: Key) -> Path | None:
        looked.append(key)
        return folder_of(key)

    monkeypatch.setattr(worker_connections, "LOOK_EVERY", 1e9)
    monkeypatch.setattr(worker_connections, "folder_of", noted)
    with Postbox(tmp_path / "idle.db", agent="idle") as idle:
        for n in range(5):
            assert there.push(key_of(idle), parcel(n, recipient="idle"), PATIENCE) is None

    assert 1 == len(looked)


@pytest.mark.parametrize("limit", ["AT_ONCE", "AT_ONCE_PER_FILE"])
def test_too_many_parcels_at_once_go_into_the_file(
    box: Postbox,
    processes: Callable[[], WorkerConnections],
    monkeypatch: pytest.MonkeyPatch,
    limit: str,
) -> None:
    """A parcel beyond the limit is refused at once, while the accepted one takes its time."""
    monkeypatch.setattr(worker_socket, limit, 1)
    go_on = Event()

    def wait(text: bytes) -> Parcel:
        go_on.wait(PATIENCE)
        return worker_wire.decode_parcel(text)

    monkeypatch.setattr(worker_socket, "decode_parcel", wait)
    there, answers = processes(), list[Answer | None]()
    slow = Thread(target=lambda: answers.append(there.push(key_of(box), parcel(), PATIENCE)))
    slow.start()
    until(lambda: served(box._db)._calls == 1)
    refused = processes().push(key_of(box), parcel(), PATIENCE)
    go_on.set()
    slow.join()

    assert refused is None
    assert [True] == [answer is not None for answer in answers]


def test_too_many_connections_are_ended(
    box: Postbox, processes: Callable[[], WorkerConnections], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One beyond the limit is closed by the process of the worker, and its sender uses the file."""
    there = processes()
    assert there.push(key_of(box), parcel(), PATIENCE) is not None
    monkeypatch.setattr(worker_socket, "CONNECTIONS", 1)

    assert processes().push(key_of(box), parcel(), PATIENCE) is None
    assert there.push(key_of(box), parcel(), PATIENCE) is not None


def test_a_process_without_descriptors_ends_the_connection(
    box: Postbox, there: WorkerConnections, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It does not leave the sender in its queue, and takes the next one when it can."""
    listening = served(box._db)
    monkeypatch.setattr(worker_connections, "REST", 0.0)

    class Full(socket.socket):
        left = 1

        def accept(self) -> tuple[socket.socket, Any]:
            Full.left -= 1
            if Full.left == 0:
                raise OSError(errno.EMFILE, "no descriptor is left")
            return super().accept()

    full = Full(fileno=os.dup(listening._socket.fileno()))
    full.setblocking(False)
    with full, monkeypatch.context() as patch:
        patch.setattr(listening, "_socket", full)
        assert there.push(key_of(box), parcel(), PATIENCE) is None
        there._known.clear()
        assert there.push(key_of(box), parcel(), PATIENCE) is not None


@pytest.mark.parametrize(
    "request_",
    [
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n" + b" " * worker_wire.REQUEST.size,
        worker_wire.REQUEST.pack(b"owp0", 0, 1, 0, 0),
        worker_wire.REQUEST.pack(worker_wire.MARK, worker_wire.LONGEST + 1, 1, 0, 0),
        worker_wire.REQUEST.pack(worker_wire.MARK, 0, 1, 0, 0) + b"x",
    ],
    ids=["another protocol", "another version", "too long", "longer than it says"],
)
def test_a_bad_request_ends_its_connection(
    box: Postbox, there: WorkerConnections, request_: bytes
) -> None:
    """Nothing is answered, and others are served."""
    with socket.socket(socket.AF_UNIX) as bad:
        bad.settimeout(PATIENCE)
        bad.connect(address(box))
        bad.sendall(request_)
        try:
            said = bad.recv(1)
        except ConnectionResetError:
            said = b""

    assert b"" == said
    assert there.push(key_of(box), parcel(), PATIENCE) is not None


def test_a_thread_that_finds_a_parcel_read_by_another_one_changes_nothing() -> None:
    """Two threads may be told of the same bytes; the sender gets its answer."""
    ours, theirs = socket.socketpair()
    with ours:
        theirs.setblocking(False)
        taken = list[bytes]()
        connection = worker_socket.SenderConnection(theirs, lambda _, found: taken.append(found))
        ours.sendall(worker_wire.REQUEST.pack(worker_wire.MARK, 0, 1, 0, 0))
        connection.hear()
        connection.hear()
        connection.answer(b"x")
        said = ours.recv(1)
        ours.close()
        connection.hear()

    assert (1, b"x") == (len(taken), said)


@pytest.mark.parametrize("text", [b"", b"{}", b"[1]", b'{"a": [}', b"\xff"])
def test_a_parcel_of_another_form_is_refused(box: Postbox, text: bytes) -> None:
    """The connection survives it."""
    connection = WorkerConnection(address(box))
    outcome, told = connection.ask(key_of(box), text, PATIENCE)
    again = connection.ask(key_of(box), worker_wire.encode_parcel(parcel()), PATIENCE)
    connection.close()

    assert (worker_wire.REFUSED, b"") == (outcome, told)
    assert worker_wire.ACCEPTED == again[0]


@pytest.mark.parametrize(
    "said",
    [
        lambda number: worker_wire.ANSWER.pack(number + 1, 0, 0),
        lambda number: worker_wire.ANSWER.pack(number, 0, worker_wire.LONGEST + 1),
        lambda number: worker_wire.ANSWER.pack(number, 0, 2) + b"[]",
        lambda _: b"",
        lambda _: b"\0",
    ],
    ids=["of another request", "too long", "not an answer", "none", "a part of one"],
)
def test_a_bad_answer_means_the_file(
    there: WorkerConnections,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    said: Callable[[int], bytes],
) -> None:
    """The connection is not used again."""
    monkeypatch.chdir(tmp_path)  # a short name
    path = f"{os.getpid()}-0{worker_wire.LINK}"
    with ExitStack() as stack, socket.socket(socket.AF_UNIX) as listening:
        listening.bind(path)
        listening.listen()
        process = WorkerProcess(path)
        there._known[1, 2] = process, 0.0

        def answer() -> None:
            taken = stack.enter_context(listening.accept()[0])
            number = worker_wire.REQUEST.unpack_from(taken.recv(1 << 16))[2]
            taken.sendall(said(number))
            taken.close()

        other = Thread(target=answer)
        other.start()
        assert there.push((1, 2), parcel(), PATIENCE) is None
        other.join()

    assert [] == process.idle


def test_a_closed_postbox_is_not_served(tmp_path: Path, there: WorkerConnections) -> None:
    """Closing waits for the parcel that is accepted, and removes the link."""
    agent = Agent("billing")
    agent.on("json")(lambda _: None)
    with Postbox(tmp_path / "billing.db", agent=agent) as box:
        key, served_by = key_of(box), served(box._db)
        assert there.push(key, parcel(), PATIENCE) is not None
    told = there.push(key, parcel(), PATIENCE)
    folder = folder_of(key)
    assert folder is not None

    assert told is None
    assert key not in served_by._served
    assert [] == [*folder.glob(f"*{worker_wire.LINK}")]


def test_two_openings_of_one_file_are_served_until_both_are_closed(
    box: Postbox, there: WorkerConnections
) -> None:
    """The file stays served by the other one."""
    agent = Agent("billing")
    agent.on("json")(lambda _: None)
    with Postbox(box.file.path, agent=agent):
        pass

    assert there.push(key_of(box), parcel(), PATIENCE) is not None


def test_idle_connections_are_bounded(
    box: Postbox, there: WorkerConnections, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beyond the limit the idle ones are closed when another process is found."""
    [link] = folder_of(key_of(box)).glob(f"*{worker_wire.LINK}")  # type: ignore[union-attr]
    process = there._reach(link)
    assert process is not None
    process.idle += [process.connect(), process.connect()]
    kept = [len(process.idle)]
    monkeypatch.setattr(worker_connections, "KEPT", 0)
    there._reach(link)
    kept.append(len(process.idle))

    assert [2, 0] == kept


def test_one_process_has_few_parcels_at_once(
    box: Postbox, there: WorkerConnections, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More go into the file at once, so that a process that hangs holds few carriers."""
    monkeypatch.setattr(worker_connections, "AT_ONCE", 0)
    full = there.push(key_of(box), parcel(), PATIENCE)
    monkeypatch.setattr(worker_connections, "AT_ONCE", 1)

    assert full is None
    assert there.push(key_of(box), parcel(), PATIENCE) is not None


def test_a_process_that_did_not_answer_rests_for_all_its_files(
    box: Postbox, there: WorkerConnections, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next parcel to it is not pushed until then, whatever file it is for."""
    assert there.push(key_of(box), parcel(), PATIENCE) is not None
    [process] = there._processes.values()
    monkeypatch.setattr(worker_connections, "REST", 1e9)
    monkeypatch.setattr(WorkerConnection, "_read", _time_out)
    late = there.push(key_of(box), parcel(), 0.0)
    monkeypatch.undo()
    there._known[key_of(box)] = process, 0.0

    assert late is None
    assert there.push(key_of(box), parcel(), PATIENCE) is None


def _time_out(self: WorkerConnection, size: int) -> bytes:
    del self, size
    raise TimeoutError


def test_senders_are_spread_over_the_processes_of_a_file(
    box: Postbox, processes: Callable[[], WorkerConnections], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which process a sender finds first depends on the number of its own process."""
    found = set[str]()
    with ExitStack() as stack:
        sockets = [worker_socket.ParcelSocket(served(box._db).path.parent) for _ in range(3)]
        for n, each in enumerate(sockets):
            link = folder_of(key_of(box)) / f"{n}{worker_wire.LINK}"  # type: ignore[operator]
            link.symlink_to(each.path)
            stack.callback(link.unlink)
            stack.callback(each.path.unlink)
            stack.callback(each.close)
            stack.callback(engine_threads().files.unpoll, each)
        for number in range(4):
            monkeypatch.setattr(os, "getpid", lambda number=number: number)
            process = processes()._look(key_of(box))
            found.add("" if process is None else process.address)
        monkeypatch.undo()

    assert {str(each.path) for each in sockets} | {address(box)} == found
