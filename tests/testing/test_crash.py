"""
The death of a process at named points.

What was committed stays, what was not is gone, nothing happens twice.
"""

from collections.abc import Callable
from typing import cast

import apsw
import pytest

from onceward import Agent, AsyncContext, Context, Tuning
from onceward.testing import Crash, Harness, Point
from onceward.testing.crash import POINTS

SCHEMA = "CREATE TABLE done(n)"
BEFORE: tuple[Point, ...] = ("before-handler", "after-handler", "before-commit")
AFTER: tuple[Point, ...] = ("after-commit", "before-push", "after-push")
A_LEASE = 60


def counter() -> Agent:
    """
    Return an agent that writes a row and answers.

    It counts in ``calls`` how often it was called.
    """
    agent = Agent("counter")

    @agent.on("number")
    def handle(n: int, ctx: Context) -> None:
        ctx.tx.execute("INSERT INTO done VALUES (?)", (n,))
        ctx.reply(f"did {n}")

    return agent


def acounter() -> Agent:
    """Return the same agent with a coroutine for a handler."""
    agent = Agent("counter")

    @agent.on("number")
    async def handle(n: int, ctx: AsyncContext) -> None:
        await ctx.reply(f"did {n}")

    return agent


@pytest.fixture
def box(harness: Callable[..., Harness]) -> Harness:
    """Return the counter with its table."""
    return harness(counter(), schema=SCHEMA)


def effects(box: Harness) -> tuple[list[tuple[int]], list[str]]:
    """Return what the handler left in the file: rows and mail."""
    return cast("list[tuple[int]]", box.sql("SELECT n FROM done ORDER BY n")), box.sent("me")


@pytest.mark.parametrize("point", BEFORE)
def test_before_the_commit_nothing_has_happened(box: Harness, point: Point) -> None:
    """A process that dies before its COMMIT leaves no row and no mail."""
    box.send(1, type="number", sender="me")
    with box.crash_at(point):
        box.deliver()

    assert ([], []) == effects(box)


@pytest.mark.parametrize("point", AFTER)
def test_after_the_commit_everything_has_happened(box: Harness, point: Point) -> None:
    """A process that dies after its COMMIT leaves row and mail, both."""
    box.send(1, type="number", sender="me")
    with box.crash_at(point):
        box.deliver()

    assert ([(1,)], ["did 1"]) == effects(box)


@pytest.mark.parametrize("point", POINTS)
def test_a_message_takes_effect_once(box: Harness, point: Point) -> None:
    """Wherever the process dies, the message is handled in the end, and once."""
    mail = box.send(1, type="number", sender="me")
    with box.crash_at(point):
        box.deliver()
    box.advance(A_LEASE)
    box.deliver()

    assert ([(1,)], ["did 1"]) == effects(box)
    assert "acked" == box.peer("me").state(mail)
    answer = box.peer("me").receive()
    assert answer is not None
    assert ("did 1", None) == (answer.body, box.peer("me").receive())
    assert ([], []) == (box.postbox.file.check(), box.peer("me").file.check())


@pytest.mark.parametrize("point", POINTS)
def test_dying_again_and_again(box: Harness, point: Point) -> None:
    """A second death at the same point, for another message, harms the first no more."""
    for n in (1, 2):
        box.send(n, type="number", sender="me")
        with box.crash_at(point):
            box.deliver()
        box.advance(A_LEASE)
        box.deliver()

    assert ([(1,), (2,)], ["did 1", "did 2"]) == effects(box)


@pytest.mark.parametrize("point", POINTS)
def test_coroutine_handlers_die_too(harness: Callable[..., Harness], point: Point) -> None:
    """The points are the same for handlers of either colour."""
    box = harness(acounter())
    box.send(1, type="number", sender="me")
    with box.crash_at(point):
        box.deliver()
    box.advance(A_LEASE)
    box.deliver()

    assert ["did 1"] == box.sent("me")


def test_a_shared_commit_dies_as_one(harness: Callable[..., Harness]) -> None:
    """Where handlers share a commit, those before the one that died are undone with it."""
    box = harness(counter(), schema=SCHEMA, tuning=Tuning(share_commit_for=3600.0))
    for n in (1, 2):
        box.send(n, type="number", sender="me")
    with box.crash_at("before-commit"):
        box.deliver()
    assert ([], []) == effects(box)

    box.advance(A_LEASE)
    box.deliver()
    assert ([(1,), (2,)], ["did 1", "did 2"]) == effects(box)


def test_the_attempt_that_died_counts(harness: Callable[..., Harness]) -> None:
    """A handler sees that it was tried before, also by a process that died."""
    agent, attempts = Agent("counter"), list[int]()

    @agent.on("number")
    def handle(_: int, ctx: Context) -> None:
        attempts.append(ctx.message.attempt)

    box = harness(agent)
    box.send(1, type="number")
    with box.crash_at("after-handler"):
        box.deliver()
    box.advance(A_LEASE)
    box.deliver()

    assert [1, 2] == attempts


def test_the_lease_outlives_the_process(box: Harness) -> None:
    """The lease of a dead process stays taken until its time has run out."""
    box.send(1, type="number", sender="me")
    with box.crash_at("before-commit"):
        box.deliver()
    box.deliver()
    assert ([], []) == effects(box)

    box.advance(A_LEASE)
    box.deliver()
    assert ([(1,)], ["did 1"]) == effects(box)


def test_own_transactions_die_before_their_commit(box: Harness) -> None:
    """Outside of handlers the point is the next COMMIT of the test's own code."""
    with box.crash_at("before-commit"), box.postbox.begin() as tx:
        tx.execute("INSERT INTO done VALUES (1)")
        tx.send("me", "done")

    assert ([], []) == effects(box)


def test_own_transactions_die_after_their_commit(box: Harness) -> None:
    """After the COMMIT the rows are there, though the caller never heard of it."""
    with box.crash_at("after-commit"), box.postbox.begin() as tx:
        tx.execute("INSERT INTO done VALUES (1)")
        tx.send("me", "done")

    assert ([(1,)], ["done"]) == effects(box)


def test_nothing_is_written_after_death(box: Harness) -> None:
    """
    Code that is still on the stack cannot reach the file.

    Every statement of it ends in the same crash.
    """
    afterwards = list[str]()

    def die() -> None:
        with box.postbox.begin() as tx:
            tx.execute("INSERT INTO done VALUES (1)")

    def last_will() -> None:
        try:
            die()
        finally:
            for statement in (
                box.postbox.file.stats,
                lambda: box.postbox.send("me", "too late"),
                box.postbox.run_until_idle,
            ):
                with pytest.raises(Crash):
                    statement()
                afterwards.append("refused")

    with box.crash_at("before-commit"):
        last_will()

    assert (["refused"] * 3, ([], [])) == (afterwards, effects(box))


def test_the_file_is_left_as_a_killed_process_leaves_it(box: Harness) -> None:
    """
    No checkpoint tidies up.

    The commits lie in the write-ahead log, and the next process recovers them.
    """
    wal = box.postbox.file.path.with_name(f"{box.postbox.file.path.name}-wal")
    sizes = list[int]()

    def look(connection: apsw.Connection) -> None:
        if connection.filename == str(box.postbox.file.path):
            sizes.append(wal.stat().st_size if wal.exists() else 0)

    box.send(1, type="number", sender="me")
    apsw.connection_hooks.append(look)
    try:
        with box.crash_at("after-commit"):
            box.deliver()
    finally:
        apsw.connection_hooks.remove(look)

    assert sizes[0] > 0


def test_a_point_that_is_never_reached_fails_the_test(box: Harness) -> None:
    """A crash that did not happen must not look like one that was survived."""
    with pytest.raises(AssertionError, match="after-push"), box.crash_at("after-push"):
        box.deliver()


def test_an_unknown_point_is_named(box: Harness) -> None:
    """A word that is not a point is a mistake of the test, and the message lists the points."""
    with pytest.raises(ValueError, match="before-commit"), box.crash_at(cast("Point", "lunch")):
        box.deliver()


def test_other_errors_come_through(box: Harness) -> None:
    """What the block itself raises is not mistaken for a crash."""
    with pytest.raises(LookupError), box.crash_at("before-commit"):
        raise LookupError


def test_peers_survive(box: Harness) -> None:
    """Only the agent's process dies; peers are processes of their own."""
    peer = box.peer("me")
    box.send(1, type="number", sender="me")
    with box.crash_at("before-handler"):
        box.deliver()

    assert peer is box.peer("me")
    assert 1 == peer.file.stats()["sent"]


def test_nothing_of_ours_catches_a_crash() -> None:
    """A crash is not an Exception, so no handler of errors can mistake it for one."""
    assert not issubclass(Crash, Exception)
