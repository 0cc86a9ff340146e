"""A notebook's cell runs again: its functions take the places of their earlier selves."""

from __future__ import annotations

import importlib
import os
import sys
import textwrap
from functools import partial
from pathlib import Path
from types import ModuleType
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

@agent.runs("chat-*")
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


MODULE = """
from functools import wraps
from {app} import agent, done

def logged(function):
    @wraps(function)
    def call(*args):
        return function(*args)
    return call

@agent.on("job")
@logged
def work(body):
    done.append(("work", {version}))

@agent.at_open
def prepare(box):
    done.append(("prepare", {version}))

@agent.runs("chat-*")
def talk(run):
    done.append(("talk", {version}))
"""


@pytest.mark.parametrize("way", ["reload", "import again"])
def test_an_edited_module_may_be_loaded_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    """Its newest functions are called, each once, whatever their lines and decorators."""
    agent, done = Agent("a"), list[tuple[str, int]]()
    app = ModuleType("app_" + way.replace(" ", "_"))
    app.agent, app.done = agent, done  # type: ignore[attr-defined]
    name, source = f"handlers_of_{app.__name__}", tmp_path / f"handlers_of_{app.__name__}.py"
    monkeypatch.setitem(sys.modules, app.__name__, app)
    monkeypatch.syspath_prepend(tmp_path)
    for version, more in enumerate(["", "# a line more\n"]):
        source.write_text(more + MODULE.format(app=app.__name__, version=version))
        os.utime(source, (version, version))  # the compiled file is that of another text
        if version and way == "reload":
            importlib.reload(sys.modules[name])
        else:
            sys.modules.pop(name, None)
            importlib.invalidate_caches()
            importlib.import_module(name)
    monkeypatch.delitem(sys.modules, name)
    with Harness(agent) as harness:
        harness.postbox.send("a", 1, type="job")
        harness.postbox.session("chat-1").send("a", "hello")
        harness.deliver()

    assert [("prepare", 1), ("talk", 1), ("work", 1)] == sorted(done)


def test_the_same_agent_may_be_included_again() -> None:
    """A cell that includes it may run again."""
    agent, part, done = Agent("a"), Agent("part"), list[str]()
    part.on("job")(lambda _: done.append("job"))
    part.at_open(lambda _: done.append("open"))
    for _ in range(2):
        agent.include(part)
    with Harness(agent) as harness:
        harness.send(1, type="job")
        harness.deliver()

    assert ["open", "job"] == done


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

        agent.at_open(partial(lambda each, _: made.append(f"partial {each}"), table))

    with Harness(agent):
        assert ["a", "partial a", "b", "partial b"] == made


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
