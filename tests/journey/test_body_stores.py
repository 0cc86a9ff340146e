"""Large bodies in a store that is not the folder of the home."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

from onceward import Agent, Postbox
from onceward.errors import DiskFull, InvalidArgument, StoreFault, StoreUnusable
from onceward.features.large_bodies.folder import Folder
from onceward.testing import Controls, LargeBodyStoreConformance

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.journey.conftest import Clock, World

BODY = "x" * 10_000
A_DAY = timedelta(days=1)


class Shelf:
    """A store of a user, in memory, that fails when told."""

    def __init__(self, clock: Clock | None = None) -> None:
        self.kept: dict[str, tuple[bytes, datetime]] = {}
        self.fails: Exception | None = None
        self._clock = clock

    def put(self, name: str, data: bytes) -> None:
        """Keep a body."""
        self._fail()
        now = self._clock.now() / 1000 if self._clock else datetime.now(UTC).timestamp()
        self.kept[name] = data, datetime.fromtimestamp(now, UTC)

    def get(self, name: str) -> bytes:
        """Return a body."""
        self._fail()
        if name not in self.kept:
            raise FileNotFoundError(name)
        return self.kept[name][0]

    def delete(self, name: str) -> None:
        """Forget a body."""
        self._fail()
        self.kept.pop(name, None)

    def names(self, folder: str) -> Iterator[tuple[str, datetime]]:
        """Yield the names in a folder."""
        self._fail()
        found = [(name, at) for name, (_, at) in self.kept.items()]
        yield from (each for each in found if each[0].startswith(f"{folder}/"))

    def _fail(self) -> None:
        if self.fails is not None:
            raise self.fails

    def bodies(self) -> list[str]:
        """Return the names of bodies."""
        return sorted(name for name in self.kept if not name.endswith("/.owner"))


class TestShelf(LargeBodyStoreConformance):
    """The store of these tests keeps the contract."""

    def make(self, tmp_path: Path) -> Shelf:
        """Return an empty one."""
        del tmp_path
        return Shelf()


class TestFolder(LargeBodyStoreConformance):
    """So does the folder of a home."""

    @pytest.fixture
    def store(self, tmp_path: Path) -> Iterator[Any]:
        """Return the folder of an open agent's file."""
        with Postbox(tmp_path / "shop.db", agent="shop", start=False) as box:
            yield Folder(box._db)


@pytest.fixture
def shelf(world: World) -> Shelf:
    """Return an empty store."""
    return Shelf(world.clock)


def opened(world: World, shelf: Shelf, got: list[Any] | None = None) -> tuple[Postbox, Postbox]:
    """Open a sender and a reader that appends what it gets to *got*."""
    agent = Agent("reader")
    if got is not None:
        agent.on("text")(got.append)
    shop = world.open("shop", large_body=5000, large_body_store=shelf)
    return shop, world.open(agent, large_body_store=shelf)


def test_a_body_is_in_the_store_until_no_message_needs_it(world: World, shelf: Shelf) -> None:
    """Its handler gets it from there; the home has no folder of bodies."""
    world.audited, got = False, list[Any]()  # rows that were counted are pruned
    shop, box = opened(world, shelf, got)
    sent = shop.send("reader", BODY)
    world.settle()

    [name] = shelf.bodies()
    assert ([BODY], False) == (got, (world.home / "bodies").exists())
    assert name.startswith(f"shop/reader/{sent}.")
    world.wait(30 * A_DAY.total_seconds())
    for each in (box, shop, box, shop):
        each.file.run_maintenance()
    assert [] == shelf.bodies()


def test_a_key_in_a_stored_body_is_read_while_others_may_write(world: World) -> None:
    """The claim passes the message over until its worker has read the body; groups then hold."""
    taken, got, agent = list[bool](), list[str](), Agent("reader")

    class Watched(Shelf):
        def get(self, name: str) -> bytes:
            taken.append(box._db.writer.queue.taken)
            return super().get(name)

    @agent.on("scan", key="body.tenant", rate="1/h")
    def scan(body: Any) -> None:
        got.append(body["tenant"])

    shelf = Watched(world.clock)
    shop = world.open("shop", large_body=5000, large_body_store=shelf)
    box = world.open(agent, large_body_store=shelf)
    for n, (tenant, size) in enumerate((("a", 6000), ("a", 6000), ("b", 6000), ("c", 1))):
        body = {"tenant": tenant, "text": "x" * size}
        shop.send("reader", body, type="scan", ordering_key=str(n))
    world.settle()

    assert ["a", "b", "c"] == sorted(got)
    assert [False] * 3 == taken[:3]


def test_a_body_of_an_undone_send_is_removed_after_a_day(world: World, shelf: Shelf) -> None:
    """What others keep under the sender's name stays, and so does a body that waits."""
    shop, _ = opened(world, shelf)
    with pytest.raises(ZeroDivisionError), shop.begin() as tx:
        tx.send("reader", BODY)
        raise ZeroDivisionError
    [undone] = shelf.bodies()
    shelf.put("shop/reader/notes.txt", b"mine")
    waits = shop.send("reader", 2 * BODY, delay=30 * A_DAY)
    shop.file.run_maintenance()
    assert 3 == len(shelf.bodies())

    world.wait(2 * A_DAY.total_seconds())
    shop.file.run_maintenance()

    left = shelf.bodies()
    assert (False, 2) == (undone in left, len(left))
    assert [waits, "notes"] == [name.split("/")[2].split(".")[0] for name in left]


@pytest.mark.parametrize(
    ("trouble", "kind"),
    [(ValueError("no bucket"), StoreFault), (OSError(28, "no"), DiskFull)],
)
def test_a_store_that_fails_makes_a_send_fail(
    world: World, shelf: Shelf, trouble: Exception, kind: type[Exception]
) -> None:
    """Nothing is written, and the error has that of the store."""
    shop, _ = opened(world, shelf)
    shelf.fails = trouble

    with pytest.raises(kind, match=r"shop/reader/.* cannot be stored: .*no"):
        shop.send("reader", BODY)

    assert [(0,)] == shop.query("SELECT count(*) FROM onceward_outbox")


def test_a_message_waits_while_its_store_cannot_be_read(world: World, shelf: Shelf) -> None:
    """It is tried again, and handled once the store answers."""
    got = list[Any]()
    shop, box = opened(world, shelf, got)
    shop.send("reader", BODY)
    shelf.fails = TimeoutError()
    world.settle()
    assert ([], []) == (got, box.dead_letters.list())

    shelf.fails = None
    world.wait(60)
    world.settle()
    assert [BODY] == got


def test_a_reader_without_the_store_says_which_setting_is_missing(
    world: World, shelf: Shelf
) -> None:
    """In the error of the dead letter, which a replay hands over with the setting."""
    got, agent = list[Any](), Agent("reader")
    agent.on("text")(got.append)
    shop, _ = opened(world, shelf)
    sent = shop.send("reader", BODY)
    shop.run_until_idle()
    world.shut()

    box = world.open(agent)
    world.settle()
    [letter] = box.dead_letters.list()
    assert "set large_body_store as its sender does" in str(letter.last_error)
    world.shut()
    world.open(agent, large_body_store=shelf).dead_letters.replay(sent)
    world.settle()
    assert [BODY] == got


def test_two_homes_do_not_share_a_folder_of_a_store(world: World, shelf: Shelf) -> None:
    """The second one would remove the bodies of the first: it is refused, and removes nothing."""
    shop, _ = opened(world, shelf)
    shop.send("reader", BODY)
    (world.home / "other").mkdir()
    Postbox(world.home / "other" / "reader.db", agent="reader", start=False).close()
    with Postbox(
        world.home / "other" / "shop.db", agent="shop", start=False, large_body=5000,
        large_body_store=shelf, testing=Controls(clock=world.clock),
    ) as other:  # fmt: skip
        with pytest.raises(StoreUnusable, match=r"give each home .*, or delete shop/\.owner"):
            other.send("reader", BODY)
        world.clock.forward(30 * A_DAY.total_seconds())
        other.file.run_maintenance()

    assert 1 == len(shelf.bodies())


@pytest.mark.parametrize(
    ("store", "error"),
    [
        ({}, "needs the methods put, delete, names"),
        ("https://bucket", "no bucket: give one such as s3://bucket/folder"),
        ("file:///tmp", "no bucket"),
    ],
)
def test_what_is_no_store_is_refused_at_the_opening(world: World, store: Any, error: str) -> None:
    """With what it should be."""
    if isinstance(store, str):
        pytest.importorskip("pyarrow", reason="pip install 'onceward[bodies]' brings it")
    with pytest.raises(InvalidArgument, match=error):
        world.open("shop", large_body=5000, large_body_store=store)
