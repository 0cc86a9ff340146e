"""Notices of the library: each is told once, by the agent in whose file or name it happened."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from onceward import Agent, Message, Postbox, Reject, Tuning

if TYPE_CHECKING:
    from typing import Any

    from tests.journey.conftest import World

DEAD = "_system.message.deadletter"
TASKS = "SELECT count(*) FROM _onceward_background_tasks"


def heard(ear: Postbox) -> list[Message[Any]]:
    """Return the notices that an agent has got, and settle them."""
    found = []
    while (message := ear.receive()) is not None:
        found.append(message)
        message.ack()
    return found


def taker(name: str) -> Agent:
    """Return an agent that handles no notice, so that each becomes a dead letter."""
    agent = Agent(name)
    agent.on("other")(lambda _: None)
    return agent


def settle(world: World) -> None:
    """Let all agents run until a notice of what they did has arrived."""
    for _ in range(3):
        world.settle()


def bury(world: World, box: Postbox) -> str:
    """Return the id of a message of *box* that has become a dead letter."""
    gone = box.session("s").send("ear", "late", type="job", ttl=1)
    world.clock.forward(5)
    settle(world)
    return gone


def test_an_agent_without_channels_tells_its_dead_letters(world: World) -> None:
    """One notice, of the agent that keeps the dead letter, with all that is known of it."""
    ear, a = world.open("ear"), world.open("a")
    world.open("b")
    ear.agents.subscribe("_system.#")
    gone = bury(world, a)
    [notice] = heard(ear)

    assert ("a", DEAD, "_system", "notification") == (
        notice.sender,
        notice.topic,
        notice.session,
        notice.type,
    )
    assert notice.body == {
        "id": gone,
        "origin": "outbox",
        "peer": "ear",
        "session": "s",
        "type": "job",
        "reason": "expired",
        "error": "",
        "attempts": 0,
    }


def test_a_told_dead_letter_leaves_no_task(world: World) -> None:
    """The dispatcher need not look again and again for what is done, with or without listeners."""
    ear, a = world.open("ear"), world.open("a")
    bury(world, a)
    ear.agents.subscribe(DEAD)
    silent = a.query(TASKS), heard(ear)
    second = bury(world, a)

    assert ([(0,)], []) == silent
    assert ([(0,)], [second]) == (a.query(TASKS), [each.body["id"] for each in heard(ear)])


def test_a_dead_letter_is_told_after_a_crash(world: World) -> None:
    """If the process dies between the dead letter and its notice, the next one tells it, once."""
    ear, a = world.open("ear"), world.open("a")
    ear.agents.subscribe(DEAD)
    a._dispatcher._background_tasks = ()
    gone = bury(world, a)
    before = heard(ear)
    ear, a = world.reopen("ear", "a")
    settle(world)

    assert ([], [gone]) == (before, [each.body["id"] for each in heard(ear)])


def test_a_discarded_dead_letter_is_not_told(world: World) -> None:
    """There is nothing left to tell of, and the task ends."""
    ear, a = world.open("ear"), world.open("a")
    ear.agents.subscribe(DEAD)
    tasks, a._dispatcher._background_tasks = a._dispatcher._background_tasks, ()
    gone = bury(world, a)
    a.dead_letters.discard(gone)
    a._dispatcher._background_tasks = tasks
    settle(world)

    assert ([(0,)], []) == (a.query(TASKS), heard(ear))


def test_agents_that_cannot_handle_notices_do_not_tell_each_other(world: World) -> None:
    """A notice that becomes a dead letter is not told of: two deaf listeners would never end."""
    a = world.open("a")
    deaf = [world.open(taker(name)) for name in ("ear", "owl")]
    for box in deaf:
        box.agents.subscribe("_system.#")
        box.channels.create(f"of-{box.agent}")
    settle(world)
    before = [box.file.stats()["dead_total"] for box in deaf]
    bury(world, a)
    after = [box.file.stats()["dead_total"] for box in deaf]

    assert [1, 1] == [now - then for then, now in zip(before, after, strict=True)]


def test_a_running_agent_tells_at_once(tmp_path: Path) -> None:
    """The engines need no other message to look for a dead letter of a message to oneself."""
    agent = Agent("a")

    @agent.on("job")
    def refuse(_body: dict[str, int]) -> None:
        raise Reject("no")

    with (
        Postbox(tmp_path / "ear.db", agent="ear") as ear,
        Postbox(tmp_path / "a.db", agent=agent, tuning=Tuning(poll_interval=0)) as a,
    ):
        ear.agents.subscribe(DEAD)
        gone = a.send("a", {}, type="job")
        notice = ear.receive(timeout=60)

        assert notice is not None
        assert gone == notice.body["id"]
        notice.ack()


def test_the_notice_of_a_mailbox_says_how_long_it_lives(world: World) -> None:
    """The owner tells it once, with name, owner, time to live, end and description."""
    ear, a = world.open("ear"), world.open("a")
    world.open("b")
    ear.agents.subscribe("_system.mailbox.*")
    a.mailboxes.ensure("jobs", public=True, ttl=60, description="work")
    settle(world)
    [notice] = heard(ear)

    assert notice.body == {
        "mailbox": "jobs",
        "owner": "a",
        "ttl": 60_000,
        "expires_at": world.clock.now() + 60_000,
        "description": "work",
    }
