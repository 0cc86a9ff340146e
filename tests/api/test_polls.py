"""
Reading by poll: the cursor is the ack, filters skip messages, looking moves nothing.

A message that a filter skips is passed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

import pytest
from tests.children import PYTHON, run

from onceward.errors import InvalidMessage, TopicError, UnknownRecipient
from onceward.events import Polled

Posted = Callable[..., list[str]]


def bodies(letters: Iterable[Any]) -> list[Any]:
    """Return what letters say."""
    return [letter.body for letter in letters]


@pytest.fixture
def ann(home: Any) -> Any:
    """Return the agent that sends."""
    return home.open("ann", ack_timeout=60.0)


@pytest.fixture
def bob(home: Any) -> Any:
    """Return the agent that polls."""
    return home.open("bob")


@pytest.fixture
def posted(ann: Any, bob: Any) -> Posted:
    """Return the call that sends bodies to bob and carries them there."""
    assert "bob" == bob.agent

    def send(*bodies: Any, session: str = "default", **options: Any) -> list[str]:
        ids = [ann.session(session).send("bob", body, **options) for body in bodies]
        ann.run_until_idle()
        return ids

    return send


def test_a_poll_returns_what_came_since_the_last(bob: Any, posted: Posted) -> None:
    """In the order of arrival, each message once, with everything that its sender said."""
    posted("a", topic="ask", correlation_id="c1", headers={"extra": 1})
    posted("b")

    first, second = bob.sessions.poll()

    assert ("a", "ann", "ask", "c1", {"extra": 1}) == (
        first.body,
        first.sender,
        first.topic,
        first.correlation_id,
        first.headers,
    )
    assert ("b", []) == (second.body, bob.sessions.poll())
    posted("c")
    assert ["c"] == bodies(bob.sessions.poll())


def test_the_cursor_is_the_ack(ann: Any, bob: Any, posted: Posted) -> None:
    """A polled message is processed for its sender, and no other reader is handed it."""
    [message_id] = posted("a")
    bob.sessions.poll()
    bob.run_until_idle()

    assert ("acked", None) == (ann.state(message_id), bob.receive())
    assert [] == ann.file.check() + bob.file.check()


def test_a_filter_passes_what_it_skips(ann: Any, bob: Any, posted: Posted) -> None:
    """
    Messages of other topics, and of none, never come to this agent again.

    They count as dropped.
    """
    ids = [*posted("a", "b", topic="ask"), *posted("c"), *posted("d", topic="answer.late")]

    assert ["d"] == bodies(bob.sessions.poll(topics="answer.*"))
    assert [] == bob.sessions.poll()
    bob.run_until_idle()
    assert (3, 1) == ((stats := bob.file.stats())["dropped"], stats["processed"])
    assert {"acked"} == {ann.state(each) for each in ids}


def test_a_filter_may_leave_what_it_skips(bob: Any, posted: Posted) -> None:
    """With ``consume_skipped=False`` a later poll finds it, and finds nothing twice."""
    posted("a", "b", topic="ask")
    posted("c", topic="answer")
    posted("d", topic="ask")

    assert ["c"] == bodies(bob.sessions.poll(topics=["answer"], consume_skipped=False))
    posted("e", topic="answer")
    assert ["e"] == bodies(bob.sessions.poll(topics=["answer"], consume_skipped=False))
    assert ["a", "b", "d"] == bodies(bob.sessions.poll(topics=["ask", "status"]))
    assert [] == bob.sessions.poll()


def test_a_poll_looks_beyond_one_slice(bob: Any, posted: Posted) -> None:
    """However many messages are skipped or left, what is wanted is found in one call."""
    posted(*range(700), topic="noise")
    posted("needle", topic="signal")

    assert ["needle"] == bodies(bob.sessions.poll(topics="signal", consume_skipped=False))
    assert 600 == len(bob.sessions.poll(limit=600))
    assert list(range(600, 700)) == bodies(bob.sessions.poll())


@pytest.mark.parametrize("topics", ["", "a..b", ["ok", "#.x"], "*x"])
def test_a_bad_topic_moves_nothing(bob: Any, posted: Posted, topics: Any) -> None:
    """A filter that breaks its rule is refused before the cursor moves."""
    posted("a")

    with pytest.raises(InvalidMessage):
        bob.sessions.poll(topics=topics)
    assert ["a"] == bodies(bob.sessions.poll())


def test_a_closed_set_of_one_session(home: Any, posted: Posted) -> None:
    """
    A session's own set goes before that of the postbox, on send and on every read by topic.

    Other sessions have their own sets.
    """
    assert callable(posted)
    box = home.open("owner", hold_unknown=True, topics=("ask",), session_topics={"quiet": ()})
    build = box.session("build", topics={"build.done", "build.failed"})
    mailbox = box.mailboxes.ensure("m", public=True)
    mailbox.send(1, topic="ask")
    box.run_until_idle()
    build.send("owner", "green", topic="build.done")
    box.session("build").send("owner", "red", topic="build.failed")
    box.run_until_idle()

    attempts: tuple[Callable[[], Any], ...] = (
        lambda: build.send("owner", 1, topic="ask"),
        lambda: box.session("build").publish("build.begun", 1),
        lambda: box.session("quiet").send("owner", 1, topic="ask"),
        lambda: box.session("other").send("owner", 1, topic="build.done"),
        lambda: box.sessions.poll("build", topics="ask"),
        lambda: mailbox.read("c", topics="build.done"),
        lambda: mailbox.query(topics="build.#", session="quiet"),
    )
    for refused in attempts:
        with pytest.raises(TopicError):
            refused()
    assert {"build": 2} == {name: one["messages"] for name, one in box.sessions.stats().items()}
    assert ["green"] == [
        letter.body
        for letter in box.sessions.poll("build", topics="build.done", consume_skipped=False)
    ]
    assert ["red"] == [letter.body for letter in box.sessions.poll("build", topics=["build.*"])]
    assert [1] == [letter.body for letter in mailbox.read("c", topics="ask")]


def test_a_closed_set_of_topics(home: Any, posted: Posted) -> None:
    """
    A closed set refuses another topic on send and on poll.

    Nothing is written and no cursor moves.
    """
    posted("a", topic="ask")
    box = home.open("closed", topics=("ask", "answer"), hold_unknown=True)

    with pytest.raises(TopicError, match="unknown"):
        box.send("bob", "x", topic="asks")
    with pytest.raises(TopicError, match="unknown"):
        box.publish("status", "x")
    with pytest.raises(TopicError, match="unknown"):
        box.sessions.poll(topics=["ask", "none"])
    box.send("closed", "mine", topic="ask")
    box.run_until_idle()
    with pytest.raises(ValueError, match="unknown"):
        box.sessions.poll(topics="status")
    assert ["mine"] == bodies(box.sessions.poll(topics="ask"))
    assert 1 == box.file.stats()["enqueued"]


def test_sessions_are_apart(bob: Any, posted: Posted) -> None:
    """Each session has a cursor of its own; messages of one are invisible in another."""
    posted("one", session="s1")
    posted("two", session="s2")

    assert [] == bob.sessions.poll()
    assert ["two"] == bodies(bob.sessions.poll("s2"))
    assert ["one"] == bodies(bob.sessions.tail("s1")) == bodies(bob.sessions.poll("s1"))


def test_expired_mail_is_passed(home: Any, ann: Any, bob: Any, posted: Posted) -> None:
    """An expired message is not returned, and its sender is told; ``ttl=0`` expires at once."""
    ids = posted("short", ttl=5)
    posted("long", ttl=50)
    home.clock.advance(5)

    assert ["long"] == bodies(bob.sessions.poll())
    bob.run_until_idle()
    assert "failed" == ann.state(ids[0])


def test_expiring_moves_no_cursor(home: Any, bob: Any, posted: Posted) -> None:
    """
    Messages ended by expire are counted, and a cursor reads on where it was.

    No message is left out and none comes twice.
    """
    posted("a")
    posted("b", ttl=5)
    posted("c")
    assert ["a"] == bodies(bob.sessions.poll(limit=1))
    home.clock.advance(5)

    assert (1, 0) == (bob.file.expire(), bob.file.expire())
    assert ["c"] == bodies(bob.sessions.poll())
    assert [] == bob.file.check()


def test_expire_of_one_session(home: Any, bob: Any, posted: Posted) -> None:
    """A session can be asked for alone."""
    posted("a", session="s1", ttl=5)
    posted("b", session="s2", ttl=5)
    home.clock.advance(5)

    assert (1, 1) == (bob.file.expire("s1"), bob.file.expire())


def test_tail_looks_back(home: Any, bob: Any, posted: Posted) -> None:
    """
    Tail returns the newest messages, polled or not, oldest first, and moves nothing.

    Expired ones come only on request.
    """
    posted("a", "b")
    posted("c", ttl=5)
    posted("d")
    bob.sessions.poll(limit=1)
    home.clock.advance(5)
    before = home.file(bob).version()

    assert ["b", "d"] == bodies(bob.sessions.tail(limit=2))
    assert ["a", "b", "d"] == bodies(bob.sessions.tail())
    assert ["a", "b", "c", "d"] == bodies(bob.sessions.tail(include_expired=True))
    assert before == home.file(bob).version()
    assert ["b", "d"] == bodies(bob.sessions.poll())


def test_status_by_session(home: Any, bob: Any, posted: Posted) -> None:
    """
    Stats count messages, expired ones, topics, bytes and the cursor of each session.

    Without a session they count all of them.
    """
    posted("a", "b", topic="ask", session="s1")
    posted("c", ttl=5, session="s1")
    posted("d", session="s2")
    home.clock.advance(5)
    assert 2 == len(bob.sessions.poll("s1"))

    found = bob.sessions.stats()

    assert {"s1", "s2"} == set(found)
    assert (3, 1, {"ask": 2, "": 1}) == tuple(
        found["s1"][name] for name in ("messages", "expired", "topics")
    )
    assert (1, 0, {"": 1}) == tuple(found["s2"][name] for name in ("messages", "expired", "topics"))
    assert found["s1"]["bytes"] == sum(
        len(past.text.encode()) for past in bob.history(session="s1").messages
    )
    assert (True, 0) == (found["s1"]["cursor"] >= 3, found["s2"]["cursor"])
    assert {"s1": found["s1"]} == bob.sessions.stats("s1")
    assert {} == bob.sessions.stats("s3")


def test_a_message_in_somebodys_hands_is_left(home: Any, bob: Any, posted: Posted) -> None:
    """A poll takes nothing from a reader that leases, and finds it when it is put back."""
    posted("a", "b", session="s1", ordering_key="k")
    posted("c", session="s1")
    message = bob.session("s1").receive()

    assert ["c"] == bodies(bob.sessions.poll("s1"))
    message.retry(after=0)
    assert ["a", "b"] == bodies(bob.sessions.poll("s1"))
    assert [] == bob.file.check()


def test_another_agents_mail(home: Any, ann: Any, bob: Any, posted: Posted) -> None:
    """Any postbox of the home may poll for any agent: the cursor is that agent's."""
    posted("a", "b")

    assert ["a"] == bodies(ann.sessions.poll(agent="bob", limit=1))
    assert ["b"] == bodies(bob.sessions.poll(agent="bob"))
    with pytest.raises(UnknownRecipient):
        ann.sessions.poll(agent="nobody")


@pytest.mark.parametrize(
    "name", ["", "a/b", "..", ".hidden", "new\n", "all", "Broadcast", "a" * 129]
)
def test_agents_have_names(bob: Any, name: str) -> None:
    """A name matches its rule in full, and is not a word for all agents."""
    with pytest.raises(InvalidMessage):
        bob.sessions.poll(agent=name)


def test_nothing_is_polled_while_frozen(
    home: Any, bob: Any, posted: Posted, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    While the switch is thrown, poll returns and moves nothing and expire ends nothing.

    It holds for every way to throw the switch; afterwards all goes on.
    """
    posted("a")
    posted("b", ttl=5)
    home.clock.advance(5)

    bob.file.pause()
    assert ([], 0) == (bob.sessions.poll(), bob.file.expire())
    bob.file.run_maintenance()
    bob.file.resume()
    monkeypatch.setenv("ONCEWARD_DISABLED", "1")
    assert ([], 0) == (bob.sessions.poll(), bob.file.expire())
    bob.file.run_maintenance()
    monkeypatch.delenv("ONCEWARD_DISABLED")

    assert 0 == bob.file.stats()["expired"]
    assert (1, ["a"]) == (bob.file.expire(), bodies(bob.sessions.poll()))


CRASHES: Final = {
    "sync": """
import os, sys
from onceward import Postbox
from onceward.events import Polled

with Postbox(sys.argv[1], start=False) as box:
    box.on(Polled, lambda _: os._exit(9))
    box.sessions.poll()
""",
    "async": """
import asyncio, os, sys
from onceward import AsyncPostbox
from onceward.events import Polled

async def main():
    async with AsyncPostbox(sys.argv[1], start=False) as box:
        box.on(Polled, lambda _: os._exit(9))
        await box.sessions.poll()

asyncio.run(main())
""",
}
"""A process that dies after the commit of its poll, before the call returns."""


def test_a_crash_after_the_commit_loses_and_never_doubles(
    bob: Any, posted: Posted, request: pytest.FixtureRequest
) -> None:
    """
    Between the commit and the reader there is at most once.

    The next poll begins behind what was on its way.
    """
    posted("a", "b")
    program = CRASHES[request.node.callspec.params["home"]]

    died = run([*PYTHON, "-c", program, bob.file.path], check=False)
    posted("c")

    assert 9 == died.returncode, died.stderr
    assert ["c"] == bodies(bob.sessions.poll())
    assert [] == bob.file.check()


def test_a_hook_that_fails_keeps_nothing_from_the_reader(bob: Any, posted: Posted) -> None:
    """The poll was committed: its messages are returned, whatever error a hook raises."""
    posted("a", "b")

    def fail(_: Any) -> None:
        msg = "no disk"
        raise RuntimeError(msg)

    bob.on(Polled, fail)

    assert ["a", "b"] == bodies(bob.sessions.poll())
