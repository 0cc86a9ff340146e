"""LangGraph's graphs keep their checkpoints in the file of an agent."""

from __future__ import annotations

import asyncio
import operator
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from threading import Thread
from typing import Annotated, Any, TypedDict

import pytest

pytest.importorskip("langgraph", reason="needs onceward[frameworks-test]")

from langgraph.checkpoint.conformance import checkpointer_test, validate
from langgraph.graph import END, START, StateGraph
from langgraph.runtime import Runtime
from langgraph.types import Command, Send, interrupt

from onceward import (
    Agent,
    AsyncContext,
    AsyncPostbox,
    Context,
    Msg,
    Postbox,
    Run,
    errors,
    step,
)
from onceward.integrations.langgraph import (
    OncewardSaver,
    ainvoke,
    anode_step,
    invoke,
    node_step,
    thread_config,
)
from onceward.testing import Controls, ManualClock

STORED = "SELECT run_id, source, step FROM onceward_checkpoints ORDER BY checkpoint_id"


class Work(Msg, type="work"):
    """A message that a graph handles."""

    text: str


class Approved(Msg, type="approved"):
    """The answer of a person."""

    by: str


class Words(TypedDict):
    """The state of a graph."""

    words: Annotated[list[str], operator.add]


class Calls(list[str]):
    """The nodes and the steps that were called, in order."""

    def node(self, name: str) -> Callable[[Words], dict[str, list[str]]]:
        """Return a node that adds its name to the words."""

        def call(_: Words) -> dict[str, list[str]]:
            self.append(name)
            return {"words": [name]}

        return call

    def chain(self, *names: str) -> StateGraph[Words]:
        """Return a graph of nodes, one after the other."""
        graph = StateGraph(Words)
        for name in names:
            graph.add_node(name, self.node(name))
        for before, after in zip((START, *names), (*names, END), strict=True):
            graph.add_edge(before, after)
        return graph


@pytest.fixture
def calls() -> Calls:
    """What was called."""
    return Calls()


class World:
    """An agent without threads, whose handler runs a graph."""

    def __init__(self, folder: Path) -> None:
        self.clock = ManualClock()
        self.agent = Agent("worker")
        self.path = folder / "worker.db"

    @cached_property
    def box(self) -> Postbox:
        """The postbox, opened on first use: handlers are declared before."""
        return Postbox(
            self.path,
            agent=self.agent,
            start=False,
            delivery_retry="±0%",
            handler_retry="±0%",
            testing=Controls(clock=self.clock),
        )

    def say(self, body: object, session: str = "s") -> str:
        """Send the agent a message, and let it be handled; return its id."""
        found = self.box.session(session).send("worker", body)
        self.go_on()
        return found

    def go_on(self) -> None:
        """Let messages be handled again until that is over."""
        for _ in range(4):
            self.box.run_until_idle()
            self.clock.advance(60)

    @property
    def dead(self) -> list[Any]:
        """The dead letters."""
        return self.box.query("SELECT reason FROM onceward_dead_letters")


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """An agent."""
    found = World(tmp_path)
    yield found
    found.box.close()


class Fails:
    """Fails at its first calls, as often as it is told."""

    def __init__(self, times: int = 1) -> None:
        self._left = times

    def __call__(self) -> None:
        """Fail, or return."""
        self._left -= 1
        if self._left >= 0:
            raise OSError("the network is down")


# -- the saver ----------------------------------------------------------------------------------


@pytest.mark.parametrize("of_loop", [False, True])
def test_the_saver_passes_the_conformance_tests(tmp_path: Path, of_loop: bool) -> None:
    """Base and extended capabilities, of a Postbox and of an AsyncPostbox."""
    numbers = iter(range(100))

    @checkpointer_test(name="onceward")
    async def saver() -> AsyncIterator[OncewardSaver]:
        path = tmp_path / f"{next(numbers)}.db"
        if of_loop:
            async with AsyncPostbox(path, agent="a", start=False) as on_loop:
                yield OncewardSaver(on_loop)
        else:
            with Postbox(path, agent="a", start=False) as box:
                yield OncewardSaver(box)

    report = asyncio.run(validate(saver))

    assert {each: (True, []) for each in report.results} == {
        each: (found.passed, found.failures) for each, found in report.results.items()
    }
    assert 8 == len(report.results)


def test_a_file_without_graphs_has_no_tables_of_theirs(tmp_path: Path) -> None:
    """They are made by the first checkpoint; reading makes none."""
    config = {"configurable": {"thread_id": "t"}}
    with Postbox(tmp_path / "a.db", agent="a", start=False) as box:
        saver = OncewardSaver(box)
        assert saver.get_tuple(config) is None
        assert [] == list(saver.list(config))
        saver.delete_thread("t")
        count = "SELECT count(*) FROM sqlite_schema WHERE name LIKE '%checkpoint%'"
        assert [(0,)] == box.query(count)

        graph = Calls().chain("a").compile(checkpointer=saver)
        graph.invoke({"words": ["go"]}, config)
        assert [(0,)] != box.query(count)
        assert [] == box.file.check()


def test_a_newer_version_of_the_tables_is_refused(tmp_path: Path) -> None:
    """A program of before does not write into tables that it does not know."""
    config = {"configurable": {"thread_id": "t"}}
    with Postbox(tmp_path / "a.db", agent="a", start=False) as box:
        graph = Calls().chain("a").compile(checkpointer=OncewardSaver(box))
        graph.invoke({"words": ["go"]}, config)
        with box.begin() as tx:
            tx.execute("UPDATE _onceward_integrations SET version = 2")

        with pytest.raises(errors.SchemaTooNew, match="upgrade onceward"):
            OncewardSaver(box).get_tuple(config)


def test_pruning_keeps_what_a_channel_of_deltas_is_read_from(tmp_path: Path) -> None:
    """The newest checkpoint, and its ancestors back to the last snapshot."""
    with Postbox(tmp_path / "a.db", agent="a", start=False) as box:
        saver = OncewardSaver(box)
        config: Any = {"configurable": {"thread_id": "t", "checkpoint_ns": ""}}
        for number in range(5):
            config = saver.put(
                config,
                _checkpoint(f"{number}"),
                {"step": number, "counters_since_delta_snapshot": {"a": (1, 1), "b": (1, 2)}},
                {},
            )
            saver.put_writes(config, [("a", number)], "task")

        saver.prune(["t"])

        kept = [each.checkpoint["id"] for each in saver.list({"configurable": {"thread_id": "t"}})]
        assert ["4", "3", "2"] == kept
        assert [(3,)] == box.query("SELECT count(*) FROM _onceward_checkpoint_writes")
        with pytest.raises(errors.InvalidArgument, match="keep_latest, delete"):
            saver.prune(["t"], strategy="some")


def _checkpoint(name: str) -> Any:
    return {
        "v": 2, "id": name, "ts": "", "channel_values": {}, "channel_versions": {},
        "versions_seen": {}, "updated_channels": None,
    }  # fmt: skip


# -- in a handler -------------------------------------------------------------------------------


def test_the_last_checkpoint_is_committed_with_the_processed_mark(
    world: World, calls: Calls
) -> None:
    """What a handler that fails leaves behind are the tasks that have finished, and no end."""
    graph, seen = calls.chain("a", "b").compile(checkpointer=OncewardSaver()), list[Any]()

    @world.agent.on(Work)
    def handle(work: Work, ctx: Context) -> None:
        seen.append(invoke(graph, {"words": [work.text]}, ctx)["words"])
        ctx.send("worker", {"done": True}, type="other")
        if len(seen) == 1:
            raise OSError("the printer is out of paper")

    message = world.box.session("s").send("worker", Work(text="go"))
    world.box.run_until_idle()
    steps = [row[2] for row in world.box.query(STORED)]
    sent = world.box.query("SELECT count(*) FROM onceward_outbox WHERE type = 'other'")
    world.go_on()

    assert ([-1, 0, 1], [(0,)]) == (steps, sent)
    assert [["go", "a", "b"]] * 2 == seen
    assert ["a", "b"] == calls
    rows = world.box.query(STORED)
    assert [message] * len(rows) == [row[0] for row in rows]
    assert 2 == rows[-1][2]
    assert [] == world.box.file.check()


def test_the_messages_of_a_session_go_on_with_one_thread(world: World, calls: Calls) -> None:
    """The state of one message is there for the next one, and sessions are apart."""
    graph, seen = calls.chain("a").compile(checkpointer=OncewardSaver()), list[Any]()

    @world.agent.on(Work)
    def handle(work: Work, ctx: Context) -> None:
        seen.append(invoke(graph, {"words": [work.text]}, ctx)["words"])

    world.say(Work(text="1"))
    world.say(Work(text="2"))
    world.say(Work(text="3"), session="other")

    assert [["1", "a"], ["1", "a", "2", "a"], ["3", "a"]] == seen


def test_a_node_that_fails_is_tried_again_by_the_retry_of_its_message(
    world: World, calls: Calls
) -> None:
    """The nodes before it are not called again."""
    fails = Fails(2)

    def breaks(_: Words) -> dict[str, list[str]]:
        calls.append("b")
        fails()
        return {"words": ["b"]}

    graph = calls.chain("a", "c")
    graph.add_node("b", breaks)
    graph.edges = {(START, "a"), ("a", "b"), ("b", "c"), ("c", END)}
    compiled, seen = graph.compile(checkpointer=OncewardSaver()), list[Any]()

    @world.agent.on(Work)
    def handle(work: Work, ctx: Context) -> None:
        seen.append(invoke(compiled, {"words": [work.text]}, ctx)["words"])

    world.say(Work(text="go"))

    assert [["go", "a", "b", "c"]] == seen
    assert ["a", "b", "b", "b", "c"] == calls


def test_a_handler_that_has_written_commits_all_at_once(world: World, calls: Calls) -> None:
    """Its rows hold the lock, so that no task is committed before the end."""
    graph = calls.chain("a", "b").compile(checkpointer=OncewardSaver())
    fails, seen = Fails(), list[Any]()

    @world.agent.on(Work)
    def handle(work: Work, ctx: Context) -> None:
        ctx.tx.execute("INSERT INTO mine VALUES (1)")
        seen.append(invoke(graph, {"words": [work.text]}, ctx)["words"])
        seen.append(graph.get_state(thread_config(ctx)).values["words"])
        fails()

    with world.box.begin() as tx:
        tx.execute("CREATE TABLE mine (n INTEGER)")
    world.say(Work(text="go"))

    assert [["go", "a", "b"]] * 4 == seen
    assert ["a", "b", "a", "b"] == calls
    assert [(1,)] == world.box.query("SELECT n FROM mine")


def test_an_interrupt_is_resumed_by_the_next_message(world: World, calls: Calls) -> None:
    """The answer is given to one interrupt, also where its handler fails behind it."""
    fails = Fails()

    def ask(_: Words) -> dict[str, list[str]]:
        first = interrupt("first?")
        second = interrupt("second?")
        return {"words": [first, second]}

    graph = calls.chain("a", "b")
    graph.add_node("ask", ask)
    graph.edges = {(START, "a"), ("a", "ask"), ("ask", "b"), ("b", END)}
    compiled, seen = graph.compile(checkpointer=OncewardSaver()), list[Any]()

    @world.agent.on(Work)
    def handle(work: Work, ctx: Context) -> None:
        found = invoke(compiled, {"words": [work.text]}, ctx)
        seen.append([each.value for each in found["__interrupt__"]])

    @world.agent.on(Approved)
    def resume(approved: Approved, ctx: Context) -> None:
        found = invoke(compiled, Command(resume=approved.by), ctx)
        fails()
        asked = [each.value for each in found.get("__interrupt__", ())]
        seen.append(asked or found["words"])

    world.say(Work(text="go"))
    saved = graph.compile(checkpointer=OncewardSaver(world.box))
    assert "first?" == saved.get_state({"configurable": {"thread_id": "s"}}).interrupts[0].value
    world.say(Approved(by="ada"))
    world.say(Approved(by="bob"))

    assert [["first?"], ["second?"], ["go", "a", "ada", "bob", "b"]] == seen
    assert ["a", "b"] == calls


def test_an_answer_is_not_given_to_a_later_node(world: World, calls: Calls) -> None:
    """Also where its handler fails once the graph has come to that node."""
    fails = Fails()

    def effect() -> str:
        calls.append("effect")
        return "effect"

    def first(_: Words) -> dict[str, list[str]]:
        return {"words": [interrupt("first?")]}

    def second(_: Words) -> dict[str, list[str]]:
        return {"words": [node_step(effect), interrupt("second?")]}

    graph = StateGraph(Words)
    graph.add_node("first", first)
    graph.add_node("second", second)
    graph.add_edge(START, "first")
    graph.add_edge("first", "second")
    compiled, seen = graph.compile(checkpointer=OncewardSaver()), list[Any]()

    @world.agent.on(Work)
    def handle(work: Work, ctx: Context) -> None:
        invoke(compiled, {"words": [work.text]}, ctx)

    @world.agent.on(Approved)
    def resume(approved: Approved, ctx: Context) -> None:
        found = invoke(compiled, Command(resume=approved.by), ctx)
        fails()
        seen.append([each.value for each in found.get("__interrupt__", ())] or found["words"])

    world.say(Work(text="go"))
    world.say(Approved(by="ada"))
    world.say(Approved(by="bob"))

    assert [["second?"], ["go", "ada", "effect", "bob"]] == seen


def test_a_command_is_applied_once_although_its_handler_fails(world: World, calls: Calls) -> None:
    """An update that came with an answer is not added again by the next call."""
    fails = Fails(2)

    def ask(_: Words) -> dict[str, list[str]]:
        return {"words": [interrupt("go on?")]}

    def last(_: Words) -> dict[str, list[str]]:
        fails()
        return {"words": ["end"]}

    graph = StateGraph(Words)
    graph.add_node("ask", ask)
    graph.add_node("last", last)
    graph.add_edge(START, "ask")
    graph.add_edge("ask", "last")
    compiled, seen = graph.compile(checkpointer=OncewardSaver()), list[Any]()

    @world.agent.on(Work)
    def handle(work: Work, ctx: Context) -> None:
        invoke(compiled, {"words": [work.text]}, ctx)

    @world.agent.on(Approved)
    def resume(approved: Approved, ctx: Context) -> None:
        command = Command(resume=approved.by, update={"words": ["noted"]})
        seen.append(invoke(compiled, command, ctx)["words"])

    world.say(Work(text="go"))
    world.say(Approved(by="ada"))

    assert [["go", "noted", "ada", "end"]] == seen


def test_a_worker_that_has_lost_its_message_stores_no_checkpoint(
    world: World, calls: Calls
) -> None:
    """Tasks that finish afterwards are not committed."""
    graph = calls.chain("a", "b")

    def take_over() -> None:
        with world.box.begin() as tx:
            tx.execute("UPDATE _onceward_lanes SET token = token + 1")

    def steal(_: Words) -> dict[str, list[str]]:
        if not seen:
            thief = Thread(target=take_over)
            thief.start()
            thief.join()
        return {"words": ["stolen"]}

    graph.add_node("steal", steal)
    graph.edges = {(START, "a"), ("a", "steal"), ("steal", "b"), ("b", END)}
    compiled, seen = graph.compile(checkpointer=OncewardSaver()), list[list[Any]]()

    @world.agent.on(Work)
    def handle(work: Work, ctx: Context) -> None:
        try:
            invoke(compiled, {"words": [work.text]}, ctx)
        except errors.LeaseLost:
            seen.append(world.box.query(STORED))
            raise

    world.box.session("s").send("worker", Work(text="go"))
    world.box.run_until_idle()

    assert [[-1, 0]] == [[row[2] for row in rows] for rows in seen]
    assert [] == world.dead


def test_a_message_runs_a_thread_once(world: World, calls: Calls) -> None:
    """A second graph of a handler needs a thread of its own, and a saver of the file."""
    graph, said = calls.chain("a").compile(checkpointer=OncewardSaver()), list[str]()
    plain = calls.chain("a").compile()

    @world.agent.on(Work)
    def handle(work: Work, ctx: Context) -> None:
        invoke(graph, {"words": ["1"]}, ctx)
        invoke(graph, {"words": ["2"]}, ctx, thread="t2")
        for each in (graph, plain):
            with pytest.raises(errors.InvalidArgument) as refused:
                invoke(each, {"words": ["3"]}, ctx)
            said.append(str(refused.value))

    world.say(Work(text="go"))

    assert [] == world.dead
    assert "give each run a thread" in said[0]
    assert "checkpointer=OncewardSaver()" in said[1]
    threads = "SELECT DISTINCT thread_id FROM onceward_checkpoints ORDER BY 1"
    assert [("s",), ("t2",)] == world.box.query(threads)


# -- steps of nodes -----------------------------------------------------------------------------


class Fan(TypedDict):
    """A state whose nodes run at once."""

    done: Annotated[list[str], operator.add]


def test_steps_of_nodes_are_called_once(world: World, calls: Calls) -> None:
    """Also of one that is called in a loop, and of those that run at once, where all fail."""
    fails = {name: Fails() for name in ("think", "one", "two", "end")}

    def effect(name: str) -> str:
        calls.append(name)
        return f"{name}-{len(step.key)}"

    def think(state: Fan) -> dict[str, list[str]]:
        found = node_step(effect, f"think {len(state['done'])}")
        fails["think"]()
        return {"done": [found]}

    def fan(state: Fan) -> list[Send] | str:
        return "think" if len(state["done"]) < 2 else [Send("use", "one"), Send("use", "two")]

    def use(name: Any) -> dict[str, list[str]]:
        found = node_step(effect, name)
        fails[name]()
        return {"done": [found]}

    graph = StateGraph(Fan)
    graph.add_node("think", think)
    graph.add_node("use", use)
    graph.add_edge(START, "think")
    graph.add_conditional_edges("think", fan, ["think", "use"])
    compiled, seen = graph.compile(checkpointer=OncewardSaver()), list[Any]()

    @world.agent.on(Work)
    def handle(work: Work, ctx: Context) -> None:
        found = invoke(compiled, {"done": []}, ctx)
        fails["end"]()
        seen.append(found["done"])

    world.say(Work(text="go"))

    assert [["think 0-32", "think 1-32", "one-32", "two-32"]] == seen
    assert ["one", "think 0", "think 1", "two"] == sorted(calls)


def test_a_step_of_a_node_is_a_plain_call_outside_of_handlers(calls: Calls, tmp_path: Path) -> None:
    """A graph can be tried without an agent; its checkpoints are committed one by one."""

    def effect(name: str) -> str:
        calls.append(name)
        return name

    graph = StateGraph(Words)
    graph.add_node("a", lambda _: {"words": [node_step(effect, "x")]})
    graph.add_edge(START, "a")
    with Postbox(tmp_path / "a.db", agent="a", start=False) as box:
        compiled = graph.compile(checkpointer=OncewardSaver(box))
        found = compiled.invoke({"words": []}, {"configurable": {"thread_id": "t"}})

        assert (["x"], ["x"]) == (found["words"], calls)
        assert [(3,)] == box.query("SELECT count(*) FROM onceward_checkpoints")


# -- runs, and coroutines -----------------------------------------------------------------------


def test_a_run_goes_on_with_its_graph(tmp_path: Path, calls: Calls) -> None:
    """The checkpoint is committed with the end of the run."""
    clock, agent = ManualClock(), Agent("worker")
    fails, seen = Fails(), list[Any]()

    @agent.runs("*")
    def serve(run: Run) -> None:
        found = invoke(graph, {"words": [each.body["text"] for each in run.messages]}, run)
        fails()
        seen.append(found["words"])

    with Postbox(tmp_path / "w.db", agent=agent, start=False, testing=Controls(clock=clock)) as box:
        graph = calls.chain("a", "b").compile(checkpointer=OncewardSaver(box))
        box.session("s").send("worker", {"text": "go"})
        for _ in range(4):
            box.run_until_idle()
            clock.advance(60)

        assert [["go", "a", "b"]] == seen
        assert ["a", "b"] == calls
        assert [(4,)] == box.query("SELECT count(*) FROM onceward_checkpoints")


def test_coroutines_have_the_same(tmp_path: Path, calls: Calls) -> None:
    """A graph of coroutines, in an async def handler, with a step that fails behind it."""
    clock, agent = ManualClock(), Agent("worker")
    fails, seen = Fails(2), list[Any]()

    async def effect(name: str) -> str:
        calls.append(name)
        return name

    async def use(_: Words) -> dict[str, list[str]]:
        found = await anode_step(effect, "effect")
        fails()
        return {"words": [found]}

    graph = calls.chain("a")
    graph.add_node("use", use)
    graph.edges = {(START, "a"), ("a", "use"), ("use", END)}
    compiled = graph.compile(checkpointer=OncewardSaver())

    @agent.on(Work)
    async def handle(work: Work, ctx: AsyncContext) -> None:
        found = await ainvoke(compiled, {"words": [work.text]}, ctx)
        seen.append(found["words"])

    async def main() -> None:
        async with AsyncPostbox(
            tmp_path / "w.db", agent=agent, start=False, testing=Controls(clock=clock)
        ) as box:
            await box.session("s").send("worker", Work(text="go"))
            for _ in range(4):
                await box.run_until_idle()
                clock.advance(60)
            assert [("s", 4)] == await box.query(
                "SELECT thread_id, count(*) FROM onceward_checkpoints GROUP BY 1"
            )

    asyncio.run(main())

    assert [["go", "a", "effect"]] == seen
    assert ["a", "effect"] == calls


@dataclass
class Shared:
    """The context of a graph."""

    cents: int = 0


@pytest.mark.parametrize("way", ["invoke", "ainvoke"])
def test_a_node_that_changes_the_context_of_its_graph_ends_the_message(
    world: World, calls: Calls, way: str
) -> None:
    """A call that goes on after the node would not find the change."""

    def pay(_: Words, runtime: Runtime[Shared]) -> dict[str, list[str]]:
        calls.append("pay")
        runtime.context.cents += 5
        return {"words": ["paid"]}

    builder = StateGraph(Words, context_schema=Shared)
    builder.add_node("pay", pay)
    builder.add_edge(START, "pay")
    builder.add_edge("pay", END)
    graph = builder.compile(checkpointer=OncewardSaver())

    if way == "invoke":

        @world.agent.on(Work)
        def handle(work: Work, ctx: Context) -> None:
            invoke(graph, {"words": []}, ctx, context=Shared())
    else:

        @world.agent.on(Work)
        async def handle_async(work: Work, ctx: AsyncContext) -> None:
            await ainvoke(graph, {"words": []}, ctx, context=Shared())

    world.say(Work(text="go"))
    world.box.run_until_idle()

    [(reason, said)] = world.box.query("SELECT reason, last_error FROM onceward_dead_letters")
    assert ("rejected", ["pay"]) == (reason, [*calls])
    assert "'cents'" in said
