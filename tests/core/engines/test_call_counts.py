"""Calls: how many functions of the library a message passes on its way, counted on a warm path."""

import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import pytest

import onceward
from onceward import Agent, Postbox
from onceward.core.handle import worker
from onceward.core.send.sender import TEMPLATES_MAX
from onceward.file import notify
from onceward.file.group_commit import ReplacedFileDetector
from onceward.message.parcel import Answer, Parcel

ROOT = str(Path(onceward.__file__).parent)
GREETING = {"number": 1}


class Calls(NamedTuple):
    """The calls of the library's own functions: in how many files, how many, and how deep."""

    files: int
    calls: int
    depth: int

    def within(self, files: int, calls: int, depth: int) -> bool:
        """Return whether no figure exceeds its limit."""
        return self.files <= files and self.calls <= calls and self.depth <= depth


def counted(work: Callable[[], object]) -> Calls:
    """Run *work* and count the library's functions that it calls, comprehensions among them."""
    files: list[str] = []
    depths, depth = [0], 0

    def note(frame: FrameType, event: str, _: Any) -> None:
        nonlocal depth
        if event in {"call", "return"} and frame.f_code.co_filename.startswith(ROOT):
            depth += 1 if event == "call" else -1
            if event == "call":
                files.append(frame.f_code.co_filename)
                depths.append(depth)

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(before)
    return Calls(len(set(files)), len(files), max(depths))


class Pair(NamedTuple):
    """A sender and a recipient whose engines run on this thread."""

    sender: Postbox
    recipient: Postbox

    def send(self) -> str:
        """Send one message without options."""
        return self.sender.session("s").send("b", GREETING)

    def settle(self) -> None:
        """Deliver and handle all that is on its way."""
        while self.sender.run_until_idle() + self.recipient.run_until_idle():
            pass


@pytest.fixture
def pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Pair]:
    """Two postboxes that have exchanged messages; their folders are quiet, as two seconds later."""
    monkeypatch.setattr(ReplacedFileDetector, "SETTLED", 0)
    monkeypatch.setattr(notify, "SETTLED", 0)
    agent = Agent("b")
    agent.on("json")(lambda _: None)
    with (
        Postbox(tmp_path / "a.db", agent="a", start=False) as sender,
        Postbox(tmp_path / "b.db", agent=agent, start=False) as recipient,
    ):
        found = Pair(sender, recipient)
        for _ in range(3):
            found.send()
            found.settle()
        yield found


def test_a_send_passes_nine_files(pair: Pair) -> None:
    """A send without options is at most 37 calls in 9 files, 7 deep, its commit included."""
    session = pair.sender.session("s")
    session.send("b", GREETING)
    found = counted(lambda: session.send("b", GREETING))

    assert found.within(9, 37, 7), found


def test_a_parcel_of_one_frame_is_accepted_in_few_calls(pair: Pair) -> None:
    """Reading, judging and storing a parcel of one frame is at most 57 calls with its commit."""
    found: list[Calls] = []
    accept = pair.recipient._receiver.accept

    def watched(parcel: Parcel) -> Answer:
        answers: list[Answer] = []
        found.append(counted(lambda: answers.append(accept(parcel))))
        return answers[0]

    pair.send()
    pair.recipient._db.add_receiver(watched)
    pair.sender._dispatcher.run_due()

    assert [True] == [each.within(11, 57, 11) for each in found], found


def test_a_delivery_is_two_commits_of_the_sender_and_one_of_the_recipient(pair: Pair) -> None:
    """Packing, pushing, accepting and settling one message is at most 158 calls."""
    pair.send()
    found = counted(pair.sender._dispatcher.run_due)

    assert found.within(29, 158, 18), found


def test_a_message_is_handled_in_half_the_calls(pair: Pair) -> None:
    """Claiming, handling and settling one message is at most 97 calls, its two commits included."""
    pair.send()
    pair.sender.run_until_idle()
    [worker] = pair.recipient._workers
    found = counted(worker.round)

    assert found.within(18, 97, 11), found
    assert 4 == pair.recipient.stats()["processed"]


def test_a_message_of_a_burst_costs_few_calls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    A further message of a burst is at most 42 calls, from its send to its receipt.

    Sending takes 8 of them, packing, accepting and settling 11, handling and telling 23.
    """
    for limit in ("QUICK", "SLOW"):  # a busy machine changes no size of a claim
        monkeypatch.setattr(worker, limit, 60.0)
    agent = Agent("b")
    agent.on("json")(lambda _: None)
    with (
        Postbox(tmp_path / "a.db", agent="a", start=False) as sender,
        Postbox(tmp_path / "b.db", agent=agent, start=False, share_commit_for=60.0) as recipient,
    ):
        bursts: list[list[int]] = []
        for count in (200, 200, 50, 150):
            bodies = [("b", GREETING)] * count
            steps: list[Callable[[], object]] = [
                partial(sender.send_many, bodies),
                sender.run_until_idle,
                recipient.run_until_idle,
            ]
            bursts.append([counted(step).calls for step in steps])
        few, many = bursts[-2:]
        each = [(more - less) / 100 for less, more in zip(few, many, strict=True)]

        assert each[0] <= 8, each
        assert each[1] <= 11, each
        assert each[2] <= 23, each


def test_a_message_of_a_large_run_costs_few_calls(tmp_path: Path) -> None:
    """A run's 100 further messages are at most 12 calls each: queue, bind, handle and settle."""
    agent = Agent("b")
    agent.session(mode="collect", debounce=0)(lambda _: None)
    with (
        Postbox(tmp_path / "a.db", agent="a", start=False) as sender,
        Postbox(tmp_path / "b.db", agent=agent, start=False) as recipient,
    ):
        [worker] = recipient._runners
        found: list[int] = []
        for count in (20, 20, 120):
            sender.session("s").send_many([("b", GREETING)] * count)
            sender.run_until_idle()
            found.append(counted(worker.run_due).calls)

        assert 160 == recipient.stats()["processed"]
    assert found[2] - found[1] <= 100 * 12, found


def test_composing_stays_as_short_for_sessions_that_come_late(pair: Pair) -> None:
    """
    Composing for the 5,000th session is as many calls, from the second time, as for the first.

    A session that goes on sending meanwhile keeps what was prepared for it.
    """
    composed = partial(pair.sender._sender.compose, to="b", body=GREETING)
    composed("busy")
    usual = counted(partial(composed, "busy"))
    for number in range(2 * TEMPLATES_MAX + 1000):
        composed(f"s{number}")
        if number % 1000 == 0:
            composed("busy")
    composed("late")

    assert (usual, usual) == (
        counted(partial(composed, "late")),
        counted(partial(composed, "busy")),
    )
    kept = pair.sender._sender
    assert len(kept._templates) + len(kept._older_templates) <= 2 * TEMPLATES_MAX
