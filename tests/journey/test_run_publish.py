"""A run publishes as a session does: the same options, with the same meaning."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from onceward import Agent, Postbox, Run
from onceward.errors import Conflict, InvalidMessage

READERS = ("bob", "carol")


def published(folder: Path, work: Callable[[Run], Any], before: Callable[[Postbox], Any]) -> Any:
    """
    Return what *work* returns in a run, and *before* in its session before it.

    Both have a topic with two subscribers, and the ids that are stored at the end are returned too.
    """
    for name in READERS:
        with Postbox(folder / f"{name}.db", agent=name, start=False) as box:
            box.agents.subscribe("news")
    alice, told = Agent("alice"), []

    @alice.runs("*")
    def chat(run: Run) -> None:
        told.append(work(run))

    with Postbox(folder / "alice.db", agent=alice, start=False) as box:
        told.append(before(box))
        box.send("alice", "begin")
        box.run_until_idle()
        stored = box.query("SELECT id FROM onceward_outbox WHERE topic = 'news' ORDER BY id")
    return (*told, [row[0] for row in stored])


def test_the_same_key_returns_the_first_ids(tmp_path: Path) -> None:
    """Whether they were published before the run or in it, and nothing is stored twice."""
    before, (first, again, new, renewed), stored = published(
        tmp_path,
        lambda run: [run.publish("news", "x", key=key) for key in ("old", "old", "new", "new")],
        lambda box: box.publish("news", "x", key="old"),
    )

    assert (before, before, new) == (first, again, renewed)
    assert sorted(before + new) == stored


def test_another_message_under_a_key_is_refused_at_once(tmp_path: Path) -> None:
    """The error is raised where it was published, and the run continues."""

    def work(run: Run) -> str:
        with pytest.raises(Conflict, match="key"):
            run.publish("news", "y", key="old")
        return "done"

    before, done, stored = published(
        tmp_path, work, lambda box: box.publish("news", "x", key="old")
    )

    assert ("done", sorted(before)) == (done, stored)


def test_an_id_for_many_messages_is_refused_at_once(tmp_path: Path) -> None:
    """A message to many has an id for each recipient, in a session and in a run."""

    def refused(place: Any) -> str:
        with pytest.raises(InvalidMessage, match="use a key instead of message_id"):
            place.publish("news", "x", message_id="mine")
        return "refused"

    assert ("refused", "refused", []) == published(tmp_path, refused, refused)


def test_a_refused_topic_keeps_no_copy(tmp_path: Path) -> None:
    """A run that goes on after the Conflict of one copy sends none of the others."""

    def work(run: Run) -> object:
        with pytest.raises(Conflict):
            run.publish("news", "x", key="k")
        return "went on"

    _, done, stored = published(tmp_path, work, lambda box: box.send("carol", 1, key="k"))

    assert ("went on", []) == (done, stored)
