"""Files of one agent each, made on request."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from onceward import Agent, Postbox, Reject


@pytest.fixture(scope="session")
def mail(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """
    Return a folder, not to be changed, where alice sent bob five messages.

    Three are processed, one is dead, one is on its way.
    """
    folder = tmp_path_factory.mktemp("mail")
    bob = Agent("bob")

    @bob.on("note")
    def handle(body: dict[str, int]) -> None:
        if body["number"] == 3:
            raise Reject

    with (
        Postbox(folder / "alice.db", agent="alice", start=False) as sender,
        Postbox(folder / "bob.db", agent=bob, start=False) as receiver,
    ):
        for number in range(4):
            sender.send("bob", {"number": number}, type="note")
        for _ in range(3):
            sender.run_until_idle()
            receiver.run_until_idle()
        sender.send("bob", b"\x00bytes", type="note", key="last")
    return folder


@pytest.fixture
def box(tmp_path: Path) -> Callable[..., Path]:
    """Return what makes an agent's file with so many waiting messages."""

    def make(name: str = "alice", messages: int = 0) -> Path:
        path = tmp_path / f"{name}.db"
        with Postbox(path, agent=name, start=False, hold_unknown=True) as made:
            made.session().send_many(
                [("bob", {"number": number}) for number in range(messages)], type="note"
            )
        return path

    return make
