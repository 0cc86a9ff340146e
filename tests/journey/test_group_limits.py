"""Limits of a handler by key, and the turns of groups."""

from __future__ import annotations

import asyncio
import signal
from collections import Counter
from pathlib import Path
from threading import Event, Lock
from typing import TYPE_CHECKING, Any

import pytest
from tests.children import PYTHON, Child
from tests.waiting import until

from onceward import Agent, Context, Msg, Postbox, Tuning
from onceward.core.handle.worker import Gates, Worker
from onceward.core.rows import claimable, lanes
from onceward.errors import InvalidArgument
from onceward.features.handler_limits import turns
from onceward.features.handler_limits.group_keys import GroupKeys
from onceward.features.handler_limits.groups import GroupGate
from onceward.features.handler_limits.limits import HandlerLimits
from onceward.message.vocabulary import PARKED
from onceward.testing import Controls

if TYPE_CHECKING:
    from tests.journey.conftest import World

    from onceward.message.handler_options import HandlerOptions

LONG = 60.0
HOLDS = """
import sys, time
from onceward import Agent, Postbox

agent = Agent("bob")


@agent.on("job", concurrency=1, key="body.tenant")
def job(_: object) -> None:
    print("begun", flush=True)
    time.sleep(600)


with Postbox(sys.argv[1], agent=agent, workers=1) as box:
    box.send("bob", {"tenant": "a", "n": 1}, type="job")
    time.sleep(600)
"""
SMALL = {
    "SCAN json_each VIRTUAL TABLE INDEX 1:",
    "SCAN ended VIRTUAL TABLE INDEX 1:",
    "SCAN CONSTANT ROW",
    "SCAN _onceward_file_info",
    "SCAN h",
    "SCAN _onceward_handler_limits",
    "SCAN _onceward_lanes USING INDEX _onceward_lanes_suspects",
}
"""Steps over a bound list, a single row, sessions with runs, set limits, or lanes of suspects."""
ROWS = """
SELECT (SELECT count(*) FROM _onceward_turns),
       (SELECT count(*) FROM _onceward_rate_limits WHERE name GLOB 'group:*')
"""


class Job(Msg, type="job"):
    """A task of a tenant."""

    tenant: str
    n: int


class Other(Msg, type="other"):
    """A task without a key."""

    n: int


def noting(**options: Any) -> tuple[Agent, list[str]]:
    """Return an agent that notes tenants and numbers of jobs (with options), and of others."""
    agent, called = Agent("bob"), list[str]()
    agent.on(Job, **options)(lambda job: called.append(f"{job.tenant}{job.n}"))
    agent.on(Other)(lambda other: called.append(f"-{other.n}"))
    return agent, called


def send(box: Postbox, tenant: str, *numbers: int, **options: Any) -> None:
    """Send jobs of a tenant, each in a lane of its own."""
    for n in numbers:
        box.send("bob", Job(tenant=tenant, n=n), ordering_key=f"{tenant}{n}", **options)


# -- turns --------------------------------------------------------------------------------------


def test_groups_take_turns_while_the_jobs_of_one_have_lanes_of_their_own(world: World) -> None:
    """After a thousand jobs of one tenant, the only job of another one is the second call."""
    agent, called = noting(key="body.tenant")
    box = world.open(agent)
    send(box, "a", *range(1000))
    send(box, "b", 0)
    world.settle()

    assert (1001, 1) == (len(called), called.index("b0"))
    assert [f"a{n}" for n in range(1000)] == [each for each in called if each != "b0"]


@pytest.mark.parametrize("others", [{}, {"key": "body.n", "concurrency": 1}])
@pytest.mark.parametrize("jobs", [{}, {"batch": 2}])
def test_messages_that_wait_for_a_turn_are_handled_by_code_without_their_key(
    world: World, jobs: dict[str, Any], others: dict[str, Any]
) -> None:
    """A release that takes the key of a handler away finds lanes that the one before has parked."""
    agent, called = noting(key="body.tenant", concurrency=1)
    box = world.open(agent)
    send(box, "a", 1, 2, 3)
    box._dispatcher.run_due()
    [worker] = box._workers
    assert 1 == worker.run_due()
    box.close()

    later, more = Agent("bob"), list[int]()
    later.on(Job, **jobs)(lambda given: more.extend(each.n for each in listed(given)))
    later.on(Other, **others)(lambda _: None)
    world.open(later)
    world.settle()

    assert (["a1"], [2, 3]) == (called, sorted(more))


def test_messages_that_wait_for_a_turn_go_to_runs_of_their_session(world: World) -> None:
    """A release serves the sessions by runs, whose messages have no turns."""
    agent, called = noting(key="body.tenant", concurrency=1)
    box = world.open(agent)
    for n in (1, 2):
        box.session(f"s{n}").send("bob", Job(tenant="a", n=n))
    box._dispatcher.run_due()
    [worker] = box._workers
    assert 1 == worker.run_due()
    box.close()

    later, more = Agent("bob"), list[int]()
    later.runs("s*", debounce=0)(lambda run: more.append(run.messages[0].body["n"]))
    world.open(later)
    world.settle()

    assert (["a1"], [2]) == (called, more)


def listed(given: Job | list[Job]) -> list[Job]:
    """Return the jobs of a call, of which a batch handler gets several."""
    return given if isinstance(given, list) else [given]


def test_a_round_has_one_message_of_each_group(world: World) -> None:
    """Three groups with backlogs of different lengths take turns until the shorter ones end."""
    agent, called = noting(key="body.tenant")
    box = world.open(agent)
    for tenant, count in (("a", 4), ("b", 2), ("c", 3)):
        send(box, tenant, *range(count))
    world.settle()

    assert ["a0", "b0", "c0", "a1", "b1", "c1", "a2", "c2", "a3"] == called


def test_urgent_messages_come_before_turns(world: World) -> None:
    """Priority is asked before the turn, also between groups and messages without a key."""
    agent, called = noting(key="body.tenant")
    box = world.open(agent, tuning=Tuning(claim_messages=1))
    send(box, "a", 1, 2)
    send(box, "b", 3, priority="urgent")
    box.send("bob", Other(n=4), priority="low", ordering_key="o4")
    world.settle()

    assert ["b3", "a1", "a2", "-4"] == called


def test_messages_without_a_key_and_groups_alternate(world: World) -> None:
    """Neither keeps the other waiting, however many wait."""
    agent, called = noting(key="body.tenant")
    box = world.open(agent, tuning=Tuning(claim_messages=1))
    send(box, "a", *range(20))
    for n in range(20):
        box.send("bob", Other(n=n), ordering_key=f"o{n}")
    world.settle()
    first = Counter(each[0] for each in called[:20])

    assert {"a": 10, "-": 10} == first


def test_a_lane_keeps_its_order_through_its_groups(world: World) -> None:
    """Messages of one lane are handled in the order of their commits, whatever their keys are."""
    agent, called = noting(key="body.tenant", concurrency=2)
    box = world.open(agent)
    for n, tenant in enumerate("abbacab"):
        box.send("bob", Job(tenant=tenant, n=n))
    world.settle()

    assert ["a0", "b1", "b2", "a3", "c4", "a5", "b6"] == called


# -- rates --------------------------------------------------------------------------------------


def test_a_rate_with_a_key_is_counted_for_each_group(world: World) -> None:
    """While one tenant waits for its rate, the jobs of others are handled at once."""
    agent, called = noting(rate="2/m", key="body.tenant")
    box = world.open(agent)
    send(box, "a", 1, 2, 3, 4)
    world.settle()
    send(box, "b", 5)
    box.send("bob", Other(n=6))
    world.settle()
    at_once = sorted(called)
    world.wait(29)
    before = sorted(called)
    world.wait(1)
    then = sorted(called)
    world.wait(30)

    assert ["-6", "a1", "a2", "b5"] == at_once == before
    assert ["-6", "a1", "a2", "a3", "b5"] == then
    assert "a4" in called


def test_a_group_that_waits_costs_no_commit(world: World) -> None:
    """Looking again at what has to wait changes nothing in the file."""
    agent, _ = noting(rate="1/h", key="body.tenant")
    box = world.open(agent)
    send(box, "a", 1, 2, 3)
    world.settle()
    version = "SELECT data_version FROM pragma_data_version"
    before = box.query(version)
    [worker] = box._workers
    found = [worker.round() for _ in range(5)]

    assert [0] * 5 == found
    assert before == box.query(version)
    assert 3600 == worker._idle_for(nothing_here=True)


def test_a_rate_with_a_key_outlives_the_process(world: World) -> None:
    """What was called is known to the next process, and what waits is called in time."""
    agent, called = noting(rate="1/h", key="body.tenant")
    box = world.open(agent)
    send(box, "a", 1, 2)
    world.settle()
    world.reopen("bob")
    world.settle()
    before = [*called]
    world.wait(3600)

    assert (["a1"], ["a1", "a2"]) == (before, called)


def test_two_processes_share_a_rate_with_a_key(world: World) -> None:
    """The calls of one are counted for the other, group by group."""
    agent, called = noting(rate="3/h", key="body.tenant")
    one = world.open(agent)
    with Postbox(
        world.path("bob"), agent=agent, start=False, testing=Controls(clock=world.clock)
    ) as two:
        send(one, "a", *range(8))
        send(one, "b", *range(8))
        for box in (one, two, one, two):
            box.run_until_idle()

    assert {"a": 3, "b": 3} == Counter(each[0] for each in called)


def test_the_view_says_what_a_message_waits_for(world: World) -> None:
    """A message of a group that has reached its rate names the date of its next call."""
    agent, _ = noting(rate="1/h", key="body.tenant")
    box = world.open(agent)
    send(box, "a", 1, 2)
    world.settle()
    [found] = box.query(
        "SELECT waits_for, waits_until_at FROM onceward_inbox WHERE state = 'pending'"
    )
    [lane] = box.query("SELECT state, due_at, group_name FROM onceward_lanes WHERE head_seq > 0")

    assert ("rate", world.clock.now() + 3_600_000) == tuple(found)
    assert ("waiting", PARKED, "job\ta") == tuple(lane)


# -- concurrency --------------------------------------------------------------------------------


def test_a_group_runs_as_often_at_once_as_its_handler_says(tmp_path: Path) -> None:
    """Two calls of each tenant run together and never three, in two postboxes of one file."""
    agent, lock, now, most = Agent("bob"), Lock(), Counter[str](), Counter[str]()
    together = Event()

    @agent.on(Job, concurrency=2, key="body.tenant")
    def job(job: Job) -> None:
        with lock:
            now[job.tenant] += 1
            most[job.tenant] = max(most[job.tenant], now[job.tenant])
            if sum(now.values()) == 4:
                together.set()
        together.wait(LONG)
        with lock:
            now[job.tenant] -= 1

    path = tmp_path / "bob.db"
    with Postbox(path, agent=agent, workers=4) as one, Postbox(path, agent=agent, workers=4):
        send(one, "a", *range(12))
        send(one, "b", *range(12))
        until(lambda: 24 == one.file.stats()["processed"])

    assert {"a": 2, "b": 2} == most


def test_a_killed_process_gives_the_places_of_its_groups_back(tmp_path: Path) -> None:
    """While its call runs others of its group wait, and those of other groups do not."""
    path, script = tmp_path / "bob.db", tmp_path / "holds.py"
    script.write_text(HOLDS)
    agent, called = noting(concurrency=1, key="body.tenant")
    with Child([*PYTHON, script, path], "stdout") as child:
        child.hear()
        with Postbox(path, agent=agent, workers=2) as bob:
            send(bob, "a", 2)
            send(bob, "b", 3)
            until(lambda: "b3" in called)
            before = [*called]
            child.stop(signal.SIGKILL)
            until(lambda: {"a1", "a2", "b3"} == set(called))

    assert ["b3"] == before


@pytest.mark.parametrize("options", [{}, {"concurrency": 1}], ids=["plain", "limited"])
def test_a_worker_that_knows_no_key_leaves_nothing_behind(
    world: World, options: HandlerOptions
) -> None:
    """Messages that other code has made wait for their turns are handled without its key."""
    box = world.open(noting(rate="1/h", key="body.tenant")[0])
    send(box, "a", 1, 2, 3)
    world.settle()
    other, called = noting(**options)
    with Postbox(
        world.path("bob"), agent=other, start=False, testing=Controls(clock=world.clock)
    ) as two:
        two.run_until_idle()

    assert ["a2", "a3"] == called


def test_a_reader_takes_what_waits_for_its_turn(world: World) -> None:
    """``receive`` finds a message whose group rests."""
    agent, _ = noting(rate="1/h", key="body.tenant")
    box = world.open(agent)
    send(box, "a", 1, 2)
    world.settle()
    with Postbox(
        world.path("bob"), agent="bob", start=False, testing=Controls(clock=world.clock)
    ) as hand:
        message = hand.receive()
        assert message is not None
        message.ack()

        assert {"tenant": "a", "n": 2} == message.body


def test_a_cancelled_message_gives_its_turn_to_the_next_one(world: World) -> None:
    """A message that ends from outside leaves no turn behind that would hold its group."""
    agent, called = noting(rate="1/h", key="body.tenant")
    box = world.open(agent)
    send(box, "a", 1)
    second = box.send("bob", Job(tenant="a", n=2), ordering_key="x")
    send(box, "a", 3)
    world.settle()
    box.cancel(second)
    world.wait(3600)

    assert ["a1", "a3"] == called


# -- cost ---------------------------------------------------------------------------------------


def test_no_row_stays_for_a_key_whose_messages_have_ended(world: World) -> None:
    """Turns end with the last message of their group, buckets when they are full again."""
    agent, called = noting(rate="1/m", key="body.tenant")
    box = world.open(agent)
    for n in range(300):
        send(box, f"t{n}", n)
    world.settle()
    [used] = box.query(ROWS)
    world.wait(120)
    box.file.run_maintenance()
    [left] = box.query(ROWS)

    assert 300 == len(called)
    assert ((0, 300), (0, 0)) == (tuple(used), tuple(left))


def test_a_claim_reads_no_more_rows_however_many_wait(world: World) -> None:
    """The next turn and the first lane of a group are found through indexes, without a sort."""
    box = world.open(noting(key="body.tenant")[0])
    named = {"rank": -1, "turn": 0, "last": 9, "limit": 9}
    for statement, bound in (
        (turns.READY, named),
        (turns.RUNNING, {"group": "job\ta"}),
        (turns.EMPTY, ("[1]",)),
        (turns.NEXT, ("[1]",)),
        (lanes.REST, {"lanes": '[[1, "job\\ta"]]', "due_at": 1, "suspect": False}),
        (turns.NEXT_DUE, {}),
        (turns.LAST, {}),
        (claimable.AGENDA, {}),
        (claimable.NEXT_DUE, {}),
        (claimable.PARKED_LANES, (9,)),
        (claimable.SUSPECTS, {"session": None, "limit": 9}),
    ):
        plan = box._db.read(f"EXPLAIN QUERY PLAN {statement}", bound)
        steps = [row[3] for row in plan]
        scans = {each for each in steps if each.startswith(("SCAN ", "USE TEMP"))}

        assert scans <= SMALL, statement


# -- declarations -------------------------------------------------------------------------------


def test_a_key_is_an_attribute_a_header_a_field_or_a_function(world: World) -> None:
    """Each reads the message that it stands for; equal values are one group."""
    seen = dict[str, list[str]]()
    keys: dict[str, Any] = {
        "attribute": "session",
        "header": "headers.tenant",
        "field": "body.tenant",
        "function": lambda job: job.tenant.upper(),
        "missing": "headers.none",
    }
    for name, key in keys.items():
        agent, called = Agent(name), seen.setdefault(name, [])

        @agent.on(Job, rate="1/h", key=key)
        def note(job: Job, ctx: Context, called: list[str] = called) -> None:
            called.append(f"{ctx.session} {job.tenant}")

        box = world.open(agent)
        for session, tenant in (("x", "a"), ("y", "b"), ("x", "b")):
            box.session(session).send(
                name, Job(tenant=tenant, n=1), headers={"tenant": tenant}, ordering_key=tenant
            )
        world.settle()

    assert {
        "attribute": ["x a", "y b"],
        "header": ["x a", "y b"],
        "field": ["x a", "y b"],
        "function": ["x a", "y b"],
        "missing": ["x a"],
    } == seen


def test_a_function_that_raises_holds_no_message_back(world: World) -> None:
    """The message belongs to the group of those without a key, and its handler is called."""
    agent, called = noting(rate="9/h", key=lambda job: job.unknown)
    box = world.open(agent)
    send(box, "a", 1)
    box.send("bob", {"n": "not a number"}, type="job", ordering_key="bad")
    world.settle()

    assert (["a1"], 1) == (called, box.file.stats()["dead_letters"])


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"key": "sesion"}, "did you mean session"),
        ({"key": "tenant"}, "body.tenant"),
        ({"key": "body.tenat"}, "did you mean tenant"),
        ({"key": 7}, "key=7"),
        ({"key": ""}, "key="),
        ({"key": "body."}, "key="),
        ({"key": "session", "batch": 3}, "a batch handler has no key"),
    ],
)
def test_a_wrong_key_is_refused_where_it_is_written(options: HandlerOptions, said: str) -> None:
    """The error names what is near."""
    agent = Agent("bob")
    with pytest.raises(InvalidArgument, match=said):
        agent.on(Job, **options)(lambda _: None)


def test_readers_of_the_same_lanes_exclude_a_key() -> None:
    """An agent that leaves messages to readers takes messages out of order, so it has no groups."""
    with pytest.raises(InvalidArgument, match="no key"):
        Agent("bob", unhandled="wait").on(Job, key="session")(lambda _: None)


def test_the_quiet_time_of_a_quick_worker_ends_without_a_poll(tmp_path: Path) -> None:
    """A claim that only moves a message is kept, so its worker knows when the message is due."""
    agent, called = Agent("bob"), list[str]()
    agent.on(Other)(lambda other: called.append(f"-{other.n}"))
    agent.on(Job, debounce=0.05)(lambda job: called.append(f"{job.tenant}{job.n}"))

    with Postbox(tmp_path / "bob.db", agent=agent, tuning=Tuning(poll_interval=3600.0)) as box:
        for n in range(20):  # its worker is quick, and shares its commits
            box.send("bob", Other(n=n))
            until(lambda: len(called) > n)  # noqa: B023 - called at once
        box.send("bob", Job(tenant="a", n=1))
        until(lambda: "a1" in called)


# -- what a claim holds ------------------------------------------------------------------------


def test_a_claim_parks_no_more_than_a_hundred_lanes(world: World) -> None:
    """Each hundred is a commit of its own, between which a reader takes a message."""
    agent, called = noting(key="body.tenant")
    box = world.open(agent)
    send(box, "a", *range(450))
    box.send("bob", Other(n=1), ordering_key="o1")
    box._dispatcher.run_due()
    [worker], write = box._workers, box._db.write
    parked, taken = list[int](), list[object]()

    def written(work: Any, **named: Any) -> Any:
        made = write(work, **named)
        parked.append(len(box.query("SELECT 1 FROM _onceward_lanes WHERE due_at = ?", (PARKED,))))
        if len(parked) == 1:
            message = box.receive(Other)
            assert message is not None
            message.ack()
            taken.append(message.body)
        return made

    worker._db.write = written
    try:
        worker.round()
    finally:
        del worker._db.write

    assert {100, 200, 300, 400} < set(parked)
    assert (["a0"], [Other(n=1)]) == (called, taken)


def test_the_end_of_a_call_notifies_the_worker_that_waits_for_its_group(world: World) -> None:
    """It looks by itself once a second, for the slot of a process that was killed."""
    agent, told, found = Agent("bob"), list[bool](), list[object]()

    @agent.on(Job, concurrency=1, key="body.tenant")
    def job(job: Job) -> None:
        if job.n == 1:
            world.elsewhere(lambda: found.append(two.round()))
            found.append(two._gate is not None and two._gate.wait(0))

    box = world.open(agent)
    send(box, "a", 1, 2)
    box._dispatcher.run_due()
    shared = HandlerLimits(agent, alone=lambda _: frozenset(), free=told.append)
    gates = Gates(lambda: GroupGate(shared, GroupKeys()), always=True)
    one, two = (Worker(box._deps, agent, asyncio.new_event_loop, gates=gates) for _ in range(2))
    one.round()
    first = [*told]
    two.round()

    assert ([0, 1.0], [True], [True, False]) == (found, first, told)
