"""Foreign keys of the application's tables, and pragmas, in each transaction that users write."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import apsw
import pytest

from onceward import Agent, AsyncPostbox, BatchContext, Context, Postbox, step
from onceward.errors import InvalidArgument

Open = Callable[..., Postbox]
REFERS = "purchase INTEGER REFERENCES purchase (id)"
SCHEMA = (
    "CREATE TABLE purchase (id INTEGER PRIMARY KEY)",
    f"CREATE TABLE line (id INTEGER, {REFERS} ON DELETE CASCADE)",
    f"CREATE TABLE later (id INTEGER, {REFERS} DEFERRABLE INITIALLY DEFERRED)",
    "INSERT INTO purchase VALUES (1)",
    "INSERT INTO line VALUES (1, 1)",
)
ORPHAN = "INSERT INTO line VALUES (2, 77)"
LATE_ORPHAN = "INSERT INTO later VALUES (2, 77)"


def shop_of(opened: Open, agent: Agent | str = "shop", **settings: Any) -> Postbox:
    """Open a postbox with tables that refer to each other."""
    box = opened(agent, **settings)
    with box.begin() as tx:
        for statement in SCHEMA:
            tx.execute(statement)
    return box


@pytest.mark.parametrize(("given", "kept"), [({}, 1), ({"foreign_keys": True}, 0)])
def test_the_setting_decides_whether_a_cascade_deletes(
    opened: Open, given: dict[str, Any], kept: int
) -> None:
    """Without it SQLite's own default holds: the references are not looked at."""
    box = shop_of(opened, **given)

    with box.begin() as tx:
        tx.execute("DELETE FROM purchase")

    assert [(kept,)] == box.query("SELECT count(*) FROM line")


@pytest.mark.parametrize("again", [{}, {"foreign_keys": True}, {"foreign_keys": False}])
def test_the_file_keeps_the_setting(opened: Open, again: dict[str, Any]) -> None:
    """An opening that says nothing enforces what the last explicit one said."""
    shop_of(opened, foreign_keys=True).close()

    box = opened("shop", **again)

    expected = again.get("foreign_keys", True)
    assert expected == _refused(box)


def test_another_opening_changes_it_at_once(opened: Open) -> None:
    """All postboxes of a file share its connection; it is kept when an error reopens the file."""
    box = shop_of(opened)
    before = _refused(box)

    opened("shop", foreign_keys=True)
    after = _refused(box)
    with box._db.writer.exclusive():
        box._db.reopen()

    assert (False, True, True) == (before, after, _refused(box))


def _refused(box: Postbox) -> bool:
    """Return whether a row without its parent is refused in a block."""
    try:
        with box.begin() as tx, box.begin() as inner:
            inner.execute(ORPHAN)
            tx.execute("DELETE FROM line WHERE id = 2")
    except apsw.ConstraintError:
        return True
    return False


def write(body: int) -> None:
    """Write in a step."""
    step.tx.execute(ORPHAN if body % 2 else "SELECT 1")


def handlers(done: list[int]) -> Agent:
    """Return an agent whose handlers write rows without their parents when the body is odd."""
    shop = Agent("shop")

    @shop.on("now")
    def now(body: int, ctx: Context) -> None:
        ctx.tx.execute(ORPHAN if body % 2 else "SELECT 1")
        done.append(body)

    @shop.on("late")
    def late(body: int, ctx: Context) -> None:
        ctx.tx.execute(LATE_ORPHAN if body % 2 else "SELECT 1")
        done.append(body)

    @shop.on("batch", batch=1)
    def batch(bodies: list[int], ctx: BatchContext) -> None:
        ctx.tx.execute(LATE_ORPHAN if bodies[0] % 2 else "SELECT 1")
        done.extend(bodies)

    @shop.on("stepped")
    def stepped(body: int, ctx: Context) -> None:
        ctx.step(write, body, tx=True)
        done.append(body)

    return shop


@pytest.mark.parametrize("type_", ["now", "late", "batch", "stepped"])
def test_a_handler_that_breaks_a_key_fails_alone(opened: Open, type_: str) -> None:
    """Its neighbours of the same commit are called once, also if COMMIT would find the key."""
    done: list[int] = []
    box = shop_of(opened, handlers(done), foreign_keys=True, handler_attempts=1)

    for number in range(6):
        box.send("shop", number, type=type_, ordering_key=str(number))
    box.run_until_idle()

    good = [number for number in done if number % 2 == 0]
    errors = {each.last_error for each in box.dead_letters.list()}
    assert [0, 2, 4] == sorted(good)
    assert (3, [(1, 0)]) == (
        len(box.dead_letters.list()),
        box.query("SELECT (SELECT count(*) FROM line), (SELECT count(*) FROM later)"),
    )
    assert all("FOREIGN KEY constraint failed" in str(error) for error in errors)


def test_a_function_that_runs_at_opening_obeys(opened: Open) -> None:
    """What at_open writes is checked as well."""
    shop_of(opened, foreign_keys=True).close()
    shop = Agent("shop")

    @shop.at_open
    def fill(box: Postbox) -> None:
        with box.begin() as tx:
            tx.execute(ORPHAN)

    with pytest.raises(apsw.ConstraintError, match="FOREIGN KEY"):
        opened(shop)


REFUSED = [
    "PRAGMA foreign_keys = ON", "pragma Foreign_Keys(1)", "PRAGMA main.foreign_keys=ON",
    "SELECT 1; PRAGMA foreign_keys = ON", "/* ; */ PRAGMA -- why\n 'foreign_keys' = 1",
    "PRAGMA journal_mode = delete", "PRAGMA synchronous(off)", "PRAGMA wal_checkpoint",
    "PRAGMA wal_checkpoint(TRUNCATE)", "PRAGMA locking_mode = EXCLUSIVE",
    "PRAGMA busy_timeout = 0", "PRAGMA query_only = ON", "PRAGMA writable_schema = ON",
    "PRAGMA ignore_check_constraints = ON", "PRAGMA [trusted_schema] = ON",
    "EXPLAIN PRAGMA foreign_keys = ON", "PRAGMA wal_autocheckpoint = 0", "PRAGMA nonsense = 1",
]  # fmt: skip
TAKEN = [
    "PRAGMA foreign_keys", "PRAGMA table_info(line)", "PRAGMA foreign_key_check(line)",
    "PRAGMA user_version = 7", "PRAGMA defer_foreign_keys = ON", "PRAGMA optimize",
    "SELECT 'x; PRAGMA foreign_keys = ON'", "SELECT 1 AS pragma -- ; PRAGMA foreign_keys = ON",
    'CREATE TABLE "a; PRAGMA foreign_keys = ON" (pragma TEXT)',
]  # fmt: skip


@pytest.mark.parametrize("statement", REFUSED)
def test_a_pragma_without_effect_or_for_all_is_refused(opened: Open, statement: str) -> None:
    """Blocks and queries refuse it by name, and the block's transaction goes on."""
    box = shop_of(opened)
    flags = ("foreign_keys", "synchronous", "busy_timeout", "query_only", "wal_autocheckpoint")

    with box.begin() as tx:
        before = [tx.execute(f"PRAGMA {name}") for name in flags]
        for call in (
            lambda: tx.execute(statement),
            lambda: tx.executemany(statement, [()]),
            lambda: box.query(statement),
        ):
            with pytest.raises(InvalidArgument, match="PRAGMA"):
                call()
        assert before == [tx.execute(f"PRAGMA {name}") for name in flags]
        tx.execute("INSERT INTO purchase VALUES (5)")

    assert [(2,)] == box.query("SELECT count(*) FROM purchase")


@pytest.mark.parametrize("statement", TAKEN)
def test_what_belongs_to_a_transaction_is_taken(opened: Open, statement: str) -> None:
    """Questions, values that are committed with it, and the word inside other text."""
    box = shop_of(opened)

    with box.begin() as tx:
        tx.execute(statement)

    assert [(1,)] == box.query("SELECT count(*) FROM purchase")


def test_the_async_postbox_enforces_and_refuses(tmp_path: Path) -> None:
    """The same setting and the same refusal, with await."""

    async def main() -> list[str]:
        async with AsyncPostbox(
            tmp_path / "shop.db", agent="shop", start=False, foreign_keys=True
        ) as box:
            said = []
            for statement in (ORPHAN, "PRAGMA foreign_keys = OFF"):
                try:
                    async with box.begin() as tx:
                        for each in SCHEMA:
                            await tx.execute(each)
                        await tx.execute(statement)
                except (apsw.ConstraintError, InvalidArgument) as error:
                    said.append(type(error).__name__)
            return said

    assert ["ConstraintError", "InvalidArgument"] == asyncio.run(main())
