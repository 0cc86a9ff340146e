"""``onceward new``: create a folder with an agent, its test, and a README."""

from __future__ import annotations

import shlex
import shutil
from pathlib import Path
from typing import Annotated, Final, NamedTuple

from onceward.ops.cli.command import emit
from onceward.ops.cli.example_folder import example_folder
from onceward.ops.cli.exit_codes import DONE, Usage
from onceward.ops.cli.options import said
from onceward.ops.cli.output import note
from onceward.ops.cli.target import ANSWER, Answer, as_path


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
    if as_path(folder).exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise Usage(f"{folder} exists and is not empty: give a new folder")
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(example_folder(starter.name), folder, dirs_exist_ok=True, ignore=ignored)
    files = sorted(path.name for path in folder.iterdir())
    emit({"folder": str(folder), "files": files}, ("folder", "files"), answer)
    if not answer.json:
        there = shlex.quote(str(folder))
        note(f"next: cd {there} && onceward work {starter.agent}; see README.md")
    return DONE


def _chosen(*, pydantic_ai: bool, langgraph: bool) -> Starter:
    """Return the starter of a framework; raises Usage where two are named."""
    if pydantic_ai and langgraph:
        raise Usage("an agent is of one framework: give --pydantic-ai or --langgraph")
    return PYDANTIC_AI if pydantic_ai else LANGGRAPH if langgraph else PLAIN
