"""A notebook's cell runs again: its functions take the places of their earlier selves."""

from __future__ import annotations

import textwrap
from typing import Annotated, Any

import pytest
from pydantic import Field

from onceward import Agent, Context, Msg
from onceward.errors import InvalidArgument
from onceward.testing import Harness

CELL = """
@agent.on("job")
def work(body):
    done.append(("work", {version}))

@agent.at_open
def prepare(box):
    done.append(("prepare", {version}))

@agent.every("1h")
def hourly(tick):
    done.append(("hourly", {version}))

@agent.session("chat-*")
def talk(run):
    done.append(("talk", {version}))
"""


def run_cell(version: int, names: dict[str, Any], more: str = "") -> None:
    """Run a cell as a notebook does: its text has a name, and is in no file."""
    text = more + textwrap.dedent(CELL.format(version=version))
    exec(compile(text, f"<ipython-input-{version}>", "exec"), names)  # noqa: S102 - as notebooks do


@pytest.mark.parametrize("more", ["", "\n\n# an edited cell\n"])
def test_a_cell_may_run_again(more: str) -> None:
    """Its newest functions are called, each once."""
    done: list[tuple[str, int]] = []
    names: dict[str, Any] = {"__name__": "__main__", "agent": Agent("a"), "done": done}
    run_cell(1, names)
    run_cell(2, names, more)
    with Harness(names["agent"]) as harness:
        harness.postbox.send("a", 1, type="job")
        harness.postbox.session("chat-1").send("a", "hello")
        harness.deliver()

    assert [("prepare", 2), ("talk", 2), ("work", 2)] == sorted(done)


def test_a_function_may_be_declared_again_by_its_own_source() -> None:
    """The code of a module that is loaded again declares the same handlers."""
    agent = Agent("a")

    def declare() -> None:
        @agent.on("job")
        def work(body: object) -> None:
            """Do nothing."""

    declare()
    declare()

    assert ["job"] == [each.pattern for each in agent.handlers]


def test_another_function_is_no_repetition() -> None:
    """Two functions of a file are two, also under one name, and so are those with other values."""
    agent = Agent("a")

    def declare(value: int) -> None:
        @agent.on("made")
        def work(body: object) -> int:
            return value

    @agent.on("job")
    def work(body: object) -> None:
        """Do nothing."""

    with pytest.raises(InvalidArgument, match="already handles 'job'"):

        @agent.on("job")
        def work(body: object) -> None:
            """Do nothing."""

    declare(1)
    with pytest.raises(InvalidArgument, match="already handles 'made'"):
        declare(2)


def test_functions_at_opening_with_other_values_all_run() -> None:
    """A loop that declares one function for each table keeps them all."""
    agent, made = Agent("a"), list[str]()
    for table in ("a", "b"):

        @agent.at_open
        def create(box: object, table: str = table) -> None:
            made.append(table)

    with Harness(agent):
        assert ["a", "b"] == made


class Job(Msg, type="job"):
    """A message."""

    n: int


def test_a_body_may_be_annotated() -> None:
    """Metadata that pydantic reads is applied; other metadata, hashable or not, changes nothing."""
    agent, got = Agent("a"), list[object]()

    @agent.on(Job)
    def plain(body: Annotated[Job, "of the shop", ["unhashable"]], ctx: Context) -> None:
        got.append(body)

    @agent.on("number")
    def number(body: Annotated[int, Field(gt=0)]) -> None:
        got.append(body)

    with Harness(agent) as harness:
        harness.postbox.send("a", Job(n=1))
        harness.postbox.send("a", 2, type="number")
        harness.postbox.send("a", -2, type="number")
        harness.deliver()
        letters = harness.postbox.dead_letters.list()

    assert [Job(n=1), 2] == got
    assert ["body does not fit"] == [str(each.last_error)[:17] for each in letters]
