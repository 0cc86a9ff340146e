"""Find the agents that words of a command line name: ``module:agent``, or all of a module."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any

from onceward import Agent
from onceward.errors import OncewardError
from onceward.ops.cli.exit_codes import Usage


def named_agents(words: Sequence[str]) -> list[Agent]:
    """
    Return the agents that the words name, each once, in their order.

    A word is a module, whose variables hold the agents, or ``module:variable``: an agent, or a
    list, tuple or dict of agents.

    Raises:
        Usage: a word names no agent, or two agents have one name; an error inside of a module is
            not caught.

    """
    found = {id(agent): agent for word in words for agent in _of(word)}
    by_name: dict[str, Agent] = {}
    for agent in found.values():
        if by_name.setdefault(agent.name, agent) is not agent:
            raise Usage(f"two agents are named {agent.name!r}: their messages share a file")
    return list(found.values())


def agent_of(word: str, name: str) -> Agent:
    """Return the agent *name* among those of a word; if it is not there, the first one."""
    agents = named_agents([word])
    return next((agent for agent in agents if agent.name == name), agents[0])


def _of(word: str) -> list[Agent]:
    module, colon, variable = word.partition(":")
    if not module or (colon and not variable):
        raise Usage(f"{word!r} does not say where the agent is: write module:agent")
    if (dotted := _dotted(module)) != module:
        raise Usage(f"{word!r} is not a module: write {dotted}{colon}{variable}")
    with suppress(FileNotFoundError):  # it was deleted, so no module is found there
        if (here := str(Path.cwd())) not in sys.path:
            sys.path.insert(0, here)
    found: Any = _imported(module)
    if not colon:
        return _agents(vars(found).values(), module)
    for part in variable.split("."):
        found = getattr(found, part, None)
    inside = _inside(found)
    return _agents(
        inside if all(isinstance(each, Agent) for each in inside) else (), module, variable
    )


def _dotted(module: str) -> str:
    """Return the module of a path to its file: shop/app.py is shop.app."""
    return module.removesuffix(".py").replace(os.sep, ".").strip(".")


def _agents(values: Iterable[object], module: str, variable: str = "") -> list[Agent]:
    """Return the agents among values; raise Usage if there is none."""
    agents = [each for each in values if isinstance(each, Agent)]
    if not agents:
        raise Usage(_without_agent(module, variable))
    return agents


def _inside(value: object) -> list[object]:
    """Return the members of a collection, else the value."""
    match value:
        case Mapping():
            return [*value.values()]
        case list() | tuple():
            return [*value]
    return [value]


def _without_agent(module: str, variable: str) -> str:
    """Return what to do about a module without such agents; a folder imports as a module."""
    if getattr(sys.modules[module], "__file__", None) is None:
        written = f"{module}.FILE:{variable}" if variable else f"{module}.FILE"
        return (
            f"{module} is a folder, not a module: "
            f"change to the folder (cd {module}), or write {written}"
        )
    if not variable:
        return (
            f"the module {module} has no variable that is an Agent: "
            f"declare or import the agents there, or write {module}.FILE:AGENT"
        )
    return (
        f"{module}:{variable} is not an Agent, nor a list, tuple or dict of agents: "
        f"declare {variable} = Agent(...) in {module}"
    )


def _imported(module: str) -> Any:
    try:
        return import_module(module)
    except OncewardError as error:  # of a declaration: its line is in the traceback
        raise ImportError(f"{module} is not importable: {error}") from error
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise
        raise Usage(f"no module {error.name!r} is found from {sys.path[0]}") from error
