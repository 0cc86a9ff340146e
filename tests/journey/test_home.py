"""The agents of a home: in both layouts an opening under its name registers an agent."""

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from onceward import Postbox
from onceward.errors import SchemaMismatch, UnknownRecipient
from onceward.file import directory as file_directory
from onceward.file import open_files

Open = Callable[..., Postbox]


@pytest.fixture(params=["flat", "agents"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Return the folder of the agents' files: the home itself, or the folder agents in it."""
    made = tmp_path / "home" / ("" if request.param == "flat" else "agents")
    made.mkdir(parents=True)
    return made


@pytest.fixture
def opened(folder: Path) -> Iterator[Open]:
    """Return the call that opens an agent's file without engines, by default under its name."""
    with ExitStack() as stack:

        def open_box(agent: str, *, named: bool = True) -> Postbox:
            name = agent if named else None
            return stack.enter_context(Postbox(folder / f"{agent}.db", agent=name, start=False))

        yield open_box


def names(box: Postbox) -> list[str]:
    """Return the names of the other agents that are registered."""
    return [each.name for each in box.agents.list()]


def test_to_all_reaches_agents_that_did_no_more_than_open(opened: Open) -> None:
    """An agent need not ask its home for anything to get what is sent to all."""
    boxes = [opened(name) for name in ("ann", "bob", "cid")]
    boxes[0].send("all", 1)
    boxes[0].run_until_idle()

    assert [1, 1] == [box.file.stats()["received"] for box in boxes[1:]]
    assert [["bob", "cid"], ["ann", "cid"], ["ann", "bob"]] == [names(b) for b in boxes]


def test_an_agent_that_is_away_is_reached(opened: Open) -> None:
    """It was registered when its file was made, and stays so while no process has it open."""
    opened("bob").close()
    ann = opened("ann")
    ann.send("all", 1)

    assert [("bob",)] == ann.query("SELECT recipient FROM onceward_outbox")


def test_reading_registers_no_agent(opened: Open) -> None:
    """An opening without a name looks at the file; neither it nor what it reads registers."""
    ann = opened("ann")
    ann.agents.remove()
    ann.close()
    look = opened("ann", named=False)
    opened("bob")
    look.agents.list()
    look.channels.list()
    look.mailboxes.list()
    look.send("all", 1)

    assert [] == names(opened("bob"))
    assert look.agents.register()
    assert ["ann"] == names(opened("bob"))


def test_an_agent_that_left_is_gone_until_it_opens_again(opened: Open) -> None:
    """Nothing that it reads or sends brings it back; an opening under its name does."""
    ann, bob = opened("ann"), opened("bob")
    assert (True, False) == (bob.agents.remove(), bob.agents.remove())
    bob.agents.list()
    bob.send("all", 1)
    with pytest.raises(UnknownRecipient):
        ann.send("all", 1)
    bob.close()
    opened("bob")

    assert ["bob"] == names(ann)


def test_an_opening_of_a_registered_agent_writes_nothing_there(
    opened: Open, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The directory is read, neither opened for writing nor kept open by one of few files."""
    monkeypatch.setattr(file_directory, "FEW", len(open_files.files) + 1)
    opened("ann").close()
    home = folder.parent if folder.name == "agents" else folder
    before = (home / "directory.db").read_bytes()
    ann = opened("ann")

    assert ann._home._open is None
    assert before == (home / "directory.db").read_bytes()


def test_a_file_in_the_place_of_the_directory_stops_no_opening(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It is told in the log, and by the calls that need a directory; messages go their way."""
    home = folder.parent if folder.name == "agents" else folder
    with sqlite3.connect(home / "directory.db") as con:
        con.execute("CREATE TABLE people (name TEXT)")
    con.close()
    with Postbox(folder / "ann.db", agent="ann", start=False) as ann:
        ann.send("ann", 1)
        ann.run_until_idle()
        with pytest.raises(SchemaMismatch):
            ann.send("all", 1)

        assert 1 == ann.file.stats()["received"]
    assert "not registered in its home" in caplog.text
