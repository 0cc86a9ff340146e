"""``onceward new``: create a folder with an agent, its test, and a README."""

from __future__ import annotations

import shlex
import shutil
from pathlib import Path
from typing import Annotated, Final, NamedTuple

import onceward
from onceward.ops.cli.command import emit
from onceward.ops.cli.exit_codes import DONE, Usage
from onceward.ops.cli.options import said
from onceward.ops.cli.output import note
from onceward.ops.cli.target import Answer

ANSWER = Answer()
PACKAGE = Path(onceward.__file__).resolve().parent
WHERE: Final = (PACKAGE / "examples", PACKAGE.parents[1] / "examples")
"""Where the templates are: in an installed package, or in a clone."""


class Starter(NamedTuple):
    """A template of a new folder."""

    name: str
    """Their folder among the examples."""
    agent: str
    """The agent that ``onceward work`` runs."""


PLAIN: Final = Starter("starter", "greeter:greeter")
PYDANTIC_AI: Final = Starter("pydantic_starter", "assistant:assistant")
LANGGRAPH: Final = Starter("langgraph_starter", "assistant:assistant")


def new(
    folder: Annotated[Path, said("The folder; it is created.")],
    /,
    *,
    pydantic_ai: Annotated[bool, said("An agent of pydantic-ai.", negative=())] = False,
    langgraph: Annotated[bool, said("An agent of LangGraph.", negative=())] = False,
    answer: Answer = ANSWER,
) -> int:
    """
    Create a folder that runs: an agent with a handler and a schedule, its test, a README.

    Nothing is overwritten: the folder must be new or empty. For an agent of a framework name
    the framework.

    Example: onceward new my_agent

    Example: onceward new my_agent --pydantic-ai

    Example: onceward new my_agent --langgraph
    """
    starter = _chosen(pydantic_ai=pydantic_ai, langgraph=langgraph)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        msg = f"{folder} exists and is not empty: give a new folder"
        raise Usage(msg)
    source = next(each / starter.name for each in WHERE if each.is_dir())
    shutil.copytree(
        source, folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__")
    )
    files = sorted(path.name for path in folder.iterdir())
    emit({"folder": str(folder), "files": files}, ("folder", "files"), answer)
    if not answer.json:
        there = shlex.quote(str(folder))
        note(f"next: cd {there} && onceward work {starter.agent}; see README.md")
    return DONE


def _chosen(*, pydantic_ai: bool, langgraph: bool) -> Starter:
    """Return the starter of a framework; raises Usage where two are named."""
    if pydantic_ai and langgraph:
        msg = "an agent is of one framework: give --pydantic-ai or --langgraph"
        raise Usage(msg)
    return PYDANTIC_AI if pydantic_ai else LANGGRAPH if langgraph else PLAIN
