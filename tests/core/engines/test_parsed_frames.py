"""Frames that came over a network: read when they are accepted, not again when they are handled."""

from collections.abc import Iterator
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from onceward import Agent, Postbox
from onceward.core.deliver.transport import Accept
from onceward.errors import Retry
from onceward.events import Processed
from onceward.message.frame import KEPT_LONGEST, KEPT_PARCELS, Frame, keep_until_handled
from onceward.message.parcel import Parcel
from onceward.testing.builders import build_frame, parcel


class Door:
    """A listener whose parcels a test passes in."""

    def listen(self, name: str, accept: Accept) -> None:
        """Keep the function that takes parcels."""
        self.name, self.accept = name, accept

    def close(self) -> None:
        """Hold nothing."""


@pytest.fixture(autouse=True)
def nothing_kept() -> Iterator[None]:
    """Forget the frames that other tests left."""
    for _ in range(KEPT_PARCELS):
        keep_until_handled({})
    yield
    for _ in range(KEPT_PARCELS):
        keep_until_handled({})


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the list of the texts that are read as frames."""
    texts, real = list[str](), Frame._read

    def note(text: str) -> Frame:
        texts.append(text)
        return real(text)

    monkeypatch.setattr(Frame, "_read", note)
    return texts


def of(*frames: Frame) -> Parcel:
    """Return a first parcel for Bob."""
    return parcel(1, list(frames), sender="alice", recipient="bob")


def test_a_frame_is_read_once(tmp_path: Path, read: list[str]) -> None:
    """The worker of the process that accepted a frame handles and tells it without reading it."""
    bob, door, told, bodies = Agent("bob"), Door(), Event(), list[Any]()
    bob.on("json")(bodies.append)
    with Postbox(tmp_path / "bob.db", agent=bob, listeners=[door]) as box:
        events = list[Any]()
        box.on(Processed, events.append)
        box.on(Processed, lambda _: told.set())
        given = of(build_frame({"n": 1}, sender="alice", recipient="bob"))
        door.accept(given)
        assert told.wait(60)

    assert ([{"n": 1}], [given.frames[0].text]) == (bodies, read)
    assert [("default", "json")] == [(each.session, each.type) for each in events]


def test_a_further_attempt_gets_the_body_that_was_sent(tmp_path: Path) -> None:
    """What a failed handler changed in its body is not seen by the next attempt."""
    bob, door, handled, bodies = Agent("bob"), Door(), Event(), list[Any]()

    @bob.on("json")
    def handle(body: Any) -> None:
        bodies.append(dict(body))
        body["n"] = "changed"
        if len(bodies) == 1:
            raise Retry(after=0)
        handled.set()

    with Postbox(tmp_path / "bob.db", agent=bob, listeners=[door]):
        door.accept(of(build_frame({"n": 1}, sender="alice", recipient="bob")))
        assert handled.wait(60)

    assert [{"n": 1}, {"n": 1}] == bodies


@pytest.mark.parametrize("agent", ["bob", Agent("bob")])
def test_nothing_is_kept_where_no_worker_runs(
    tmp_path: Path, agent: str | Agent, read: list[str]
) -> None:
    """A process that only takes parcels in keeps no frame of them in memory."""
    frame, door = build_frame({"n": 1}, sender="alice", recipient="bob"), Door()
    given = of(frame)
    with Postbox(tmp_path / "bob.db", agent=agent, listeners=[door], start=isinstance(agent, str)):
        door.accept(given)
    text = given.frames[0].text

    assert (frame.id, [text, text]) == (Frame.accepted(text).id, read)


def test_few_frames_are_kept(read: list[str]) -> None:
    """Frames of the last parcels are kept, no long ones; the others are read again."""
    frames = [build_frame({"n": n}, sender="alice", recipient="bob") for n in range(6)]
    long = build_frame("x" * KEPT_LONGEST, sender="alice", recipient="bob")
    texts = [each.text for each in of(*frames, long).frames]
    for text, frame in zip(texts[:-1], frames, strict=True):
        keep_until_handled({text: frame})
    keep_until_handled({texts[-1]: long})
    ids = [Frame.accepted(text).id for text in texts]

    assert [each.id for each in (*frames, long)] == ids
    assert [*texts[:3], texts[-1]] == read
