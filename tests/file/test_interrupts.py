"""Ctrl-C between any two steps of a writer interrupts its own thread and no other."""

import contextlib
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from threading import Event, Thread
from typing import Any

import pytest
from tests.file.test_group_commit import queue_of
from tests.interrupts import TooLong, interrupted
from tests.waiting import until

from onceward import Postbox
from onceward.api import session
from onceward.errors import OutcomeUnknown
from onceward.file import file_checks, group_commit, transaction
from onceward.file.group_commit import ReplacedFileDetector, Writer
from onceward.file.transaction import SavepointMark, StoreTransaction

from .conftest import Open

ROOMS = {str(room.__file__) for room in (file_checks, group_commit, transaction)}


def in_a_block(box: Postbox, body: object) -> str:
    """Send in a block of its own, whose end commits for all waiting writers."""
    with box.begin() as inside:
        return inside.send("b", body)


FOLLOWERS: dict[str, Callable[[Postbox, list[Any]], Sequence[str]]] = {
    "send": lambda box, body: [box.send("b", body)],
    "send_many": lambda box, body: box.send_many([("b", body), ("c", body)]),
    "send_to_all": lambda box, body: [box.send("all", body)],
    "publish": lambda box, body: box.publish("news", body),
    "request": lambda box, body: [box.request("b", body).id],
    "schedule": lambda box, body: [box.schedules.run_now(f"schedule-{body[0]}")],
}
"""By name: what threads do that wait behind the one that is interrupted; returns ids."""
STORED = (
    "SELECT body ->> '$[1]', iif(body ->> '$[1]' = 'send_to_all', correlation_id, id)"
    " FROM onceward_outbox WHERE body ->> '$[0]' = ?"
)
"""Which thread sent each message of a round, and the id that it was told."""
LEADS: dict[str, Callable[[Postbox, object], str]] = {
    "send": lambda box, body: box.send("b", body),
    "block": in_a_block,
}
"""By name: what the thread does that is interrupted."""


def first_of_all(
    box: Postbox, lead: Callable[[], str], nth: int, exception: type[BaseException]
) -> tuple[list[str], dict[str, Any]]:
    """
    Let this thread come to its turn while one of each kind waits behind it, and interrupt it.

    Return where, and the outcomes, this thread's under "lead".
    """
    outcomes: dict[str, Any] = {}
    queue, entered, go, pause = box._db.writer.queue, Event(), Event(), Event()

    def hold() -> None:
        with box._db.writer.exclusive():
            entered.set()
            go.wait()

    def follow(kind: str) -> None:
        try:
            outcomes[kind] = FOLLOWERS[kind](box, [nth, kind])
        except BaseException as error:  # noqa: BLE001 - the outcome under test
            outcomes[kind] = error

    def arrange() -> None:
        for count, thread in enumerate(followers, 1):
            while queue.waiting < count:
                pause.wait(0.0005)
            thread.start()
        while queue.waiting <= len(followers):
            pause.wait(0.0005)
        go.set()

    box.schedules.add(f"schedule-{nth}", every=3600, to="b", body=[nth, "schedule"])
    followers = [Thread(target=follow, args=(kind,), daemon=True) for kind in FOLLOWERS]
    holder, arranger = (Thread(target=target, daemon=True) for target in (hold, arrange))
    holder.start()
    entered.wait()
    arranger.start()
    with interrupted(nth, exception, when=go.is_set, rooms=ROOMS) as hit:
        try:
            outcomes["lead"] = lead()
        except BaseException as error:  # noqa: BLE001 - the outcome under test
            outcomes["lead"] = error
    for thread in (holder, arranger, *followers):
        thread.join(60)
    return hit, outcomes


def harm(box: Postbox, nth: int, outcomes: dict[str, Any]) -> dict[str, Any]:
    """Return, by name, what a thread was told and what it has in the outbox where they differ."""
    there: dict[str, list[str]] = {kind: [] for kind in ("lead", *FOLLOWERS)}
    for kind, known in box._db.read(STORED, (nth,)):
        there[kind].append(known)
    lead = outcomes["lead"]
    found = {
        kind: (outcomes.get(kind), there[kind])
        for kind in FOLLOWERS
        if isinstance(outcomes.get(kind), BaseException | None)
        or sorted(there[kind]) != sorted(outcomes[kind])
    }
    if there["lead"] not in ([lead], [] if isinstance(lead, str) else there["lead"][:1]):
        found["lead"] = (lead, there["lead"])
    return found


@pytest.mark.parametrize("lead", LEADS)
@pytest.mark.parametrize("exception", [KeyboardInterrupt, SystemExit, TooLong])
def test_an_interrupt_anywhere_harms_no_neighbour(
    opened: Open, lead: str, exception: type[BaseException]
) -> None:
    """
    A thread that commits for others is interrupted at any place.

    The others are served, whatever they write; nothing is lost or doubled, the next go on.
    """
    box = opened(durability="fast")
    opened("b").agents.subscribe("news")
    nth, places, harmed = 0, list[str](), list[tuple[str, dict[str, Any]]]()
    while len(places) == nth:
        nth += 1
        hit, outcomes = first_of_all(box, partial(LEADS[lead], box, [nth, "lead"]), nth, exception)
        places += hit
        if wrong := harm(box, nth, outcomes):
            harmed.append((str(hit), wrong))
        assert hit == [] or isinstance(outcomes["lead"], exception | str)
        assert "pending" == box.state(box.send("b", ["afterwards"]))

    assert ([], []) == (harmed, box.file.check())
    assert len(places) > 80


def test_an_interrupt_anywhere_leaves_a_lone_writer_free_to_go_on(opened: Open) -> None:
    """
    A lone writer that is interrupted leaves no transaction open and no turn taken.

    The next message is sent at once.
    """
    box = opened(durability="fast", busy_timeout=1.0)
    for lead in LEADS.values():
        nth, hit = 0, ["start"]
        while hit:
            nth += 1
            with (
                interrupted(nth, KeyboardInterrupt, when=lambda: True, rooms=ROOMS) as hit,
                suppress(KeyboardInterrupt),
            ):
                lead(box, 1)
            assert "pending" == box.state(box.send("b", "afterwards")), hit
        assert nth > 20

    assert [] == box.file.check()


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


def test_an_interrupt_while_sqlite_undoes_a_commit_loses_nothing(
    opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What SQLite undid in COMMIT is not taken for committed: it is written again."""
    raised, real = list[int](), Writer.rolled_back

    def interrupted_there(writer: Writer) -> None:
        if writer.measured_commit is not None:
            writer.measured_commit = None
            raised.append(1)
            raise KeyboardInterrupt
        real(writer)

    monkeypatch.setattr(Writer, "rolled_back", interrupted_there)
    box = opened(durability="fast")
    box._db.writer.measured_commit = lambda tx: tx.handle.execute("ROLLBACK")
    lead, beside = queue_of(
        box, lambda: box.send("b", "lead"), lambda: box.send("b", "beside"), lead=True
    )

    assert ([1], True) == (raised, isinstance(lead, KeyboardInterrupt))
    assert "pending" == box.state(str(beside))
    assert ["beside", "lead"] == sorted(str(past.body) for past in box.history().messages)


def test_a_second_interrupt_leaves_neighbours_with_ids_to_ask_for(
    opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When two interrupts hide what became of a commit, it is not run again: it is unknown."""
    box, raised = opened(durability="fast"), list[int]()

    def replaced(_: ReplacedFileDetector) -> bool:
        raised.append(1)
        if len(raised) < 3:
            raise KeyboardInterrupt
        return False

    monkeypatch.setattr(ReplacedFileDetector, "replaced", replaced)
    lead, beside = queue_of(
        box, lambda: box.send("b", 1), lambda: box.send_many([("b", 2), ("c", 3)]), lead=True
    )

    assert ([1, 1], True) == (raised, isinstance(lead, KeyboardInterrupt))
    assert isinstance(beside, OutcomeUnknown)
    assert ["pending"] * 2 == list(map(box.state, beside.message_ids))
    assert {1, 2, 3} == {past.body for past in box.history().messages}


def hold_turn(box: Postbox, _: object) -> None:
    """Take the turn to write, as a change of settings does."""
    with box._db.writer.exclusive():
        pass


@pytest.mark.parametrize("lead", [in_a_block, hold_turn])
def test_an_interrupted_block_is_over_while_its_exception_lives(
    opened: Open, lead: Callable[[Postbox, object], object]
) -> None:
    """Whenever it comes, a send in the except clause is a commit of its own."""
    box, nth, hit = opened(durability="fast", busy_timeout=1.0), 0, ["start"]
    rooms = {*ROOMS, str(contextlib.__file__), str(session.__file__)}
    while hit:
        nth += 1
        with interrupted(nth, TooLong, when=lambda: True, rooms=rooms) as hit:
            try:
                lead(box, nth)
            except TooLong:
                assert not box._db.writer.queue.taken, hit
        box.send("b", nth)

    assert nth > 10
