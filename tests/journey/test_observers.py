"""Observers see sends and attempts, and harm neither."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from onceward import Agent, Postbox
from onceward.hooks import (
    Attempt,
    ComposedMessage,
    Handling,
    Observer,
    SendFacts,
    Sending,
    SendOutcome,
    observe,
)
from onceward.message.vocabulary import Done, Settlement


@dataclass
class Notes(Observer):
    """Notes what it is told, and stamps what is sent."""

    told: list[Any] = field(default_factory=list)
    stamp: dict[str, str] = field(default_factory=lambda: {"stamp": "x"})

    def sending(self, send: SendFacts) -> Sending:
        """Stamp a send."""
        self.told.append(("sending", tuple(send.recipients)))
        return NotedSend(self)

    def handling(self, attempt: Attempt) -> Handling:
        """Note an attempt."""
        self.told.append(("handling", attempt.frames[0].headers))
        return NotedAttempt(self)


class NotedSend(Sending):
    """Notes a send."""

    def __init__(self, notes: Notes) -> None:
        self._notes, self.headers = notes, notes.stamp

    def composed(self, messages: Sequence[ComposedMessage]) -> None:
        """Note its messages."""
        self._notes.told.append(("composed", len(messages)))

    def ended(self, outcome: SendOutcome, refused: type[BaseException] | None) -> None:
        """Note its end."""
        self._notes.told.append((outcome, refused))


class NotedAttempt(Handling):
    """Notes an attempt."""

    def __init__(self, notes: Notes) -> None:
        self._notes = notes

    def ended(self, settlements: Sequence[Settlement], error: BaseException | None) -> None:
        """Note its end."""
        self._notes.told.append((list(settlements), error))


class Broken(Observer):
    """Raises whenever it is called."""

    def sending(self, send: SendFacts) -> Sending:
        """Raise."""
        raise RuntimeError(send)

    def handling(self, attempt: Attempt) -> Handling:
        """Raise."""
        raise RuntimeError(attempt)


def handler() -> Agent:
    """Return an agent that handles everything."""
    agent = Agent("b")
    agent.on("json")(lambda _: None)
    return agent


def test_an_observer_sees_a_send_and_its_attempt_from_begin_to_end(tmp_path: Path) -> None:
    """It is told of both in order, and its stamp is in the frame."""
    notes = Notes()
    with Postbox(tmp_path / "b.db", agent=handler(), start=False) as box:
        off = observe(box, notes)
        box.send("b", {})
        box.run_until_idle()
        off()
        box.send("b", {})
        box.run_until_idle()

    assert [
        ("sending", ("b",)),
        ("composed", 1),
        ("committed", None),
        ("handling", {"stamp": "x"}),
        ([Done()], None),
    ] == notes.told


def test_a_caller_s_header_goes_before_that_of_an_observer(tmp_path: Path) -> None:
    """What the caller gives stays as it is."""
    notes = Notes()
    with Postbox(tmp_path / "b.db", agent=handler(), start=False) as box:
        observe(box, notes)
        box.send("b", {}, headers={"stamp": "mine"})
        box.run_until_idle()

    assert ("handling", {"stamp": "mine"}) in notes.told


@pytest.mark.parametrize("stamp", [{"id": "x"}, {"BAD NAME": "x"}, {"stamp": "a\nb"}])
def test_a_bad_header_of_an_observer_is_left_out(
    tmp_path: Path, stamp: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    """It is logged, and the message is sent without it."""
    notes = Notes(stamp=stamp)
    with Postbox(tmp_path / "b.db", agent=handler(), start=False) as box:
        observe(box, notes)
        box.send("b", {})
        box.run_until_idle()

    assert ("handling", {}) in notes.told
    assert 1 == len([each for each in caplog.records if "observer failed" in each.message])


def test_an_observer_that_raises_harms_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Messages are sent and handled; each error is a line, and the next observer is told."""
    notes = Notes()
    with Postbox(tmp_path / "b.db", agent=handler(), start=False) as box:
        observe(box, Broken())
        observe(box, notes)
        box.send_many([("b", {}), ("b", {})])
        box.run_until_idle()
        processed = box.file.stats()["processed"]

    assert (2, 3) == (
        processed,
        len([each for each in caplog.records if "observer failed" in each.message]),
    )
    assert 7 == len(notes.told)


def test_work_at_the_opening_comes_before_the_first_message(tmp_path: Path) -> None:
    """A message that waits in the file is handled under the observer of its agent."""
    notes, agent = Notes(), handler()
    with Postbox(tmp_path / "b.db", agent="b", start=False) as box:
        box.send("b", {})
    agent.at_open(lambda opened: observe(opened, notes))
    with Postbox(tmp_path / "b.db", agent=agent, start=False) as box:
        box.run_until_idle()

    assert [("handling", {}), ([Done()], None)] == notes.told
