"""
Measure LangGraph's SqliteSaver beside ours: ``python -m tests.frameworks.measure_langgraph``.

Prints checkpoints per second, and the time from the start of a process after a kill until the
node that was killed is called again, with the nodes that were called twice.
"""

from __future__ import annotations

import operator
import os
import signal
import sqlite3
import statistics
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any, Final, TypedDict

from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import END, START, StateGraph
from tests.children import PYTHON, Child

from onceward import Agent, Context, Postbox
from onceward.integrations.langgraph import OncewardSaver, invoke

KINDS: Final = ("SqliteSaver", "OncewardSaver(box)", "invoke in a handler")
NODES: Final = 300
FATAL: Final = 100
ROUNDS: Final = 5
THREAD: Any = {"configurable": {"thread_id": "t"}, "recursion_limit": 2 * NODES}


class State(TypedDict):
    """A count, and a text of 1 KB."""

    n: int
    text: str
    seen: Annotated[list[int], operator.add]


class World:
    """A graph of one node that is called again and again, and killed once."""

    def __init__(self, folder: Path, *, fatal: int = -1) -> None:
        self._folder, self._fatal = folder, fatal
        self.calls = list[int]()
        self.first: float | None = None
        """When the first node was called."""

    def graph(self, saver: Any) -> Any:
        """Return the graph."""
        graph = StateGraph(State)
        graph.add_node("count", self._count)
        graph.add_edge(START, "count")
        graph.add_conditional_edges("count", lambda state: END if state["n"] >= NODES else "count")
        return graph.compile(checkpointer=saver)

    def _count(self, state: State) -> dict[str, Any]:
        self.first = self.first or time.monotonic()
        self.calls.append(state["n"])
        if state["n"] == self._fatal and not (self._folder / "died").exists():
            (self._folder / "died").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return {"n": state["n"] + 1}


def play(folder: Path, kind: str, fatal: int) -> tuple[float, World]:
    """Run the graph; return the seconds until its first node, and what was called."""
    world, given = World(folder, fatal=fatal), {"n": 0, "text": "x" * 1000, "seen": []}
    begun = time.monotonic()
    if kind == "SqliteSaver":
        connection = sqlite3.connect(folder / "graph.db", check_same_thread=False)
        graph = world.graph(SqliteSaver(connection))
        again = graph.get_state(THREAD).next
        graph.invoke(None if again else given, THREAD, durability="sync")
        connection.close()
    elif kind == "OncewardSaver(box)":
        with Postbox(folder / "a.db", agent="a", start=False) as box:
            graph = world.graph(OncewardSaver(box))
            again = graph.get_state(THREAD).next
            graph.invoke(None if again else given, THREAD, durability="sync")
    else:
        agent, graph = Agent("a"), world.graph(OncewardSaver())

        @agent.on("go")
        def handle(_: str, ctx: Context) -> str:
            invoke(graph, given, ctx, config={"recursion_limit": 2 * NODES})
            return "done"

        with Postbox(folder / "a.db", agent=agent) as box:
            ticket = box.request("a", "go", type="go", key="go")
            box.result(ticket, reply=str, timeout=120)
    return (world.first or begun) - begun, world


def rate(kind: str) -> float:
    """Return the checkpoints per second of one run."""
    with TemporaryDirectory() as folder:
        begun = time.monotonic()
        play(Path(folder), kind, -1)
        return NODES / (time.monotonic() - begun)


def resume(kind: str) -> tuple[float, int]:
    """Kill a run, and return the seconds until it goes on, and how many nodes were repeated."""
    with TemporaryDirectory() as folder:
        me = [*PYTHON, "-m", "tests.frameworks.measure_langgraph", folder, kind]
        with Child(me) as first:
            first.wait(120)
        seconds, world = play(Path(folder), kind, FATAL)
        return seconds, sum(each <= FATAL for each in world.calls)


def main() -> None:
    """Print a row for each kind; they take turns."""
    rates: dict[str, list[float]] = {kind: [] for kind in KINDS}
    resumed: dict[str, list[tuple[float, int]]] = {kind: [] for kind in KINDS}
    for _ in range(ROUNDS):
        for kind in KINDS:
            rates[kind].append(rate(kind))
            resumed[kind].append(resume(kind))
    for kind in KINDS:
        seconds = statistics.median(each for each, _ in resumed[kind])
        nodes = max(each for _, each in resumed[kind])
        sys.stdout.write(
            f"{kind}: {statistics.median(rates[kind]):.0f} nodes/s,"
            f" goes on after {1000 * seconds:.0f} ms, repeats {nodes} nodes\n"
        )


if __name__ == "__main__":
    if len(sys.argv) > 1:
        play(Path(sys.argv[1]), sys.argv[2], FATAL)
    else:
        main()
