"""A process is killed in a handler that runs a graph; LangGraph's own saver stands beside ours."""

from __future__ import annotations

import operator
import os
import signal
import sqlite3
import sys
from contextlib import closing
from pathlib import Path
from typing import Annotated, Any, TypedDict

import pytest
from tests.children import PYTHON, Child

from onceward import Agent, Context, Postbox

pytest.importorskip("langgraph", reason="needs onceward[frameworks-test]")

from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import END, START, StateGraph

from onceward.integrations.langgraph import OncewardSaver, invoke

ROOT = Path(__file__).parents[2]
NODES = ("a", "b", "c")
THREAD: Any = {"configurable": {"thread_id": "trip"}}


class Words(TypedDict):
    """The state of the graph."""

    words: Annotated[list[str], operator.add]


class World:
    """A graph whose nodes are noted in a file, and where the process is killed once."""

    def __init__(self, folder: Path, fatal: str) -> None:
        self.folder, self._fatal = folder, fatal
        self._calls = folder / "calls"

    def pass_by(self, name: str) -> None:
        """Note a node or the end of the graph; the process is killed there, at its first time."""
        with self._calls.open("a") as calls:
            calls.write(f"{name}\n")
        if name == self._fatal and not (self.folder / "died").exists():
            (self.folder / "died").touch()
            os.kill(os.getpid(), signal.SIGKILL)

    @property
    def calls(self) -> list[str]:
        """Return what was passed, by all processes."""
        return self._calls.read_text().split()

    def graph(self, saver: Any) -> Any:
        """Return the graph."""
        graph = StateGraph(Words)
        for name in NODES:
            graph.add_node(name, self._node(name))
        for before, after in zip((START, *NODES), (*NODES, END), strict=True):
            graph.add_edge(before, after)
        return graph.compile(checkpointer=saver)

    def _node(self, name: str) -> Any:
        def call(_: Words) -> dict[str, list[str]]:
            self.pass_by(name)
            return {"words": [name]}

        return call


def sqlite_saver(folder: Path) -> SqliteSaver:
    """Return LangGraph's own saver, which has a file of its own."""
    return SqliteSaver(sqlite3.connect(folder / "graph.db", check_same_thread=False))


def agent_with(kind: str, world: World) -> Agent:
    """Return an agent that answers a message by a graph, and says so to a friend."""
    agent = Agent("worker")
    graph = world.graph(OncewardSaver() if kind == "onceward" else sqlite_saver(world.folder))

    @agent.on("go")
    def handle(body: str, ctx: Context) -> str:
        given = {"words": [body]}
        if kind == "onceward":
            found = invoke(graph, given, ctx)
        else:
            run = {"metadata": {"run_id": ctx.message.id}} if kind == "sqlite with run_id" else {}
            found = graph.invoke(given, {**THREAD, **run}, durability="sync")
        ctx.send("worker", found["words"], type="news")
        world.pass_by("end")
        return " ".join(found["words"])

    @agent.on("news")
    def hear(_: list[str]) -> None:
        pass

    return agent


def play(folder: Path, kind: str, fatal: str) -> None:
    """Handle the message, or be killed."""
    agent = agent_with(kind, World(folder, fatal))
    with Postbox(folder / "worker.db", agent=agent, lease=1) as box:
        ticket = box.session("trip").request("worker", "go", type="go", key="trip")
        (folder / "answer").write_text(box.result(ticket, reply=str, timeout=30))


def words(folder: Path, kind: str) -> list[str]:
    """Return the state of the thread, as it is in the file."""
    if kind == "onceward":
        with Postbox(folder / "worker.db", agent="worker", start=False) as box:
            return _words(OncewardSaver(box))
    saver = sqlite_saver(folder)
    with closing(saver.conn):
        return _words(saver)


def _words(saver: Any) -> list[str]:
    found = saver.get_tuple(THREAD)
    return [] if found is None else found.checkpoint["channel_values"].get("words", [])


@pytest.mark.parametrize(
    ("kind", "fatal", "between", "after"),
    [
        ("onceward", "a", ["go"], ["go", "a", "b", "c"]),
        ("onceward", "c", ["go", "a", "b"], ["go", "a", "b", "c"]),
        ("onceward", "end", ["go", "a", "b"], ["go", "a", "b", "c"]),
        # The thread is ahead of the messages, and the next call adds the message to it again.
        ("sqlite", "end", ["go", "a", "b", "c"], ["go", "a", "b", "c", "go", "a", "b", "c"]),
        ("sqlite", "c", ["go", "a", "b"], ["go", "a", "b", "go", "a", "b", "c"]),
        # As far as LangGraph goes: the thread is ahead of the messages.
        ("sqlite with run_id", "end", ["go", "a", "b", "c"], ["go", "a", "b", "c"]),
    ],
)
def test_a_thread_is_where_its_messages_are(
    tmp_path: Path, kind: str, fatal: str, between: list[str], after: list[str]
) -> None:
    """With our saver only: the state, the messages and the processed mark are one commit."""
    me = [*PYTHON, __file__, tmp_path, kind, fatal]
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    with Child(me, env=env) as first:
        assert -signal.SIGKILL == first.wait(30)

    ahead = words(tmp_path, kind)
    with Child(me, env=env) as second:
        assert 0 == second.wait(30)

    # What was in work at the kill may not have been stored yet, with either saver.
    assert between[: len(ahead)] == ahead
    assert ("c" in ahead) == ("c" in between)
    assert after == words(tmp_path, kind)
    assert " ".join(after) == (tmp_path / "answer").read_text()
    if kind == "onceward":
        assert sorted([*NODES, "end", fatal]) == sorted(World(tmp_path, fatal).calls)
        with Postbox(tmp_path / "worker.db", agent="worker", start=False) as box:
            news = "SELECT count(*) FROM onceward_inbox WHERE type = 'news'"
            assert [(1,)] == box.query(news)


if __name__ == "__main__":
    play(Path(sys.argv[1]), *sys.argv[2:])
