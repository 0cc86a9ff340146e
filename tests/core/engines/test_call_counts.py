"""Calls: how many functions of the library a message passes on its way, counted on a warm path."""

import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial
from itertools import count
from pathlib import Path
from threading import Semaphore
from types import FrameType
from typing import Any, Final, NamedTuple

import pytest
from tests.waiting import until

import onceward
from onceward import Agent, Context, Postbox, Tuning
from onceward.core.deliver.carriers import Carriers, Delivery
from onceward.core.handle import worker
from onceward.core.run import threads
from onceward.core.send.compose import TEMPLATES_MAX
from onceward.file import notify
from onceward.file.group_commit import ReplacedFileDetector
from onceward.message.options import SendOptions
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


def called(work: Callable[[], object]) -> tuple[list[str], int]:
    """Return the file of each of the library's functions that *work* calls, and how deep it was."""
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
    return files, max(depths)


def counted(work: Callable[[], object]) -> Calls:
    """Run *work* and count the library's functions that it calls, comprehensions among them."""
    files, depth = called(work)
    return Calls(len(set(files)), len(files), depth)


def shortest(work: Callable[[], object], before: Callable[[], object] = int) -> Calls:
    """
    Count a work several times, each after *before*; return the fewest calls.

    A busy machine adds calls, such as those of a beat that is due; none leaves any out.
    """
    found: list[Calls] = []
    for _ in range(5):
        before()
        found.append(counted(work))
    return min(found, key=lambda each: each.calls)


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


class Way(NamedTuple):
    """A message's own way without the file layer and the clock: files, visits, and returns."""

    files: int
    visits: int
    returns: int


def way(calls: list[str]) -> Way:
    """Count how often the way changes its file, and how often it returns to one that it left."""
    names = [Path(each).relative_to(ROOT) for each in calls]
    own = [each for each in names if each.parts[0] != "file" and each.name != "clock.py"]
    visits = [each for n, each in enumerate(own) if n == 0 or each != own[n - 1]]
    return Way(len({*own}), len(visits), len(visits) - len({*own}))


def test_a_message_returns_to_few_files(pair: Pair) -> None:
    """A message passes 30 files at most, in 84 visits, 54 of them to a file that it has left."""
    [worker] = pair.recipient._workers
    ways: list[Way] = []
    for _ in range(5):  # see ``shortest``
        calls: list[str] = []
        for stage in (pair.send, pair.sender._dispatcher.run_due, worker.round):
            calls += called(stage)[0]
        ways.append(way(calls))
    found = min(ways, key=lambda each: each.visits)

    assert found.files <= 30, found
    assert found.visits <= 84, found
    assert found.returns <= 54, found
    assert 8 == pair.recipient.file.stats()["processed"]


def test_a_send_passes_nine_files(pair: Pair) -> None:
    """A send without options is at most 34 calls in 9 files, 8 deep, its commit included."""
    session = pair.sender.session("s")
    session.send("b", GREETING)
    found = shortest(lambda: session.send("b", GREETING))

    assert found.within(9, 34, 8), found


@pytest.mark.parametrize(
    ("options", "files", "calls"),
    [
        ({"type": "x"}, 10, 37),
        ({"key": ""}, 11, 44),
        ({"type": "x", "key": "", "priority": "high", "ttl": 60}, 12, 49),
    ],
)
def test_an_option_costs_a_send_few_calls(
    pair: Pair, options: SendOptions, files: int, calls: int
) -> None:
    """A send reads the options that it is given, not those that it could be given."""
    session, keys = pair.sender.session("s"), map(str, count())

    def send() -> None:
        named: SendOptions = {**options, "key": next(keys)} if "key" in options else options
        session.send("b", GREETING, **named)

    send()
    found = shortest(send)

    assert found.within(files, calls, 8), found


MEETINGS: Final = 200
"""
Messages among which there is one whose threads do not meet.

Threads that write at once wait for each other, and an engine that comes late looks once more: how
often that happens is a matter of the machine, not of the code. The shortest way is not.
"""


class Running:
    """Two postboxes whose engines run: one handles messages and replies, one handles replies."""

    UNSETTLED = """
    SELECT (SELECT count(*) FROM _onceward_outbox WHERE state <> 'acked')
           + (SELECT count(*) FROM _onceward_receipts)
           + (SELECT count(*) FROM _onceward_peers WHERE owner IS NOT NULL)
    """

    def __init__(self, folder: Path) -> None:
        self.replied = Semaphore(0)
        asking, answering = Agent("a"), Agent("b")
        asking.on("*")(lambda _: self.replied.release())
        answering.on("json")(lambda body, ctx: ctx.reply(body) and None)
        self.sender = Postbox(folder / "a.db", agent=asking)
        self.recipient = Postbox(folder / "b.db", agent=answering)
        self.send = partial(self.sender.session("s").send, "b", GREETING)

    def settle(self) -> None:
        """Wait for the reply, until both know of both messages and no carrier has a peer."""
        assert self.replied.acquire(timeout=60)
        for box in (self.sender, self.recipient):
            until(lambda box=box: box._db.read(self.UNSETTLED) == [(0,)])  # type: ignore[misc]
        for box in (self.sender, self.recipient):
            until(lambda box=box: not box._dispatcher._deliveries._busy._names)  # type: ignore[misc]

    def close(self) -> None:
        """Close both."""
        self.sender.close()
        self.recipient.close()


@pytest.fixture
def all_calls() -> Iterator[list[str]]:
    """
    The files of the library's functions that any thread calls for messages, once per call.

    The heartbeat is left out: how often it looks while a message is handled is a matter of time.
    """
    found: list[str] = []

    def note(frame: FrameType, event: str, _: Any) -> None:
        if event != "call" or not frame.f_code.co_filename.startswith(ROOT):
            return
        if not threading.current_thread().name.startswith("onceward-heartbeat"):
            found.append(frame.f_code.co_filename)

    before = threading.getprofile()
    threading.setprofile(note)
    yield found
    threading.setprofile(before)


@pytest.fixture
def running(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, all_calls: list[str]
) -> Iterator[Running]:
    """Two postboxes that have exchanged messages; their folders are quiet, as two seconds later."""
    monkeypatch.setattr(ReplacedFileDetector, "SETTLED", 0)
    monkeypatch.setattr(notify, "SETTLED", 0)
    monkeypatch.setattr(threads, "_threads", {})  # threads that begin now are counted
    found = Running(tmp_path)
    for _ in range(3):
        found.send()
        found.settle()
    assert all_calls
    yield found
    found.close()


def test_a_send_with_engines_packs_its_parcel_in_few_calls(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sending, packing and handing over to a carrier is at most 63 calls in 14 files."""
    submit, handed_over = Carriers.submit, list[str]()

    def noted(self: Carriers, delivery: Delivery) -> bool:
        handed_over.append("with its parcel" if delivery.first else "without")
        return submit(self, delivery)

    monkeypatch.setattr(Carriers, "submit", noted)
    sends: list[Calls] = []
    for _ in range(MEETINGS):
        del handed_over[:]
        found = counted(running.send)
        sends += [found] if handed_over[:1] == ["with its parcel"] else []
        running.settle()
        if sends and sends[-1].within(14, 63, 13):
            return
    pytest.fail(f"no send of {MEETINGS} kept the budget: {sorted(sends)[:5]}")


def test_a_round_trip_takes_few_calls(running: Running, all_calls: list[str]) -> None:
    """A message, its reply and both receipts are at most 775 calls of all threads."""
    trips: list[int] = []
    for _ in range(MEETINGS):
        del all_calls[:]
        here, _ = called(running.send)
        running.settle()
        there = all_calls[:]
        trips.append(len(here) + len(there))
        if trips[-1] <= 775:
            return
    pytest.fail(f"no trip of {MEETINGS} kept the budget: {sorted(trips)[:5]}")


def test_a_parcel_of_one_frame_is_accepted_in_few_calls(pair: Pair) -> None:
    """Reading, judging and storing a parcel of one frame is at most 53 calls with its commit."""
    found: list[Calls] = []
    accept = pair.recipient._receiver.accept

    def watched(parcel: Parcel) -> Answer:
        answers: list[Answer] = []
        found.append(counted(lambda: answers.append(accept(parcel))))
        return answers[0]

    pair.send()
    pair.recipient._db.add_receiver(watched)
    pair.sender._dispatcher.run_due()

    assert [True] == [each.within(11, 53, 12) for each in found], found


def test_a_delivery_is_two_commits_of_the_sender_and_one_of_the_recipient(pair: Pair) -> None:
    """Packing, pushing, accepting and settling one message is at most 141 calls."""
    found = shortest(pair.sender._dispatcher.run_due, before=pair.send)

    assert found.within(22, 141, 19), found


def test_a_message_is_handled_in_half_the_calls(pair: Pair) -> None:
    """Claiming, handling and settling one message is at most 96 calls, its two commits included."""

    def deliver() -> None:
        pair.send()
        pair.sender.run_until_idle()

    [worker] = pair.recipient._workers
    found = shortest(worker.round, before=deliver)

    assert found.within(18, 96, 12), found
    assert 8 == pair.recipient.file.stats()["processed"]


def turn(number: int) -> str:
    """Return a text, as the function of a step."""
    return f"turn {number}"


def test_a_step_takes_few_calls(tmp_path: Path) -> None:
    """Calling the function of a step and committing its result is at most 84 calls in 17 files."""
    agent, found = Agent("a"), list[Calls]()

    @agent.on("json")
    def work(_: object, ctx: Context) -> None:
        for number in range(3):
            found.append(counted(partial(ctx.step, turn, number)))

    with Postbox(tmp_path / "a.db", agent=agent, start=False) as box:
        box.send("a", GREETING)
        box.run_until_idle()

    assert [True] == [each.within(17, 84, 12) for each in found[-1:]], found


def test_a_message_of_a_burst_costs_few_calls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    A further message of a burst is at most 41 calls, from its send to its receipt.

    Sending takes 6 of them, packing, accepting and settling 11, handling and telling 24.
    """
    for limit in ("QUICK", "SLOW"):  # a busy machine changes no size of a claim
        monkeypatch.setattr(worker, limit, 60.0)
    agent = Agent("b")
    agent.on("json")(lambda _: None)
    with (
        Postbox(tmp_path / "a.db", agent="a", start=False) as sender,
        Postbox(
            tmp_path / "b.db", agent=agent, start=False, tuning=Tuning(share_commit_for=60.0)
        ) as recipient,
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
        # A look at the file that is due by the clock falls into either burst: no message costs it.
        each = [round((more - less) / 100) for less, more in zip(few, many, strict=True)]

        assert each[0] <= 6, each
        assert each[1] <= 11, each
        assert each[2] <= 24, each


def test_a_message_of_a_large_run_costs_few_calls(tmp_path: Path) -> None:
    """A run's 100 further messages are at most 12 calls each: queue, bind, handle and settle."""
    agent = Agent("b")
    agent.runs(mode="collect", debounce=0)(lambda _: None)
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

        assert 160 == recipient.file.stats()["processed"]
    assert found[2] - found[1] <= 100 * 12, found


def test_composing_stays_as_short_for_sessions_that_come_late(pair: Pair) -> None:
    """
    Composing for the 5,000th session is as many calls, from the second time, as for the first.

    A session that goes on sending meanwhile keeps what was prepared for it.
    """
    composed = partial(pair.sender._outbox.compose, to="b", body=GREETING)
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
    kept = pair.sender._outbox.composer
    assert len(kept._templates) + len(kept._older_templates) <= 2 * TEMPLATES_MAX
