"""A home that cannot be called polls another one: one question is for all of its agents."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from tests.transports.forked import listening_child
from tests.transports.homes import Home, home
from tests.transports.over_http import a_parcel, context
from tests.waiting import until

from onceward import Agent, Postbox
from onceward.errors import InvalidParcel, Unreachable
from onceward.homes import Homes
from onceward.http import HomePollListener
from onceward.message import wire
from onceward.message.parcel import Answer, Parcel
from onceward.ops.cli.listening import Listening
from onceward.transports.network import home_desk
from onceward.transports.network.home_desk import (
    HomeDesk,
    Question,
    decode_parcels,
    decode_question,
    encode_parcels,
    encode_question,
)
from onceward.transports.network.poll import desks
from onceward.transports.network.poll_answers import not_accepted

ACCEPTED = Answer(verdict="accepted")


@dataclass
class Laptop:
    """A home that cannot be called, and polls the far one."""

    folder: Path
    far: Home
    polling: HomePollListener
    stack: ExitStack = field(repr=False)

    def open(self, name: str, *, agent: Agent | None = None, start: bool = False) -> Postbox:
        """Open one of its agents, whose parcels are polled for."""
        path = self.folder / f"{name}.db"
        box = Postbox(path, agent=agent or name, start=start, listeners=[self.polling])
        return self.stack.enter_context(box)

    def is_told(self, *names: str) -> None:
        """Wait until the far home knows agents of this one."""
        until(lambda: set(names) <= {each.name for each in self.far.homes.agents()})


@pytest.fixture
def laptop(tmp_path: Path) -> Iterator[Laptop]:
    """Yield a laptop and a far home with agents b0 and b1, which know each other."""
    near = tmp_path / "near"
    near.mkdir()
    with home(tmp_path / "far", ("b0", "b1")) as far, ExitStack() as stack:
        far.homes.add("poll:", Homes(near).show().fingerprint, "laptop")
        Homes(near).add(far.url, far.fingerprint, "far")
        yield Laptop(near, far, HomePollListener(far.url), stack)


def test_one_question_carries_the_parcels_of_all_agents(laptop: Laptop) -> None:
    """Twenty agents hold one question, and each gets its own message."""
    names = [f"a{n:02}" for n in range(20)]
    boxes = [laptop.open(name) for name in names]
    laptop.is_told(*names)
    for name in names:
        laptop.far.boxes["b0"].send(name, name)
    laptop.far.boxes["b0"].run_until_idle()
    found = list[Any]()
    for box in boxes:
        with until(box.receive) as message:
            found.append(message.body)
    until(lambda: _connections(laptop).held == 1)

    assert names == found


def _connections(laptop: Laptop) -> Any:
    found = laptop.far.server.connections()
    assert found is not None
    return found


def test_requests_travel_both_ways(laptop: Laptop) -> None:
    """The laptop asks an agent that it found, gets the reply, and is asked itself."""
    a0 = Agent("a0")

    @a0.on("question")
    def answer(body: str) -> str:
        return f"yes, {body}"

    laptop.far.close("b1")
    b1 = laptop.far.open("b1", start=True)
    box = laptop.open("a0", agent=a0, start=True)
    laptop.is_told("a0")

    assert "yes, laptop" == b1.ask("a0", "laptop", type="question", reply=str, timeout=60)
    assert box.agent == "a0"


def test_a_listener_that_polled_before_a_fork_polls_in_the_child(laptop: Laptop) -> None:
    """The child asks for its own agents; the thread of its parent did not come with it."""
    b0, url = laptop.far.boxes["b0"], laptop.far.url
    with listening_child(laptop.folder, url, HomePollListener, "a0", "a1") as heard:
        laptop.is_told("a1")
        b0.send("a1", "for the child")

        assert ("for the child\n", 0) == heard(b0.run_until_idle)


def test_an_agent_that_opens_later_joins_the_held_question(laptop: Laptop) -> None:
    """Its messages do not wait until the question that was held before it ends."""
    laptop.open("a0")
    until(lambda: _connections(laptop).held == 1)
    late = laptop.open("a1")
    laptop.is_told("a1")
    laptop.far.boxes["b0"].send("a1", "at once")
    laptop.far.boxes["b0"].run_until_idle()

    with until(late.receive) as message:
        assert "at once" == message.body


def test_a_slow_agent_delays_no_other(laptop: Laptop) -> None:
    """While one agent accepts, another one's answer travels by itself."""
    slow, going = Event(), Event()
    listeners = [laptop.polling(context(laptop.folder, name)) for name in ("a0", "a1")]

    def hang(_: Parcel) -> Answer:
        going.set()
        slow.wait(60)
        return ACCEPTED

    for name, accept in (("a0", hang), ("a1", lambda _: ACCEPTED)):
        (laptop.folder / f"{name}.db").touch()
        listeners[int(name[1])].listen(name, accept)
    desk = home_desk_of(laptop)
    with ThreadPoolExecutor(2) as pool:
        held = pool.submit(desk.push, a_parcel(sender="b0", recipient="a0"), 60)
        going.wait(60)
        quick = pool.submit(desk.push, a_parcel(sender="b1", recipient="a1"), 60)
        answer = quick.result(60)
        done = held.done()
        slow.set()
        last = held.result(60)
    for each in listeners:
        each.close()
    (laptop.folder / "a0.db").unlink()
    (laptop.folder / "a1.db").unlink()

    assert (ACCEPTED, False, ACCEPTED) == (answer, done, last)


def home_desk_of(laptop: Laptop) -> HomeDesk:
    """Return the desk at which the laptop polls."""
    return desks.home(laptop.far.folder, "laptop")


@pytest.mark.broken("two agents of one name are its point")
def test_a_polled_home_speaks_for_its_own_agents_only(laptop: Laptop) -> None:
    """A parcel under the name of an agent of the polling home is not accepted."""
    a0 = laptop.open("a0")
    laptop.open("b0")
    laptop.is_told("a0")
    laptop.far.boxes["b0"].send("a0", "not of our b0")
    laptop.far.boxes["b0"].run_until_idle()
    [peer] = laptop.far.boxes["b0"].peers.list()

    assert "may not send as this agent" in str(peer.last_error)
    assert None is a0.receive()


def test_another_process_leaves_the_messages_to_the_one_that_listens(laptop: Laptop) -> None:
    """A process without a listener neither pushes nor counts a failure; the listening one does."""
    a0 = laptop.open("a0")
    laptop.is_told("a0")
    laptop.far.close("b0")
    with Postbox(laptop.far.folder / "b0.db", agent="b0", start=False) as silent:
        silent.send("a0", "left")
        silent.run_until_idle()
        [peer] = silent.peers.list()
    box = laptop.far.open("b0")
    box.run_until_idle()

    assert (0, None) == (peer.failures, peer.last_error)
    with until(a0.receive) as message:
        assert "left" == message.body


def test_a_home_that_does_not_poll_is_unreachable(monkeypatch: pytest.MonkeyPatch) -> None:
    """A push waits for the first question for a while, then says what is missing."""
    monkeypatch.setattr(home_desk, "GONE", 0.05)

    with pytest.raises(Unreachable, match="no process of its home is polling for bob"):
        HomeDesk().push(a_parcel(), 60)


def asks(process: str = "p", agents: tuple[str, ...] = ("bob",), **more: Any) -> Question:
    """Return a question."""
    return Question(process=process, hold=1000, agents=list(agents), **more)


def pushed(desk: HomeDesk, question: Question) -> tuple[Any, list[Parcel]]:
    """Push a parcel that a held question takes; return the push and what was handed out."""
    woken = Event()
    desk.ask(question, [])
    assert [] == desk.hold(question, woken.set)
    pool = ThreadPoolExecutor(1)
    push = pool.submit(desk.push, a_parcel(), 60)
    assert woken.wait(60)
    pool.shutdown(wait=False)
    return push, desk.let_go(question, woken.set)


def test_a_parcel_that_was_lost_on_the_way_is_handed_out_again() -> None:
    """A question that names it as being accepted does not get it; one that does not, does."""
    desk = HomeDesk()
    push, first = pushed(desk, asks())
    key = ("alice", "bob")
    desk.ask(accepting := asks(pending=[key]), [])
    while_accepting = desk.hold(accepting, bool)
    desk.let_go(accepting, bool)
    desk.ask(asks(), [])
    again = desk.hold(asks(), bool)
    desk.ask(asks(), [(key, wire.encode_answer(ACCEPTED, again[0]))])

    assert (1, [], first) == (len(first), while_accepting, again)
    assert ACCEPTED == push.result(60)


def test_another_process_gets_what_a_dead_one_took() -> None:
    """It asks for the same agent; the answer of either settles the push."""
    desk = HomeDesk()
    push, first = pushed(desk, asks("dead"))
    desk.ask(asks("alive"), [])
    again = desk.hold(asks("alive"), bool)
    desk.ask(asks("alive"), [(("alice", "bob"), wire.encode_answer(ACCEPTED, first[0]))])

    assert first == again
    assert ACCEPTED == push.result(60)


def test_the_newest_question_of_a_process_is_woken() -> None:
    """The caller of an older one may be gone without a trace."""
    desk, woken, stale = HomeDesk(), Event(), Event()
    desk.ask(asks(), [])
    desk.hold(asks(), stale.set)
    desk.ask(asks(), [])
    desk.hold(asks(), woken.set)
    with ThreadPoolExecutor(1) as pool:
        push = pool.submit(desk.push, a_parcel(), 60)
        assert woken.wait(60)
        [parcel] = desk.let_go(asks(), woken.set)
        desk.ask(asks(), [(("alice", "bob"), wire.encode_answer(ACCEPTED, parcel))])

        assert (ACCEPTED, False) == (push.result(60), stale.is_set())


def test_a_process_gets_parcels_of_its_agents_only() -> None:
    """Two processes of a home share its agents."""
    desk = HomeDesk()
    desk.ask(asks("other", ("carl",)), [])
    push, _ = pushed(desk, asks("p"))
    desk.ask(asks("other", ("carl",)), [])
    of_other = desk.hold(asks("other", ("carl",)), bool)
    desk.ask(asks(), [(("alice", "bob"), not_accepted("refused", a_parcel(), "no"))])

    assert [] == of_other
    assert "no" in str(push.exception(60))


def test_a_closed_agent_ends_its_pushes() -> None:
    """The push of a postbox that closes does not wait for the other home."""
    desk = HomeDesk()
    push, _ = pushed(desk, asks())
    desk.give_up("alice")

    assert isinstance(push.exception(60), Unreachable)


def test_agents_that_were_away_are_named_once() -> None:
    """Their peers end the backoff with the first question after it."""
    desk = HomeDesk()

    assert ["bob"] == desk.ask(asks(), [])
    assert ["carl"] == desk.ask(asks(agents=("bob", "carl")), [])


def test_questions_and_parcels_survive_the_way() -> None:
    """Bytes are cut by the lengths that precede them."""
    answers = [(("alice", "bob"), b"one\ntwo"), (("alice", "carl"), b"")]
    found, read = decode_question(encode_question(asks(pending=[("x", "y")]), answers))
    parcels = [a_parcel("one\ntwo"), a_parcel()]

    assert (["bob"], [("x", "y")], answers) == (found.agents, found.pending, read)
    assert parcels == [wire.decode_parcel(each) for each in decode_parcels(encode_parcels(parcels))]


@pytest.mark.parametrize(
    ("read", "body"),
    [
        (decode_question, b""),
        (decode_question, b"{}\n"),
        (decode_question, b'{"process":"p","hold":1,"agents":["../x"]}\n'),
        (decode_question, b'{"process":"p","hold":1,"agents":[],"answers":[["a","b",9]]}\nx'),
        (decode_question, b'{"process":"p","hold":-1,"agents":[]}\n'),
        (decode_parcels, b""),
        (decode_parcels, b"[1]\n"),
        (decode_parcels, b"[-1,1]\n"),
        (decode_parcels, b'["x"]\n'),
        (decode_parcels, b"[[[[" * 50_000),
    ],
)
def test_another_form_is_refused(read: Callable[[bytes], object], body: bytes) -> None:
    """Nothing of it is used."""
    with pytest.raises(InvalidParcel):
        read(body)


def test_the_agents_of_a_command_share_one_poller(laptop: Laptop) -> None:
    """--ask NAME polls the known home of that name, by one listener for all files."""
    paths = [laptop.folder / f"a{n}.db" for n in range(2)]
    for path in paths:
        Postbox(path, agent=path.stem, start=False).close()
    [[first], [second]] = Listening(ask=["far"]).asking_each(paths).values()

    assert isinstance(first, HomePollListener)
    assert first is second
