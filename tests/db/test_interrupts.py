"""Ctrl-C between any two steps of a writer interrupts its own thread and no other."""

import dis
import sys
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from threading import Event, Thread
from types import CodeType, FrameType
from typing import Any

import pytest
from tests.waiting import until

from onceward import Postbox
from onceward.db import group_commit, transaction
from onceward.db.transaction import SavepointMark, StoreTransaction

from .conftest import Open

ROOMS = {str(room.__file__) for room in (group_commit, transaction)}
CHECKED = ("CALL", "RESUME", "JUMP_BACKWARD")
"""After these Python looks whether a signal came."""


def looked(code: CodeType, at: int) -> bool:
    """Return whether Python looks for signals right after the instruction at a place."""
    return at >= 0 and dis.opname[code.co_code[at]].startswith(CHECKED)


@contextmanager
def interrupted(
    nth: int,
    exception: type[BaseException],
    *,
    when: Callable[[], bool],
    rooms: Collection[str] = ROOMS,
) -> Iterator[list[str]]:
    """
    Raise *exception* at the *nth* moment in which Python looks for signals within *rooms*.

    Yields where that was.
    """
    before, last, seen, hit = sys.gettrace(), dict[int, int](), [0], list[str]()

    def step(frame: FrameType, event: str, _: Any) -> Any:
        if event == "opcode":
            previous, last[id(frame)] = last.get(id(frame), -1), frame.f_lasti
            if when() and looked(frame.f_code, previous):
                seen[0] += 1
                if seen[0] == nth:
                    sys.settrace(before)
                    hit.append(f"{frame.f_code.co_name}:{frame.f_lineno}")
                    raise exception
        return step

    def enter(frame: FrameType, _: str, __: Any) -> Any:
        if frame.f_code.co_filename not in rooms:
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        last.pop(id(frame), None)
        return step

    while True:
        with suppress(RuntimeError):  # another thread installs its tracer just now
            sys.settrace(enter)
            break
    try:
        yield hit
    finally:
        sys.settrace(before)


def in_a_block(box: Postbox, body: object) -> str:
    """Send in a block of its own, whose end commits for all waiting writers."""
    with box.begin() as inside:
        return inside.send("b", body)


def first_of_three(
    box: Postbox, lead: Callable[[], str], nth: int, exception: type[BaseException]
) -> tuple[list[str], list[Any]]:
    """
    Let this thread come to its turn while two others wait behind it, and interrupt it.

    Return where, and the outcomes.
    """
    outcomes: list[Any] = [None] * 3
    queue, entered, go, pause = box._db.writer.queue, Event(), Event(), Event()

    def hold() -> None:
        with box._db.writer.exclusive():
            entered.set()
            go.wait()

    def follow(index: int) -> None:
        try:
            outcomes[index] = box.send("b", [nth, index])
        except BaseException as error:  # noqa: BLE001 - the outcome under test
            outcomes[index] = error

    def arrange() -> None:
        for count, thread in ((1, threads[2]), (2, threads[3])):
            while queue.waiting < count:
                pause.wait(0.0005)
            thread.start()
        while queue.waiting < 3:
            pause.wait(0.0005)
        go.set()

    threads = [
        Thread(target=target, daemon=True)
        for target in (hold, arrange, lambda: follow(1), lambda: follow(2))
    ]
    threads[0].start()
    entered.wait()
    threads[1].start()
    with interrupted(nth, exception, when=go.is_set) as hit:
        try:
            outcomes[0] = lead()
        except BaseException as error:  # noqa: BLE001 - the outcome under test
            outcomes[0] = error
    for thread in threads:
        thread.join(60)
    return hit, outcomes


@pytest.mark.parametrize("lead", ["send", "block"])
@pytest.mark.parametrize("exception", [KeyboardInterrupt, SystemExit])
def test_an_interrupt_anywhere_harms_no_neighbour(
    opened: Open, lead: str, exception: type[BaseException]
) -> None:
    """
    A thread that commits for others is interrupted at any place.

    The others are served, nothing is lost or doubled, the next go on.
    """
    box = opened(durability="fast")
    nth, places, harmed = 0, list[str](), list[tuple[str, list[Any]]]()
    while len(places) == nth:
        nth += 1
        send = (
            (lambda n=nth: box.send("b", [n, 0]))
            if lead == "send"
            else (lambda n=nth: in_a_block(box, [n, 0]))
        )
        hit, outcomes = first_of_three(box, send, nth, exception)
        places += hit
        there = box._db.read(
            (
                "SELECT id, frame ->> '$.data[1]' FROM _onceward_outbox"
                " WHERE frame ->> '$.data[0]' = ?"
            ),
            (nth,),
        )
        told = [
            (outcome, index) for index, outcome in enumerate(outcomes) if isinstance(outcome, str)
        ]
        first = outcomes[0] if hit else None
        if not (
            set(told) <= set(there)
            and {1, 2} <= {i for _, i in told}
            and len({i for _, i in there}) == len(there)
        ):
            harmed.append((str(hit), outcomes))
        assert hit == [] or isinstance(first, exception | str)
        assert "pending" == box.resolve(box.send("b", "afterwards"))

    assert ([], []) == (harmed, box.check())
    assert len(places) > 30


def test_an_interrupt_anywhere_leaves_a_lone_writer_free_to_go_on(opened: Open) -> None:
    """
    A lone writer that is interrupted leaves no transaction open and no turn taken.

    The next message is sent at once.
    """
    box = opened(durability="fast", busy_timeout=1.0)
    leads: tuple[Callable[[], str], ...] = (lambda: box.send("b", 1), lambda: in_a_block(box, 1))
    for lead in leads:
        nth, hit = 0, ["start"]
        while hit:
            nth += 1
            with (
                interrupted(nth, KeyboardInterrupt, when=lambda: True) as hit,
                suppress(KeyboardInterrupt),
            ):
                lead()
            assert "pending" == box.resolve(box.send("b", "afterwards")), hit
        assert nth > 20

    assert [] == box.check()


def test_an_interrupt_before_a_savepoint_undoes_nothing(
    opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The block and the writer that waited for it are committed; the interrupt comes after."""
    box, real, raised = opened(durability="fast"), StoreTransaction.savepoint, list[int]()

    def savepoint(tx: StoreTransaction) -> SavepointMark:
        if not raised:
            raised.append(1)
            raise KeyboardInterrupt
        return real(tx)

    neighbour = Thread(target=box.send, args=("b", "beside"), daemon=True)
    with pytest.raises(KeyboardInterrupt), box.begin() as inside:
        inside.send("b", "inside")
        neighbour.start()
        until(lambda: box._db.writer.queue.waiting)
        monkeypatch.setattr(StoreTransaction, "savepoint", savepoint)
    neighbour.join(60)

    assert [1] == raised
    assert {"inside", "beside"} == {past.body for past in box.history().messages}


def test_a_savepoint_that_an_interrupt_left_open_is_not_taken_for_the_outer_one(
    opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An inner block that is interrupted is undone whole, and what follows it is committed."""
    box, real = opened(durability="fast"), StoreTransaction.savepoint

    def interrupted_behind(tx: StoreTransaction) -> SavepointMark:
        real(tx)
        raise KeyboardInterrupt

    with box.begin() as outer:
        with suppress(KeyboardInterrupt), box.begin() as inner:
            inner.send("b", "undone")
            monkeypatch.setattr(StoreTransaction, "savepoint", interrupted_behind)
            box.send("b", "interrupted")
        outer.send("b", "kept")

    assert ["kept"] == [past.body for past in box.history().messages]
