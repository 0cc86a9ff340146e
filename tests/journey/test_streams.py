"""Streams: what a handler puts out while it runs is followed from anywhere, to the end."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from threading import Event as Flag
from threading import Thread
from typing import TYPE_CHECKING, Any

import pytest

from onceward import (
    Agent,
    AsyncContext,
    AsyncPostbox,
    BatchContext,
    Context,
    Msg,
    Postbox,
    Reject,
    RetryPolicy,
    Run,
    Tuning,
    step,
)
from onceward.core.run.threads import EngineThreads
from onceward.errors import InvalidArgument, InvalidMessage, LeaseLost, StreamLimit
from onceward.types import Chunk, Ended, Restarted

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.journey.conftest import World

    from onceward.types import StreamItem

ROWS = "SELECT name, chunks, last, attempt FROM onceward_output_streams ORDER BY name"
BATCHES = "SELECT name, first, last FROM _onceward_output_batches ORDER BY seq"


class Job(Msg, type="job"):
    """A task with a number."""

    n: int


def writing(work: Callable[[Context], object], **options: Any) -> Agent:
    """Return an agent whose handler is *work*."""
    agent = Agent("bob")
    agent.on(Job, **options)(lambda _, ctx: work(ctx))
    return agent


def shown(items: Any) -> list[object]:
    """Return items as short values."""
    told: list[object] = []
    for each in items:
        match each:
            case Chunk(position=position, body=body):
                told.append((position, body))
            case Restarted(position=position, name=name):
                told.append((position, "restarted", name))
            case Ended(position=position, state=state):
                told.append((position, state))
    return told


def put_out(*chunks: object) -> Callable[[Context], None]:
    """Return a handler that puts chunks out."""

    def work(ctx: Context) -> None:
        stream = ctx.stream()
        for each in chunks:
            stream.append(each)

    return work


def test_the_asker_follows_the_output_of_a_request(world: World) -> None:
    """Text, JSON and bytes come in order, and the end says how the message ended."""
    world.open(writing(put_out("one", {"two": 2}, b"\xff", None)))
    alice = world.open("alice")
    ticket = alice.request("bob", Job(n=1))
    world.settle()

    assert [
        (1, "one"), (2, {"two": 2}), (3, b"\xff"), (4, None), (4, "processed"),
    ] == shown(alice.follow(ticket))  # fmt: skip
    assert [(3, b"\xff"), (4, None), (4, "processed")] == shown(alice.follow(ticket.id, after=2))
    assert [(4, "processed")] == shown(alice.follow(ticket, after=4))


def test_the_recipient_follows_it_too(world: World) -> None:
    """By the id of the message, whichever agent has sent it."""
    box = world.open(writing(put_out("a")))
    own, other = box.send("bob", Job(n=1)), world.open("alice").send("bob", Job(n=2))
    world.settle()

    assert [(1, "a"), (1, "processed")] == shown(box.follow(own)) == shown(box.follow(other))


def test_chunks_are_read_before_the_handler_ends(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are committed in batches, by size and by time; the rest comes with the end."""
    monkeypatch.setattr(EngineThreads, "running", False)  # those of other tests commit, too
    seen: list[list[object]] = []

    def work(ctx: Context) -> None:
        stream = ctx.stream()
        for chunk in ("a", "b" * 40, "c", "d"):
            stream.append(chunk)
            if chunk == "c":
                world.clock.forward(0.2)
            world.elsewhere(
                lambda: seen.append(shown(box.follow(ctx.message.id, after=2, timeout=0)))
            )
        stream.append("e")

    box = world.open(writing(work), tuning=Tuning(stream_batch_bytes=40))
    sent = box.send("bob", Job(n=1))
    world.settle()

    assert [[], [], [], [(3, "c"), (4, "d")]] == seen
    assert [("output", 1, 2), ("output", 3, 4), ("output", 5, 5)] == box.query(BATCHES)
    assert [(5, "e"), (5, "processed")] == shown(box.follow(sent, after=4))


def test_flush_commits_at_once(world: World) -> None:
    """A reader need not wait for the batch; nothing to flush is no commit."""
    seen: list[list[object]] = []

    def work(ctx: Context) -> None:
        stream = ctx.stream("log")
        stream.append(1)
        stream.flush()
        stream.flush()
        world.elsewhere(lambda: seen.append(shown(box.follow(ctx.message.id, timeout=0))))

    box = world.open(writing(work))
    box.send("bob", Job(n=1))
    world.settle()

    assert [[(1, 1)]] == seen
    assert [("log", 1, 1)] == box.query(BATCHES)


def test_a_reader_is_told_where_a_retry_begins_again(world: World) -> None:
    """What a failed call has put out is void from there, and is read no more."""

    def work(ctx: Context) -> None:
        put_out(f"try {ctx.message.attempt}")(ctx)
        if ctx.message.attempt < 2:
            raise ValueError

    box = world.open(writing(work))
    sent = box.send("bob", Job(n=1))
    world.settle()
    first = shown(box.follow(sent, timeout=0))
    world.wait(5)

    assert [(1, "try 1")] == first
    assert [
        (2, "restarted", "output"), (3, "try 2"), (3, "processed"),
    ] == shown(box.follow(sent, after=1)) == shown(box.follow(sent))  # fmt: skip
    assert [("output", 1, 3, 2)] == box.query(ROWS)


@pytest.mark.parametrize("tx", [False, True], ids=["plain", "in a transaction"])
def test_a_step_that_is_called_again_begins_its_stream_again(world: World, tx: bool) -> None:
    """Also in its place, within one call of the handler; other streams go on."""
    tries: list[int] = []

    def work(ctx: Context) -> None:
        ctx.stream().append("before")

        def turn() -> None:
            tries.append(1)
            ctx.stream().append(f"try {len(tries)}")
            if not tx:
                ctx.stream().flush()
            if len(tries) < 2:
                raise ConnectionError

        at_once = RetryPolicy(lambda _: 0.0, lambda _: False)
        ctx.step(turn, attempts=3, retry=at_once, tx=tx)

    box = world.open(writing(work))
    sent = box.send("bob", Job(n=1))
    world.settle()
    kept = list[object]()
    for item in box.follow(sent, name="turn", timeout=0):
        match item:
            case Restarted():
                kept.clear()
            case Chunk(body=body):
                kept.append(body)

    assert ["try 2"] == kept
    assert ["before"] == [
        item.body for item in box.follow(sent, name="output", timeout=0) if isinstance(item, Chunk)
    ]


@pytest.mark.parametrize("tx", [False, True], ids=["plain", "in a transaction"])
def test_the_output_of_a_step_is_committed_with_its_result(world: World, tx: bool) -> None:
    """A step that is stored is not called again: what it put out must be there by then."""
    there: list[object] = []

    def work(ctx: Context) -> None:
        def turn() -> None:
            for n in range(3):
                ctx.stream().append(n)

        ctx.step(turn, tx=tx)
        there.append(box.query("SELECT count(*) FROM onceward_output_chunks"))

    box = world.open(writing(work), tuning=Tuning(stream_batch_for=60))
    box.send("bob", Job(n=1))
    world.settle()

    assert [[(3,)]] == there


def test_a_step_that_is_stored_leaves_its_stream_as_it_is(world: World) -> None:
    """Its stream is called like it: a later call begins only those of its own steps again."""

    def work(ctx: Context) -> None:
        def turn(n: int) -> int:
            ctx.stream().append(n)
            if n == 2 and ctx.message.attempt < 2:
                raise ValueError
            return n

        for n in (1, 2):
            ctx.step(turn, n)

    box = world.open(writing(work))
    sent = box.send("bob", Job(n=1))
    world.settle()
    world.wait(5)

    assert [
        (1, 1), (3, "restarted", "turn#2"), (4, 2), (4, "processed"),
    ] == shown(box.follow(sent))  # fmt: skip
    assert [(1, 1), (4, "processed")] == [
        *shown(box.follow(sent, name="turn", timeout=0))[:1],
        *shown(box.follow(sent, name="turn#2"))[-1:],
    ]


def test_streams_of_one_message_have_one_order(world: World) -> None:
    """Each has a name, and a reader may follow one of them."""

    def work(ctx: Context) -> None:
        words, numbers = ctx.stream("words"), ctx.stream("numbers")
        for n, word in enumerate(("a", "b")):
            words.append(word)
            numbers.append(n)

    box = world.open(writing(work))
    sent = box.send("bob", Job(n=1))
    world.settle()

    assert [(1, "a"), (2, 0), (3, "b"), (4, 1), (4, "processed")] == shown(box.follow(sent))
    assert [(2, 0), (4, 1), (4, "processed")] == shown(box.follow(sent, name="numbers"))


def test_output_after_a_write_leaves_with_the_commit(world: World) -> None:
    """It is seen with the handler's rows, and gone with them where the call fails."""
    seen: list[object] = []

    def work(ctx: Context) -> None:
        ctx.tx.execute("CREATE TABLE IF NOT EXISTS notes (text TEXT)")
        stream = ctx.stream()
        stream.append(ctx.message.attempt)
        stream.flush()
        world.elsewhere(lambda: seen.append(shown(box.follow(ctx.message.id, timeout=0))))
        if ctx.message.attempt < 2:
            raise ValueError

    box = world.open(writing(work))
    sent = box.send("bob", Job(n=1))
    world.settle()
    world.wait(5)

    assert [[], []] == seen
    assert [(1, 2), (1, "processed")] == shown(box.follow(sent))


@pytest.mark.parametrize(
    ("wrong", "state"), [(Reject("no"), "dead"), (None, "processed")], ids=["dead", "processed"]
)
def test_the_end_says_how_the_message_ended(
    world: World, wrong: Exception | None, state: str
) -> None:
    """What the call has put out before comes first, also where it failed for good."""

    def work(ctx: Context) -> None:
        put_out("so far")(ctx)
        if wrong is not None:
            raise wrong

    box = world.open(writing(work))
    sent = box.send("bob", Job(n=1))
    world.settle()

    [chunk, end] = box.follow(sent)
    assert (Chunk(1, "output", "so far"), state) == (chunk, getattr(end, "state", None))
    assert ("rejected" in str(getattr(end, "reason", None))) is (state == "dead")


def test_a_message_that_ends_at_its_sender_ends_its_stream(world: World) -> None:
    """A reader does not wait for what never arrives."""
    world.open("bob")
    alice = world.open("alice")
    away = alice.send("bob", Job(n=1), delay="1h")
    waiting = shown(alice.follow(away, timeout=0))
    alice.cancel(away)

    assert ([], [(0, "cancelled")]) == (waiting, shown(alice.follow(away, timeout=5)))


def test_what_is_not_here_cannot_be_followed(world: World) -> None:
    """An unknown id, and a recipient whose file is elsewhere, are refused at the call."""
    alice = world.open("alice", hold_unknown=True)
    sent = alice.send("carol", Job(n=1))

    with pytest.raises(InvalidArgument, match="no message nonsense here"):
        alice.follow("nonsense")
    with pytest.raises(InvalidArgument, match="in the file of carol"):
        alice.follow(sent)


def test_a_run_puts_out_and_each_of_its_messages_is_followed(world: World) -> None:
    """Its output is that of its first message; the steps of a run have streams of their own."""
    agent = Agent("bob")

    def think(run: Run) -> None:
        run.stream().append("hm")

    @agent.runs("talk", mode="collect", debounce=0)
    def serve(run: Run) -> None:
        run.step(lambda: think(run), name="think")
        run.stream().append(len(run.messages))

    box, alice = world.open(agent), world.open("alice")
    tickets = [alice.session("talk").request("bob", Job(n=n)) for n in (1, 2)]
    world.settle()

    for ticket in tickets:
        assert [(1, "hm"), (2, 2), (2, "processed")] == shown(alice.follow(ticket))
    assert [("output", 1, 2, 1), ("think", 1, 1, 1)] == box.query(ROWS)


def test_a_worker_that_lost_its_lease_adds_nothing(world: World) -> None:
    """Its chunks are refused while another worker has the message, whose own stay as they are."""
    told: list[str] = []
    calls: list[int] = []
    began, tried = Flag(), Flag()

    def work(ctx: Context) -> None:
        calls.append(1)
        number = len(calls)
        if number == 1:
            world.clock.forward(3600)
            other.start()
            assert began.wait(30)
        stream = ctx.stream()
        stream.append(f"call {number}")
        try:
            stream.flush()
        except LeaseLost as error:
            told.append(str(error))
            tried.set()
            raise
        began.set()
        assert tried.wait(30)

    agent = writing(work)
    box = world.open(agent)
    late = Postbox(world.path("bob"), agent=agent, start=False, testing=box_controls(world))
    other = Thread(target=late.run_until_idle)
    sent = box.send("bob", Job(n=1))
    world.settle()
    other.join()
    late.close()

    assert [(1, "call 2"), (1, "processed")] == shown(box.follow(sent, timeout=30))
    assert ["chunks of stream output were not stored: another worker has the message"] == told


def box_controls(world: World) -> Any:
    """Return the controls of a second process on a file."""
    from onceward.testing import Controls  # noqa: PLC0415 - the fixture has its own

    return Controls(clock=world.clock)


def test_a_handler_that_has_ended_adds_nothing(world: World) -> None:
    """A thread that outlives it gets an error."""
    streams: list[Any] = []

    def work(ctx: Context) -> None:
        streams.append(ctx.stream())
        streams[0].append("in time")

    box = world.open(writing(work))
    sent = box.send("bob", Job(n=1))
    world.settle()

    with pytest.raises(LeaseLost, match="its handler has ended"):
        streams[0].append("late")
    assert [(1, "in time"), (1, "processed")] == shown(box.follow(sent))


def test_limits_hold_for_the_output_of_one_message(world: World) -> None:
    """The error names the setting; what a retry begins again is counted once."""
    told: list[str] = []

    def work(ctx: Context) -> None:
        stream = ctx.stream()
        with suppress(StreamLimit):
            for _ in range(4):
                stream.append("x" * 10)
        try:
            stream.append("x" * 200)
        except StreamLimit as error:
            told.append(str(error))
        if len(told) < 2:
            raise ValueError

    box = world.open(writing(work), tuning=Tuning(max_stream_chunks=3, max_stream_bytes=100))
    sent = box.send("bob", Job(n=1))
    world.settle()
    world.wait(5)

    again = [(n, "x" * 10) for n in (5, 6, 7)]
    assert [(4, "restarted", "output"), *again, (7, "processed")] == shown(box.follow(sent))
    assert ["max_stream_chunks"] * 2 == [each.split("(")[-1].rstrip(")") for each in told]


def test_bytes_are_bounded_before_a_chunk_is_taken(world: World) -> None:
    """A chunk that is too large is refused, and smaller ones are still taken."""

    def work(ctx: Context) -> None:
        stream = ctx.stream()
        with pytest.raises(StreamLimit, match="max_stream_bytes"):
            stream.append("x" * 200)
        with pytest.raises(InvalidMessage):
            stream.append(float("nan"))
        stream.append("small")

    box = world.open(writing(work), tuning=Tuning(max_stream_bytes=100))
    sent = box.send("bob", Job(n=1))
    world.settle()

    assert [(1, "small"), (1, "processed")] == shown(box.follow(sent))


def test_output_ends_with_the_record_of_its_message(world: World) -> None:
    """It is kept while the message waits or is a dead letter, and pruned after it."""
    box, alice = world.open(writing(waiting)), world.open("alice")
    for session in ("sleeps", "dies", "ends"):
        alice.session(session).send("bob", Job(n=1))
    world.settle()
    for _ in range(3):
        world.clock.forward(30 * 86400)
        box.file.run_maintenance()
    kept = box.query(BATCHES)
    world.wait(365 * 86400)
    for _ in range(3):
        world.clock.forward(30 * 86400)
        box.file.run_maintenance()

    left = box.query(BATCHES)
    assert ([("sleeps", 1, 1), ("dies", 1, 1)], [("dies", 1, 1)]) == (kept, left)


def waiting(ctx: Context) -> None:
    """Put out, and wait for a year, fail or return, as the session says."""
    ctx.stream(ctx.session).append("a")
    if ctx.session == "sleeps":
        ctx.sleep("365d")
    if ctx.session == "dies":
        raise Reject


def test_a_handler_without_output_pays_no_statement(world: World) -> None:
    """Neither its call nor its end asks for streams."""
    seen: list[str] = []
    box = world.open(writing(lambda _: None))
    box.send("bob", Job(n=1))
    assert box._db._con is not None
    box._db._con.exec_trace = lambda _, sql, __: seen.append(sql) or True  # type: ignore[func-returns-value]
    world.settle()

    assert [] == [sql for sql in seen if "output_batches" in sql]


def test_a_batch_is_one_commit_and_the_last_one_is_the_handlers(world: World) -> None:
    """A thousand chunks cost what their batches cost."""
    seen: list[str] = []

    def work(ctx: Context) -> None:
        stream = ctx.stream()
        stream.append(0)
        seen.clear()
        for n in range(1, 1500):
            stream.append(n)

    box = world.open(writing(work), tuning=Tuning(stream_batch_bytes=1 << 20))
    sent = box.send("bob", Job(n=1))
    assert box._db._con is not None
    box._db._con.exec_trace = lambda _, sql, __: seen.append(sql.strip().split()[0]) or True  # type: ignore[func-returns-value]
    world.settle()

    assert ["BEGIN", "INSERT", "COMMIT"] == [each for each in seen if each != "SAVEPOINT"][:3]
    assert 2 == seen.count("COMMIT")
    assert 1500 == len(shown(box.follow(sent))) - 1


def test_a_pause_leaves_no_chunk_behind(tmp_path: Path) -> None:
    """A handler that says nothing more for long has its chunks committed by another thread."""
    go_on = Flag()

    def work(ctx: Context) -> None:
        ctx.stream().append("first")
        assert go_on.wait(30)

    with Postbox(
        tmp_path / "bob.db", agent=writing(work), tuning=Tuning(stream_batch_for=0.01)
    ) as box:
        following = box.follow(box.send("bob", Job(n=1)), timeout=30)
        first = next(following)
        go_on.set()

        assert (Chunk(1, "output", "first"), [(1, "processed")]) == (first, shown(following))


def test_many_readers_follow_one_handler_while_it_runs(tmp_path: Path) -> None:
    """Each gets every item once, in order, from wherever it begins."""
    seen: dict[int, list[object]] = {}

    def work(ctx: Context) -> None:
        stream = ctx.stream()
        for n in range(300):
            stream.append(n)
            if n % 50 == 0:
                stream.flush()

    with (
        Postbox(tmp_path / "bob.db", agent=writing(work)),
        Postbox(tmp_path / "alice.db", agent="alice") as alice,
    ):
        ticket = alice.request("bob", Job(n=1))

        def follow(after: int) -> None:
            seen[after] = shown(alice.follow(ticket, after=after, timeout=30))

        threads = [Thread(target=follow, args=(after,)) for after in (0, 10, 299)]
        for each in threads:
            each.start()
        for each in threads:
            each.join()

    for after, items in seen.items():
        expected = [(n + 1, n) for n in range(after, 300)]
        assert [*expected, (300, "processed")] == items


def test_a_coroutine_puts_out_and_an_async_reader_follows(tmp_path: Path) -> None:
    """Both are awaited; the reader is in another file of the folder."""
    assert [(1, "a"), (2, "b"), (2, "processed")] == asyncio.run(_put_out_and_follow(tmp_path))


async def _put_out_and_follow(folder: Path) -> list[object]:
    agent = Agent("bob")

    @agent.on(Job)
    async def work(job: Job, ctx: AsyncContext) -> None:
        stream = ctx.stream("log")
        await stream.append("a")
        await stream.flush()
        await stream.append("b")

    async with (
        AsyncPostbox(folder / "bob.db", agent=agent),
        AsyncPostbox(folder / "alice.db", agent="alice") as alice,
    ):
        ticket = await alice.request("bob", Job(n=1))
        items: list[StreamItem] = [each async for each in alice.follow(ticket, timeout=30)]
    return shown(items)


def test_each_message_of_a_batch_has_its_output(world: World) -> None:
    """It is committed with the batch, and begins again where the message is handled alone."""
    agent = Agent("bob")

    @agent.on(Job, batch=2, within=0)
    def work(jobs: list[Job], ctx: BatchContext) -> None:
        for job, message in zip(jobs, ctx.messages, strict=True):
            ctx.stream(message).append(job.n)
        with pytest.raises(InvalidArgument, match=r"ctx\.step\(message, function"):
            ctx.now()  # type: ignore[attr-defined]  # type checkers say so, too
        if len(jobs) > 1:
            raise ValueError

    box = world.open(agent)
    sent = [box.send("bob", Job(n=n)) for n in range(2)]
    world.settle()
    first = [shown(box.follow(each, timeout=0)) for each in sent]
    world.wait(5)

    assert [[(1, 0)], [(1, 1)]] == first
    assert [[(2, "restarted", "output"), (3, n), (3, "processed")] for n in range(2)] == [
        shown(box.follow(each, timeout=0)) for each in sent
    ]


def test_output_of_a_batch_that_is_well_leaves_with_its_commit(world: World) -> None:
    """Nothing of it is committed by itself."""
    agent, seen = Agent("bob"), list[str]()

    @agent.on(Job, batch=2, within=0)
    def work(jobs: list[Job], ctx: BatchContext) -> None:
        for job, message in zip(jobs, ctx.messages, strict=True):
            ctx.stream(message, "told").append(job.n)
        seen.clear()

    box = world.open(agent, tuning=Tuning(stream_batch_for=60))
    sent = [box.send("bob", Job(n=n)) for n in range(2)]
    assert box._db._con is not None
    box._db._con.exec_trace = lambda _, sql, __: seen.append(sql) or True  # type: ignore[func-returns-value]
    world.settle()
    alone = seen[: seen.index("COMMIT")]

    assert [[(1, n), (1, "processed")] for n in range(2)] == [
        shown(box.follow(each, timeout=0)) for each in sent
    ]
    assert 2 == len([sql for sql in alone if "INTO _onceward_output_batches" in sql])


@step
def saying(word: str) -> str:
    """Put a word out."""
    stream = step.stream()
    stream.append(word)
    stream.flush()
    return stream.name


@step
async def awaited_saying(word: str) -> str:
    """Put a word out, as a coroutine."""
    stream = step.async_stream()
    await stream.append(word)
    await stream.flush()
    return stream.name


@step
async def stopping_the_loop() -> None:
    """Take the stream of plain functions."""
    with pytest.raises(InvalidArgument, match=r"step\.async_stream\(\)"):
        step.stream()


@step
async def calling_plainly(word: str) -> str:
    """Call another step inside of this one."""
    return await awaited_saying(word)


def test_a_decorated_function_puts_out_without_a_context(world: World) -> None:
    """By default it is the step's own stream; where it is a plain function, nothing is kept."""
    names: list[str] = []
    box = world.open(writing(lambda _: names.append(saying("hello"))))
    sent = box.send("bob", Job(n=1))
    world.settle()

    assert ["saying", "output"] == [*names, saying("unheard")]
    assert [Chunk(1, "saying", "hello")] == list(box.follow(sent, timeout=0))[:-1]


def test_a_decorated_coroutine_puts_out_without_a_context(tmp_path: Path) -> None:
    """It awaits its stream, which also a step that it calls plainly has."""

    async def main() -> tuple[list[str], list[object]]:
        agent, names = Agent("bob"), list[str]()

        @agent.on(Job)
        async def work(job: Job, ctx: AsyncContext) -> None:
            names.append(await awaited_saying("one"))
            names.append(await calling_plainly("two"))
            names.append(await ctx.step(saying, "three"))
            await stopping_the_loop()

        async with AsyncPostbox(tmp_path / "bob.db", agent=agent) as box:
            sent = await box.send("bob", Job(n=1))
            items = [each async for each in box.follow(sent, timeout=30)]
        return [*names, await awaited_saying("unheard")], [getattr(e, "body", "") for e in items]

    names, bodies = asyncio.run(main())

    assert ["awaited_saying", "calling_plainly", "saying", "output"] == names
    assert ["one", "two", "three", ""] == bodies


def test_chunks_of_a_transaction_wait_for_no_thread_that_waits_for_it(tmp_path: Path) -> None:
    """The thread that commits chunks in time holds none while it waits for the handler's lock."""

    def work(ctx: Context) -> None:
        def turn() -> None:
            for n in range(6):
                ctx.stream().append(n)
                Flag().wait(0.004)

        ctx.step(turn, tx=True)

    with Postbox(
        tmp_path / "bob.db", agent=writing(work), tuning=Tuning(stream_batch_for=0.002)
    ) as box:
        sent = [box.send("bob", Job(n=n)) for n in range(20)]
        bodies = [
            [item.body for item in box.follow(each, timeout=30) if isinstance(item, Chunk)]
            for each in sent
        ]

    assert [[*range(6)]] * 20 == bodies
