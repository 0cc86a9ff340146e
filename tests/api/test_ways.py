"""Transports and listeners that are made for a postbox: when, of what, and what errors do."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib import metadata
from importlib.metadata import EntryPoint
from pathlib import Path
from threading import Event
from typing import NoReturn

import pytest

from onceward import Agent, AsyncPostbox, Postbox
from onceward.api import postbox, routing
from onceward.api.peers import PeerInfo
from onceward.core.maintenance import Maintenance
from onceward.errors import InvalidArgument, StoreClosed
from onceward.events import DeliveryFailed
from onceward.file import open_files
from onceward.file.transaction import StoreTransaction
from onceward.testing import Controls
from onceward.testing.clock import ManualClock
from onceward.transports import (
    Accept,
    Answer,
    Features,
    Parcel,
    TransportContext,
)
from onceward.transports.memory import MemoryTransport


class Pigeon:
    """Deliver through memory, to urls that begin with its scheme."""

    features = Features(schemes=frozenset({"pigeon", "dove"}))

    def __init__(self, context: TransportContext) -> None:
        self.context, self._way = context, MemoryTransport()

    def check(self, url: str) -> None:
        """Refuse a url that names no agent."""
        if not url.partition(":")[2]:
            msg = f"{url!r} names no agent"
            raise InvalidArgument(msg)

    def deliver(self, url: str, parcel: Parcel) -> Answer:
        """Deliver to the agent behind the colon."""
        return self._way.deliver(f"memory:{url.partition(':')[2]}", parcel)

    def close(self) -> None:
        """Hold nothing."""


class Doorway:
    """Note what happens to a listener."""

    def __init__(self) -> None:
        self.accept: dict[str, Accept] = {}
        self.said: list[str] = []

    def listen(self, name: str, accept: Accept) -> None:
        """Take in the function of an agent."""
        self.accept[name] = accept
        self.said.append(f"listen {name}")

    def close(self) -> None:
        """Ask the agent's file whether it is still open."""
        for name, accept in self.accept.items():
            accept(Parcel(sender="a", recipient=name, epoch="1", number=1, previous=""))
        self.said.append("close")


@pytest.fixture
def bob(tmp_path: Path) -> Iterator[Postbox]:
    """Yield the postbox of a recipient in another folder."""
    (tmp_path / "far").mkdir()
    with Postbox(tmp_path / "far" / "bob.db", agent="bob", start=False) as box:
        yield box


def test_a_factory_is_given_the_agent_its_folder_settings_and_clock(
    tmp_path: Path, bob: Postbox
) -> None:
    """A transport is made once, from the context of its postbox, for each scheme it serves."""
    made: list[Pigeon] = []

    def make(context: TransportContext) -> Pigeon:
        made.append(Pigeon(context))
        return made[-1]

    clock = ManualClock()
    with Postbox(
        tmp_path / "a.db",
        agent="a",
        start=False,
        testing=Controls(clock=clock),
        transports={"pigeon": make},
        ack="stored",
    ) as box:
        box.peers.add({"bob": "pigeon:bob", "carl": "dove:bob"})
        sent = box.send("bob", 1)
        box.run_until_idle()
        state = box.state(sent)

    [context] = [each.context for each in made]
    assert ("acked", "a", tmp_path) == (state, context.agent, context.folder)
    assert ("stored", clock) == (context.settings.ack, context.clock)


def test_a_class_of_transports_is_a_factory(tmp_path: Path, bob: Postbox) -> None:
    """A class that is given for a scheme is called with the context, as a function is."""
    with Postbox(tmp_path / "a.db", agent="a", start=False, transports={"pigeon": Pigeon}) as box:
        box.peers.add("bob", "pigeon:bob")
        box.send("bob", "coo")
        box.run_until_idle()

    message = bob.receive()
    assert message is not None
    assert "coo" == message.body


def test_a_transport_is_made_outside_every_transaction(tmp_path: Path, bob: Postbox) -> None:
    """Another thread can write to the file while a factory runs, however long it takes."""
    path, written = tmp_path / "a.db", list[str]()

    def make(context: TransportContext) -> Pigeon:
        with ThreadPoolExecutor(1) as pool:
            written.append(pool.submit(box.send, "carl", 2).result(5))
        return Pigeon(context)

    with Postbox(path, agent="a", start=False, transports={"pigeon": Pigeon}) as box:
        box.peers.add("bob", "pigeon:bob")
        box.send("bob", 1)
    with Postbox(
        path, start=False, transports={"pigeon": make}, hold_unknown=True, busy_timeout=1.0
    ) as box:
        box.run_until_idle()

    assert 1 == len(written)
    assert [1] == [past.body for past in bob.history().messages]


def test_a_transport_that_cannot_be_made_is_told_at_its_peer(tmp_path: Path) -> None:
    """Its peer backs off and names the error, messages spend no budget; a later try may succeed."""
    path, clock, healthy = tmp_path / "a.db", ManualClock(), list[bool]()
    heard: list[str] = []

    def make(context: TransportContext) -> Pigeon:
        if not healthy:
            msg = "no key"
            raise OSError(msg)
        return Pigeon(context)

    with Postbox(path, agent="a", start=False, transports={"pigeon": Pigeon}) as box:
        box.peers.add("bob", "pigeon:bob")
        sent = box.send("bob", 1)
    (tmp_path / "far").mkdir()
    with (
        Postbox(
            path,
            start=False,
            testing=Controls(clock=clock),
            transports={"pigeon": make},
            delivery_retry="±0%",
            handler_retry="±0%",
        ) as box,
        Postbox(tmp_path / "far" / "bob.db", agent="bob", start=False),
    ):
        box.on(DeliveryFailed, lambda event: heard.append(event.error))
        box.run_until_idle()
        [peer] = box.peers.list()
        [(attempts,)] = box.query("SELECT attempts FROM onceward_outbox")
        healthy.append(True)
        clock.advance(2.0)
        box.run_until_idle()
        state = box.state(sent)

    why = "Unreachable: the transport for pigeon cannot be made: OSError: no key"
    assert (1, why, 0) == (peer.failures, peer.last_error, attempts)
    assert ([why], "sent") == (heard, state)


def test_a_url_is_checked_when_it_is_registered(tmp_path: Path) -> None:
    """A url that its transport refuses is not registered, nor any that was given with it."""
    with Postbox(tmp_path / "a.db", agent="a", start=False, transports={"pigeon": Pigeon}) as box:
        with pytest.raises(InvalidArgument, match="names no agent"):
            box.peers.add({"bob": "pigeon:bob", "carl": "pigeon:"})
        with pytest.raises(InvalidArgument, match="no transport for 'ftp:bob': there are dove, "):
            box.peers.add("bob", "ftp:bob")
        with pytest.raises(InvalidArgument, match="no transport for 'pigeon'"):
            box.peers.add("bob", "pigeon")

        assert [] == box.peers.list()


@pytest.mark.parametrize(
    "url", ["file:", "file:bob.db", "memory:", "memory:no name", "http:bob", ""]
)
def test_a_url_that_reaches_no_agent_is_refused(tmp_path: Path, url: str) -> None:
    """The transports of the package know the form of their urls, too."""
    with (
        Postbox(tmp_path / "a.db", agent="a", start=False) as box,
        pytest.raises(InvalidArgument),
    ):
        box.peers.add("bob", url)


def test_a_transport_that_cannot_be_made_registers_no_url(tmp_path: Path) -> None:
    """The registration says why the transport cannot be made."""

    def make(context: TransportContext) -> Pigeon:
        del context
        msg = "install pigeons"
        raise ModuleNotFoundError(msg)

    with (
        Postbox(tmp_path / "a.db", agent="a", start=False, transports={"pigeon": make}) as box,
        pytest.raises(InvalidArgument, match="ModuleNotFoundError: install pigeons"),
    ):
        box.peers.add("bob", "pigeon:bob")


def test_many_peers_are_registered_by_one_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mapping of urls costs one commit; a single wrong name leaves all of them out."""
    urls = {f"peer{n}": f"memory:peer{n}" for n in range(100)}
    with Postbox(tmp_path / "a.db", agent="a", start=False) as box:
        commits: list[StoreTransaction] = []
        commit = StoreTransaction.commit

        def counted(tx: StoreTransaction) -> None:
            commits.append(tx)
            commit(tx)

        monkeypatch.setattr(StoreTransaction, "commit", counted)
        box.peers.add(urls)
        made = len(commits)
        with pytest.raises(InvalidArgument):
            box.peers.add({"more": "memory:more", "no name": "memory:x"})

        assert 1 == made
        assert urls == {peer.name: peer.url for peer in box.peers.list()}


def test_installed_transports_are_looked_for_once_per_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Entry points are read from disk at the first need, and kept for every postbox."""
    looks: list[str] = []

    def points(*, group: str) -> list[EntryPoint]:
        looks.append(group)
        return [EntryPoint("pigeon", "tests.api.test_ways:Pigeon", group)]

    routing._installed.cache_clear()
    monkeypatch.setattr(metadata, "entry_points", points)
    try:
        for name in ("a", "b"):
            with Postbox(tmp_path / f"{name}.db", agent=name, start=False) as box:
                box.peers.add("bob", "pigeon:bob")
                box.peers.add("carl", "pigeon:carl")
    finally:
        routing._installed.cache_clear()

    assert ["onceward.transports"] == looks


def test_listeners_are_open_while_the_file_is(tmp_path: Path, bob: Postbox) -> None:
    """A listener takes parcels from the opening to the closing, even without engines."""
    doorway = Doorway()
    with Postbox(tmp_path / "a.db", agent="a", start=False, listeners=[doorway]) as box:
        open_with = list(doorway.said)
        file = box._db

    assert (["listen a"], ["listen a", "close"]) == (open_with, doorway.said)
    with pytest.raises(StoreClosed):
        file.read("SELECT 1")


def test_a_listener_may_be_a_factory(tmp_path: Path) -> None:
    """A factory of listeners is given the context of the postbox."""
    given: list[TransportContext] = []
    doorway = Doorway()

    def make(context: TransportContext) -> Doorway:
        given.append(context)
        return doorway

    with Postbox(tmp_path / "a.db", agent="a", start=False, listeners=[make]):
        pass

    assert ["a"] == [context.agent for context in given]
    assert ["listen a", "close"] == doorway.said


def test_a_listener_that_cannot_listen_closes_the_file(tmp_path: Path) -> None:
    """The opening raises what a listener raises; listeners before it and the file are closed."""

    class Deaf(Doorway):
        def listen(self, name: str, accept: Accept) -> None:
            del accept
            msg = f"the port of {name} is in use"
            raise OSError(msg)

    doorway = Doorway()
    with pytest.raises(OSError, match="the port of a is in use"):
        Postbox(tmp_path / "a.db", agent="a", listeners=[doorway, Deaf()])

    assert ["listen a", "close"] == doorway.said
    Postbox(tmp_path / "a.db", agent="a", start=False).close()


class Broken(Exception):
    """What a part of a postbox raises."""


def _raise(*_: object, **__: object) -> NoReturn:
    raise Broken


def _deaf(folder: Path, agent: Agent, patch: pytest.MonkeyPatch) -> Postbox:
    del patch
    return Postbox(folder / "a.db", agent=agent, listeners=[_raise])


def _wrong_transport(folder: Path, agent: Agent, patch: pytest.MonkeyPatch) -> Postbox:
    patch.setattr(routing, "FileTransport", _raise)
    return Postbox(folder / "a.db", agent=agent)


def _unwilling(folder: Path, agent: Agent, patch: pytest.MonkeyPatch) -> Postbox:
    del patch

    @agent.at_open
    async def at_open(_: Postbox) -> None:
        raise Broken

    return Postbox(folder / "a.db", agent=agent)


def _threadless(folder: Path, agent: Agent, patch: pytest.MonkeyPatch) -> Postbox:
    patch.setattr(Maintenance, "start", _raise)
    return Postbox(folder / "a.db", agent=agent)


@pytest.mark.parametrize("fail", [_deaf, _wrong_transport, _unwilling, _threadless])
def test_an_opening_that_fails_closes_what_it_opened(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    fail: Callable[[Path, Agent, pytest.MonkeyPatch], Postbox],
) -> None:
    """A program that tries it again and again keeps no file and no loop of a failure."""
    agent = Agent("a")

    @agent.on("job")
    async def job(_: int) -> None:
        """Do nothing."""

    with pytest.raises(Broken):
        fail(tmp_path, agent, monkeypatch)

    assert {} == open_files.files
    loops = [each for each in threading.enumerate() if each.name == "onceward-loop"]
    for loop in loops:
        loop.join(10)
    assert [False] * len(loops) == [loop.is_alive() for loop in loops]


@pytest.mark.parametrize("cancelled_in", ["open", "close"])
def test_a_cancelled_task_leaves_no_open_postbox(tmp_path: Path, cancelled_in: str) -> None:
    """The thread that opens or closes the file ends its work, and what it opened is closed."""
    begun, may_go_on = Event(), Event()

    def pause() -> None:
        begun.set()
        assert may_go_on.wait(10)

    class Slow:
        def listen(self, *_: object) -> None:
            if cancelled_in == "open":
                pause()

        def close(self) -> None:
            if cancelled_in == "close":
                pause()

    async def main() -> None:
        box = AsyncPostbox(tmp_path / "a.db", agent="a", listeners=[Slow()])
        if cancelled_in == "close":
            await box.open()
        task = asyncio.create_task(box.open() if cancelled_in == "open" else box.close())
        await asyncio.to_thread(begun.wait, 10)
        task.cancel()
        await asyncio.sleep(0)
        may_go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert {} == open_files.files

    asyncio.run(main())

    bridges = [each for each in threading.enumerate() if each.name == "onceward-bridge-a"]
    for bridge in bridges:
        bridge.join(10)
    assert [False] * len(bridges) == [bridge.is_alive() for bridge in bridges]


def test_no_call_that_waits_keeps_a_postbox_from_closing(tmp_path: Path) -> None:
    """All default threads of the loop flush, which only closing ends; opening needs none either."""

    async def main() -> None:
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
        box = await AsyncPostbox(tmp_path / "a.db", agent="a", hold_unknown=True).open()
        await box.send("b", 1)
        flushing = asyncio.create_task(box.flush(None))
        await asyncio.sleep(0)
        async with AsyncPostbox(tmp_path / "c.db", agent="c"):
            await box.close()
        with pytest.raises(StoreClosed):
            await flushing

    asyncio.run(main())
    assert {} == open_files.files


def test_a_block_uses_a_postbox_that_is_open(tmp_path: Path) -> None:
    """Opening it a second time would leave the first one open for ever."""

    async def main() -> tuple[bool, str]:
        box = await AsyncPostbox(tmp_path / "a.db", agent="a").open()
        first = box._opened
        async with await box.open():
            same = first is box._opened
        async with box:  # it opens a closed one again
            return same, box.agent

    assert (True, "a") == asyncio.run(main())
    assert {} == open_files.files


def test_a_transport_that_hangs_delays_closing_by_its_timeout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file is closed while the transport's own closing still hangs on a thread."""
    monkeypatch.setattr(postbox, "CLOSE_WITHIN", 0.01)
    release, closed = Event(), Event()

    class Stuck(Pigeon):
        def close(self) -> None:
            assert release.wait(60)
            closed.set()

    box = Postbox(tmp_path / "a.db", agent="a", start=False, transports={"pigeon": Stuck})
    box.peers.add("bob", "pigeon:bob")
    box.close(timeout=0)
    hung = not closed.is_set()
    with pytest.raises(StoreClosed):
        box.send("bob", 1)
    release.set()

    assert hung
    assert closed.wait(60)


def test_an_error_of_a_closing_transport_is_raised(tmp_path: Path) -> None:
    """The file is closed nevertheless."""

    class Broken(Pigeon):
        def close(self) -> None:
            msg = "cannot close"
            raise OSError(msg)

    box = Postbox(tmp_path / "a.db", agent="a", start=False, transports={"pigeon": Broken})
    box.peers.add("bob", "pigeon:bob")
    with pytest.raises(OSError, match="cannot close"):
        box.close()
    with pytest.raises(StoreClosed):
        box.send("bob", 1)


def test_an_async_postbox_has_listeners(tmp_path: Path) -> None:
    """The awaitable postbox opens and closes listeners with its file."""
    doorway = Doorway()

    async def use() -> list[PeerInfo]:
        async with AsyncPostbox(
            tmp_path / "a.db", agent="a", start=False, listeners=[doorway]
        ) as box:
            await box.peers.add({"bob": "memory:bob"})
            return await box.peers.list()

    peers = asyncio.run(use())

    assert ["bob"] == [peer.name for peer in peers]
    assert ["listen a", "close"] == doorway.said
