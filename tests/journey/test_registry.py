"""The registry of a home: what its agents say of themselves, and which of them run."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from onceward import Agent, AsyncPostbox, Postbox
from onceward.errors import InvalidArgument, InvalidMessage
from onceward.message.names import AgentInfo
from onceward.testing import Controls, ManualClock

Open = Callable[..., Postbox]
MINUTE = 60.0


@pytest.fixture
def clock() -> ManualClock:
    """Return the clock of all agents of the home."""
    return ManualClock()


@pytest.fixture
def opened(tmp_path: Path, clock: ManualClock) -> Iterator[Open]:
    """Return the call that opens an agent's file, by default without engines."""
    with ExitStack() as stack:

        def open_box(agent: str | Agent, *, start: bool = False) -> Postbox:
            name = agent.name if isinstance(agent, Agent) else agent
            box = Postbox(
                tmp_path / f"{name}.db", agent=agent, start=start, testing=Controls(clock=clock)
            )
            return stack.enter_context(box)

        yield open_box


@pytest.fixture
def desk(opened: Open) -> Postbox:
    """Return an agent that looks for others, in a home of two that say what they can."""
    opened(Agent("ada", description="Writes letters in French", capabilities=["translate"]))
    opened(Agent("bob", description="Straßenplan reader", capabilities=["maps", "read.pdf"]))
    return opened("desk")


def names(box: Postbox, **how: object) -> list[str]:
    """Return the names of the agents that a search finds."""
    return [found.name for found in box.agents.list(**how)]  # type: ignore[arg-type]


def test_an_agent_says_what_it_does(desk: Postbox, clock: ManualClock) -> None:
    """Description and capabilities are given where the agent is declared, and listed with times."""
    now = clock.now()

    assert [
        AgentInfo("ada", "Writes letters in French", ("translate",), now, now),
        AgentInfo("bob", "Straßenplan reader", ("maps", "read.pdf"), now, now),
    ] == desk.agents.list()


@pytest.mark.parametrize(
    ("search", "found"),
    [
        ("french", ["ada"]),
        ("LETTERS trans", ["ada"]),
        ("letters maps", []),
        ("STRASSENPLAN", ["bob"]),
        ("read", ["bob"]),
        ("read.pdf", ["bob"]),
        ("bo", ["bob"]),
        ("%", []),
        ("  ", ["ada", "bob"]),
    ],
)
def test_a_search_finds_agents_with_all_words(desk: Postbox, search: str, found: list[str]) -> None:
    """Words and parts of words, of any case, in name, description or capabilities."""
    assert found == names(desk, search=search)


def test_pages_follow_each_other_by_name(opened: Open) -> None:
    """A page begins after the last name of the page before; a newcomer shifts nothing."""
    for name in "abcde":
        opened(name)
    desk = opened("desk")
    pages = [names(desk, limit=2)]
    opened("aa")
    pages.append(names(desk, limit=2, after=pages[-1][-1]))
    pages.append(names(desk, limit=2, after=pages[-1][-1]))

    assert [["a", "b"], ["c", "d"], ["e"]] == pages


def test_an_opening_that_says_nothing_changes_nothing(opened: Open, desk: Postbox) -> None:
    """A command that opens the file by its name leaves what the program said."""
    opened("ada")
    opened(Agent("ada", capabilities=["edit"]))
    opened(Agent("bob", description=""))

    assert [("Writes letters in French", ("edit",)), ("", ("maps", "read.pdf"))] == [
        (each.description, each.capabilities) for each in desk.agents.list()
    ]
    assert ([], ["ada"]) == (names(desk, search="translate"), names(desk, search="edit"))


def test_an_agent_is_described_without_handlers(opened: Open, desk: Postbox) -> None:
    """A program that has no Agent object registers with the words; it is new only once."""
    eve = opened("eve")
    new = eve.agents.register(description="Proves things", capabilities=["prove"])

    assert (False, ["eve"]) == (new, names(desk, search="prove"))


@pytest.mark.parametrize(
    ("description", "capabilities"),
    [("a\x00b", ()), ("x" * 1025, ()), ("", ["a\nb"]), ("", [""]), ("", "translate")],
)
def test_what_cannot_be_kept_is_refused_at_once(description: str, capabilities: list[str]) -> None:
    """A wrong description or capability is found where the agent is declared."""
    with pytest.raises((InvalidArgument, InvalidMessage)):
        Agent("ada", description=description, capabilities=capabilities)


@pytest.mark.parametrize("limit", [0, -1, True])
def test_a_page_has_room_for_an_agent(desk: Postbox, limit: int) -> None:
    """A limit below one can only be a mistake."""
    with pytest.raises(InvalidArgument, match="limit"):
        desk.agents.list(limit=limit)


def test_a_running_agent_is_seen_by_maintenance(
    opened: Open, desk: Postbox, clock: ManualClock
) -> None:
    """One commit in an interval, by whichever process is first; the revision of caches stays."""
    ada = opened("ada")
    directory = desk._directory.database
    before = directory.read("SELECT revision FROM meta")
    clock.advance(MINUTE)
    ada.file.run_maintenance()
    seen = directory.version()
    ada.file.run_maintenance()
    [found, other] = desk.agents.list()

    assert (clock.now(), 60_000) == (found.last_seen_at, found.last_seen_at - other.last_seen_at)
    assert (seen, before) == (directory.version(), directory.read("SELECT revision FROM meta"))


def test_an_agent_that_starts_is_seen(opened: Open, desk: Postbox, clock: ManualClock) -> None:
    """Engines show that it lives; an opening without them is a look at its file."""
    clock.advance(MINUTE)
    opened("ada")
    opened("bob", start=True)
    [ada, bob] = desk.agents.list()

    assert (0, 60_000) == (ada.last_seen_at - ada.joined_at, bob.last_seen_at - bob.joined_at)


def test_a_heartbeat_brings_no_agent_back(opened: Open, desk: Postbox, clock: ManualClock) -> None:
    """An agent that left stays away, also while its process goes on maintaining its file."""
    ada = opened("ada")
    ada.agents.remove()
    clock.advance(MINUTE)
    ada.file.run_maintenance()

    assert ["bob"] == names(desk)


def test_the_async_face_searches_too(desk: Postbox, tmp_path: Path) -> None:
    """An async postbox stores its agent's words, and awaits the same list."""

    async def main() -> list[str]:
        agent = Agent("eve", capabilities=["prove"])
        async with AsyncPostbox(tmp_path / "eve.db", agent=agent, start=False) as eve:
            return [found.name for found in await eve.agents.list(search="maps", limit=1)]

    assert (["bob"], ["eve"]) == (asyncio.run(main()), names(desk, search="prove"))
