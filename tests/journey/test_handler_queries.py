"""A handler reads rows without taking the writer, and steps may follow."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import apsw
import pytest

from onceward import Agent, AsyncContext, BatchContext, Context, Postbox, Run
from onceward.errors import InvalidArgument, OncewardError, ReadOnlyStore
from onceward.testing import Harness

COUNT = "SELECT count(*) AS n FROM heard"
SEEN = list[Any]()


@pytest.fixture(autouse=True)
def nothing_seen() -> None:
    """Begin each test without values."""
    SEEN.clear()


def opened(folder: Path, agent: Agent) -> Postbox:
    """Return the agent's postbox with a table."""
    box = Postbox(folder / "a.db", agent=agent, start=False)
    with box.begin() as tx:
        tx.execute("CREATE TABLE IF NOT EXISTS heard (text TEXT)")
    return box


def handled(folder: Path, call: Callable[[Context], object], *, messages: int = 1) -> list[Any]:
    """Return what *call* returned, called by a handler for each message of one lane."""
    agent = Agent("a")

    @agent.on("x")
    def handle(body: int, ctx: Context) -> None:
        SEEN.append(call(ctx))

    with opened(folder, agent) as box:
        box.send_many([("a", n) for n in range(messages)], type="x")
        box.run_until_idle()
        assert 0 == len(box.dead_letters.list())
    return SEEN


def step_after(ctx: Context) -> list[Any]:
    """Read, then make a step, read again, and write."""
    before = ctx.query(COUNT)
    known = ctx.step(len, "four")
    ctx.tx.execute("INSERT INTO heard VALUES (?)", (known,))
    return [before[0]["n"], ctx.query(COUNT)[0]["n"]]


def test_a_step_may_follow(tmp_path: Path) -> None:
    """The read holds no lock; once the handler has written, it sees its own rows."""
    assert [[0, 1]] == handled(tmp_path, step_after)


def test_rows_of_earlier_messages_are_there(tmp_path: Path) -> None:
    """Those that quick handlers wrote before in the same lane, although they share a commit."""

    def write(ctx: Context) -> int:
        [(count,)] = ctx.query(COUNT)
        ctx.tx.execute("INSERT INTO heard VALUES ('x')")
        return int(count)

    assert list(range(20)) == handled(tmp_path, write, messages=20)


def test_the_writer_is_free_for_others(tmp_path: Path) -> None:
    """Another thread commits while a step runs that follows the read; the next read sees it."""

    def write() -> None:
        with Postbox(tmp_path / "a.db", start=False) as box, box.begin() as tx:
            tx.execute("INSERT INTO heard VALUES ('elsewhere')")

    def write_elsewhere() -> None:
        with ThreadPoolExecutor(1) as pool:
            pool.submit(write).result()

    def read(ctx: Context) -> list[int]:
        before = ctx.query(COUNT)
        ctx.step(write_elsewhere)
        return [before[0]["n"], ctx.query(COUNT)[0]["n"]]

    assert [[0, 1]] == handled(tmp_path, read)


@pytest.mark.parametrize("written", [False, True])
@pytest.mark.parametrize(
    ("sql", "error"),
    [
        ("DELETE FROM heard", ReadOnlyStore),
        ("INSERT INTO heard VALUES (1) RETURNING text", ReadOnlyStore),
        ("SELECT 1; DELETE FROM heard", ReadOnlyStore),
        ("COMMIT", (ReadOnlyStore, apsw.SQLError)),
        ("PRAGMA journal_mode = DELETE", InvalidArgument),
        ("SELECT missing FROM heard", apsw.SQLError),
        ("", InvalidArgument),
    ],
)
def test_it_only_reads(tmp_path: Path, written: bool, sql: str, error: Any) -> None:
    """Also where the handler has written: what it wrote is kept."""

    def read(ctx: Context) -> int:
        if written:
            ctx.tx.execute("INSERT INTO heard VALUES ('mine')")
        with pytest.raises(error) as raised:
            ctx.query(sql)
        assert "permissions" not in str(raised.value)
        return int(ctx.query(COUNT)[0][0])

    assert [int(written)] == handled(tmp_path, read)
    with Postbox(tmp_path / "a.db", start=False) as box:
        assert [(int(written),)] == box.query(COUNT)


def test_bindings_are_checked(tmp_path: Path) -> None:
    """As for a query of the postbox."""

    def read(ctx: Context) -> list[Any]:
        with pytest.raises(InvalidArgument):
            ctx.query("SELECT ?", "text")
        ctx.tx.execute("INSERT INTO heard VALUES ('mine')")
        with pytest.raises(InvalidArgument):
            ctx.query("SELECT :a", {"b": 1})
        return [*ctx.query("SELECT ? AS n", (3,)), *ctx.query("SELECT :n AS n", {"n": 4})]

    assert [[(3,), (4,)]] == handled(tmp_path, read)


def test_coroutines_batches_and_runs_read_too(tmp_path: Path) -> None:
    """Each before and after it has written."""
    agent = Agent("a")

    @agent.on("async")
    async def wait(body: int, ctx: AsyncContext) -> None:
        SEEN.append((await ctx.query(COUNT))[0]["n"])
        await ctx.tx.execute("INSERT INTO heard VALUES ('x')")
        SEEN.append((await ctx.query(COUNT))[0]["n"])

    @agent.on("batch", batch=1)
    def gather(bodies: list[int], ctx: BatchContext) -> None:
        SEEN.append(ctx.query(COUNT)[0]["n"])
        ctx.tx.execute("INSERT INTO heard VALUES ('y')")
        SEEN.append(ctx.query(COUNT)[0]["n"])

    @agent.runs("talk")
    def talk(run: Run) -> None:
        run.write(lambda tx: tx.execute("INSERT INTO heard VALUES ('z')"))
        SEEN.append(run.query(COUNT)[0]["n"])

    with opened(tmp_path, agent) as box:
        box.send("a", 1, type="async")
        box.run_until_idle()
        box.send("a", 1, type="batch")
        box.run_until_idle()
        box.session("talk").send("a", 1, type="said")
        box.run_until_idle()

    assert [0, 1, 1, 2, 3] == SEEN


def test_a_thread_of_the_handler_reads_what_is_committed(tmp_path: Path) -> None:
    """It does not reach into the transaction of the handler's own thread."""

    def read(ctx: Context) -> int:
        ctx.tx.execute("INSERT INTO heard VALUES ('mine')")
        with ThreadPoolExecutor(1) as pool:
            return int(pool.submit(ctx.query, COUNT).result()[0][0])

    assert [0] == handled(tmp_path, read)


@pytest.fixture
def harness() -> Iterator[Harness]:
    """Return a harness with the table."""
    with Harness(Agent("a"), schema="CREATE TABLE heard (text TEXT)") as made:
        yield made


def test_a_trial_reads_its_own_rows(harness: Harness) -> None:
    """A handler that a test calls by hand reads as one that a worker calls."""
    with harness.context(1) as ctx:
        before = ctx.query(COUNT)[0][0]
        ctx.tx.execute("INSERT INTO heard VALUES ('x')")

        assert (0, 1) == (before, ctx.query(COUNT)[0][0])


def test_a_claim_that_was_lost_is_told(tmp_path: Path) -> None:
    """If the commit of earlier writes fails, the handler does not go on with stale rows."""

    def read(ctx: Context) -> int:
        ctx._group.lost = True
        try:
            return len(ctx.query(COUNT))
        except OncewardError as error:
            SEEN.append(type(error).__name__)
            raise

    handled(tmp_path, read)

    assert "LeaseLost" == SEEN[0]
