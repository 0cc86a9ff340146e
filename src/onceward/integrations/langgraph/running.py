"""Run a graph for the message of a handler, and call its effects as steps."""

from __future__ import annotations

from asyncio import to_thread
from collections.abc import Awaitable, Callable
from functools import partial
from hashlib import sha256
from typing import Any, Final, NamedTuple, TypeVar, TypeVarTuple, Unpack

from langchain_core.runnables import RunnableConfig
from langgraph.config import get_config
from langgraph.pregel import Pregel

from onceward import AsyncContext, AsyncRun, Context, Run
from onceward.errors import InvalidArgument
from onceward.integrations.kept_context import KeptContext
from onceward.integrations.langgraph.calls import (
    HANDLED,
    handled_here,
    here,
    off_loop,
    writes_of_call,
)
from onceward.integrations.langgraph.saver import OncewardSaver
from onceward.integrations.langgraph.stored import CheckpointPlace
from onceward.message.handler_options import StepOptions

R = TypeVar("R")
Ts = TypeVarTuple("Ts")
DIGITS: Final = 8
"""Digits that tell the tasks of a graph apart in the names of their steps."""
NO_SAVER: Final = (
    "the graph must be compiled with checkpointer=OncewardSaver(), or that of the handler's postbox"
)
NOT_HERE: Final = (
    "the checkpoint that this node began with has not come to the file of this handler: run the"
    " graph by invoke, or ainvoke, of onceward.integrations.langgraph"
)


class _Begun(NamedTuple):
    given: Any
    config: RunnableConfig


def invoke(
    graph: Pregel[Any, Any, Any, Any],
    given: Any,
    ctx: Context | Run,
    *,
    thread: str | None = None,
    config: RunnableConfig | None = None,
    **options: Any,
) -> Any:
    """
    Run a graph for the message of a handler, and return its output.

    The thread is the session, or *thread*. Where an earlier call of the handler has begun with
    this message, the graph goes on after the tasks that have finished, and *given* is not given
    again. A message, such as the answer to an ``interrupt``, resumes a graph by
    ``Command(resume=…)``. *options* are those of ``graph.invoke``.

    Raises:
        InvalidArgument: the graph has no saver on this file, or the message has run it already.
        Reject: a node has changed the object that was given as ``context``.

    """
    begun = _begin(
        graph.checkpointer, given, thread_config(ctx, thread, config), options.get("context")
    )
    return graph.invoke(begun.given, begun.config, **{"durability": "sync", **options})


async def ainvoke(
    graph: Pregel[Any, Any, Any, Any],
    given: Any,
    ctx: AsyncContext | AsyncRun,
    *,
    thread: str | None = None,
    config: RunnableConfig | None = None,
    **options: Any,
) -> Any:
    """Run a graph for the message of an ``async def`` handler; see ``invoke``."""
    named = thread_config(ctx, thread, config)
    begin = partial(_begin, graph.checkpointer, given, named, options.get("context"))
    begun = await off_loop(None, begin, named)
    return await graph.ainvoke(begun.given, begun.config, **{"durability": "sync", **options})


def thread_config(
    ctx: Context | Run | AsyncContext | AsyncRun,
    thread: str | None = None,
    config: RunnableConfig | None = None,
) -> RunnableConfig:
    """
    Return the config of a thread, the session's by default, in a handler.

    Its run is the message, or the messages of a run: ``saver.delete_for_runs([message.id])``.
    """
    made: dict[str, Any] = {**(config or {})}
    plain = ctx._plain if isinstance(ctx, AsyncContext | AsyncRun) else ctx
    ids = [each.id for each in plain.messages] if isinstance(plain, Run) else []
    run = ctx.message.id if len(ids) <= 1 else sha256("\0".join(ids).encode()).hexdigest()[:32]
    made["configurable"] = {
        **made.get("configurable", {}),
        "thread_id": thread or ctx.session,
        HANDLED: plain,
    }
    made["metadata"] = {**made.get("metadata", {}), "run_id": run}
    return made


def _begin(saver: Any, given: Any, config: RunnableConfig, context: object) -> _Begun:
    """Return what the graph is given: nothing where this message has begun with it before."""
    if not isinstance(saver, OncewardSaver):
        raise InvalidArgument(NO_SAVER)
    at = here(saver.box, config)
    if at.call is None:
        raise InvalidArgument(NO_SAVER)
    thread = config["configurable"]["thread_id"]
    if thread in at.call.threads:
        msg = f"this message has run a graph on thread {thread!r}: give each run a thread"
        raise InvalidArgument(msg)
    at.call.threads.add(thread)
    at.call.contexts.append(KeptContext(context))
    found = saver.get_tuple(config)
    if found is not None and found.metadata.get("run_id") == config["metadata"]["run_id"]:
        return _Begun(None, config)
    return _Begun(given, config)


def node_step(function: Callable[[*Ts], R], /, *args: *Ts, **options: Unpack[StepOptions]) -> R:
    """
    Call a function as a step of the handler that runs the graph; see ``Context.step``.

    It belongs to the task of the node, so that a graph that goes on after a kill finds it, and
    so do nodes that run at once. Outside of handlers it is a plain call.

    Raises:
        InvalidArgument: the graph was not run by ``invoke`` or ``ainvoke`` of this module.

    """
    handled = handled_here()
    if handled is None:
        return function(*args)
    call, place = writes_of_call(handled), _place()
    if not call.wait_for(place):
        raise InvalidArgument(NOT_HERE)
    call.commit(handled, place)
    options["name"] = _name(function, options.get("name"))
    found: R = handled.step(function, *args, **options)
    return found


async def anode_step(
    function: Callable[[*Ts], Awaitable[R]], /, *args: *Ts, **options: Unpack[StepOptions]
) -> R:
    """Await a coroutine function as a step of the handler that runs the graph."""
    handled = handled_here()
    if handled is None:
        return await function(*args)
    call, face, place = writes_of_call(handled), handled._face, _place()
    if face is None or not await to_thread(call.wait_for, place):
        raise InvalidArgument(NOT_HERE)
    await face._off_loop.call(partial(call.commit, handled, place))
    options["name"] = _name(function, options.get("name"))
    found: R = await face.step(function, *args, **options)
    return found


def _place() -> CheckpointPlace:
    """Return the checkpoint that the node began with."""
    named = get_config()["configurable"]
    around = named["checkpoint_ns"].rpartition("|")[0]
    return CheckpointPlace(str(named["thread_id"]), around, named["checkpoint_map"][around])


def _name(function: Any, given: str | None) -> str:
    plain = function
    while hasattr(plain, "func"):
        plain = plain.func
    task = get_config()["configurable"]["checkpoint_ns"]
    node = task.rpartition("|")[2].partition(":")[0]
    digest = sha256(task.encode()).hexdigest()[:DIGITS]
    return f"{given or getattr(plain, '__name__', type(plain).__name__)} in {node} {digest}"
