"""Open files of a sender: a share of what the process may open, for any number of recipients."""

from __future__ import annotations

import errno
import json
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.children import PYTHON, run
from tests.proof.seed import size

from onceward import Postbox
from onceward.errors import OutOfDescriptors
from onceward.file import descriptors
from onceward.file.file_checks import DESCRIPTORS, file_key
from onceward.transports import file
from onceward.transports.file import FileSlots, Opened, Slot

resource = pytest.importorskip("resource")

FLEET = """
import json, os, resource, sys
from pathlib import Path
from threading import Event, Thread
from onceward import Postbox

folder, count, rounds = Path(sys.argv[1]), int(sys.argv[2]), 3
for n in range(count):
    Postbox(folder / f"r{n}.db", agent=f"r{n}", start=False, durability="fast").close()
resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
over, refused, most = Event(), [], [0]

def application():
    while not over.wait(0.005):
        try:
            held = [open(os.devnull) for _ in range(60)]
        except OSError as error:
            refused.append(str(error))
        else:
            most[0] = max(most[0], held[-1].fileno())
            for each in held:
                each.close()

thread = Thread(target=application)
thread.start()
left = []
with Postbox(folder / "sender.db", agent="sender", durability="fast", ack="stored") as box:
    for turn in range(rounds):
        box.send_many([(f"r{n}", turn) for n in range(count)])
        left.append(box.flush(timeout=900))
    over.set()
    thread.join()
    peers = box.peers.list()
    told = {
        "left": left, "refused": refused[:3], "acked": box.file.stats()["acked"],
        "failed": [p.last_error for p in peers if p.failures or p.breaker != "closed"][:3],
    }
print(json.dumps(told))
"""


def fleet(folder: Path, count: int) -> dict[str, Any]:
    """Send three rounds to *count* recipients from a process of 256 descriptors."""
    made = run([*PYTHON, "-c", FLEET, folder, count], check=False)
    for path in folder.glob("r*.db*"):  # thousands of files are not looked at once more
        path.unlink()
    assert 0 == made.returncode, made.stderr[-2000:]
    told: dict[str, Any] = json.loads(made.stdout)
    return told


def test_more_recipients_than_descriptors(tmp_path: Path) -> None:
    """With 256 descriptors 100 recipients get three rounds, and the application its files."""
    assert {"left": [0, 0, 0], "refused": [], "acked": 300, "failed": []} == fleet(tmp_path, 100)


@pytest.mark.proof
def test_two_thousand_recipients(tmp_path: Path) -> None:
    """With 256 descriptors 2,000 recipients get three rounds, and the application its files."""
    many = size(2000, 300)

    expected = {"left": [0, 0, 0], "refused": [], "acked": 3 * many, "failed": []}
    assert expected == fleet(tmp_path, many)


def test_a_recipient_costs_three_descriptors(tmp_path: Path) -> None:
    """A file that is delivered to is open once: database, WAL and shared memory."""
    names = [f"r{n}" for n in range(4)]
    for name in names:
        Postbox(tmp_path / f"{name}.db", agent=name, start=False).close()
    with Postbox(tmp_path / "s.db", agent="s", start=False) as box:
        box.send_many([(name, 1) for name in names])
        box.run_until_idle()
        table = descriptors.DescriptorTable()
        table.holder(tmp_path / "s.db")
        held = [
            len(table._scan.held[key]) if (key := file_key(f"{tmp_path}/{name}.db{side}")) else 0
            for name in names
            for side in descriptors.SIDE_FILES
        ]

    assert [1] * len(names) * DESCRIPTORS == held


def test_a_process_without_descriptors_blames_no_peer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that cannot be opened for lack of descriptors is tried again; no failure is booked."""
    Postbox(tmp_path / "r.db", agent="r", start=False).close()
    with Postbox(tmp_path / "s.db", agent="s", start=False) as box:
        box.send("r", 1)
        with monkeypatch.context() as patched:
            patched.setattr(file, "descriptors_left", lambda: False)
            patched.setattr(box._routes._transports["file"], "_open_file", _no_descriptor)
            box.run_until_idle()
        peer = box.peers.get("r")
        told = (0, "closed") if peer is None else (peer.failures, peer.breaker, peer.last_error)

    assert (0, "closed") == told[:2]
    assert "OutOfDescriptors" in str(told[2:])


def test_idle_files_are_closed_for_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """At the limit a file is closed that was used once and is idle, never one in use."""
    monkeypatch.setattr(file, "files_allowed", lambda: 2)
    closed: list[str] = []
    slots = FileSlots()

    def lend(name: str) -> Slot:
        return slots.lend((slots, name), lambda: Opened(_never, lambda: closed.append(name)))

    a = lend("a")
    slots.give_back(lend("b"))
    slots.give_back(lend("c"))
    first = list(closed)
    slots.give_back(a)
    slots.give_back(lend("a"))
    slots.give_back(lend("d"))

    assert (["b"], ["b", "c"]) == (first, closed)


def _used_in_turn(names: str) -> str:
    """Use files one after the other, two open at most; return those closed, in their order."""
    closed: list[str] = []
    slots = FileSlots()
    for name in names:
        opened = Opened(_never, partial(closed.append, name))
        slots.give_back(slots.lend((slots, name), partial(Opened, *opened)))
    return "".join(closed)


def test_files_used_in_turns_do_not_all_close_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of more files than may be open, used round after round, only the newest makes room."""
    monkeypatch.setattr(file, "files_allowed", lambda: 2)

    assert "bcdbc" == _used_in_turn("abcdabcda")


def test_a_file_that_comes_again_soon_stays_open(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that was closed, and used later than one that is open, takes its place."""
    monkeypatch.setattr(file, "files_allowed", lambda: 2)

    assert "ba" == _used_in_turn("aabcbcbc")


def test_files_that_have_been_idle_are_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond the files that are always kept, each that was idle for a minute is closed."""
    monkeypatch.setattr(file, "KEPT", 1)
    closed: list[str] = []
    slots = FileSlots()

    def lend(name: str) -> Slot:
        return slots.lend((slots, name), lambda: Opened(_never, lambda: closed.append(name)))

    for name in "abcd":
        slots.give_back(lend(name))
    lend("a")
    slots.give_back(lend("b"))
    later = time.monotonic() + file.IDLE
    before = slots.close_idle(later - 2 * file.IDLE)
    count = slots.close_idle(later)

    assert (0, 2, ["c", "d"]) == (before, count, closed)
    assert ["a", "b"] == slots.paths(slots)


def test_a_file_is_opened_after_all_idle_ones_are_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """An opening that fails for lack of descriptors is repeated once others are closed."""
    closed = list[str]()
    monkeypatch.setattr(file, "descriptors_left", lambda: bool(closed))
    slots = FileSlots()
    slots.give_back(slots.lend((slots, "a"), lambda: Opened(_never, lambda: closed.append("a"))))

    def opened() -> Opened:
        if not closed:
            raise OSError(errno.EMFILE, "too many open files")
        return Opened(_never, lambda: None)

    slots.give_back(slots.lend((slots, "b"), opened))

    assert (["a"], ["b"]) == (closed, slots.paths(slots))


def test_a_file_that_is_forgotten_in_use_is_closed_by_its_last_user() -> None:
    """An error of one delivery closes a file only when no other delivery uses it."""
    closed = list[str]()
    slots = FileSlots()
    key = (slots, "a")
    slot = slots.lend(key, lambda: Opened(_never, lambda: closed.append("a")))
    slots.forget(key)
    before = list(closed)
    slots.give_back(slot)

    assert ([], ["a"]) == (before, closed)


def test_files_in_use_are_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where all files stay in use, the next one is refused for now."""
    monkeypatch.setattr(file, "files_allowed", lambda: 1)
    monkeypatch.setattr(file, "WAIT", 0.0)
    slots = FileSlots()
    slots.lend((slots, "a"), lambda: Opened(_never, lambda: None))

    with pytest.raises(OutOfDescriptors, match="1 files are open and in use"):
        slots.lend((slots, "b"), lambda: Opened(_never, lambda: None))


def _never(_: Any) -> Any:
    raise AssertionError


def _no_descriptor(*_: Any) -> Any:
    raise OSError(errno.EMFILE, "too many open files")
