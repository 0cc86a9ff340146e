"""``onceward init``: the only command that creates an agent's file without handlers."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from onceward import Postbox
from onceward.ops.cli.command import emit
from onceward.ops.cli.exit_codes import DONE
from onceward.ops.cli.options import said
from onceward.ops.cli.output import note
from onceward.ops.cli.target import ANSWER, Answer, agent_file, refuse_deleted

Name = Annotated[str, said("Letters, digits, dot, dash and underscore, at most 128.")]
Home = Annotated[
    Path | None, said("The home folder, created if missing; default ONCEWARD_HOME, else here.")
]


def init(name: Name, /, *, home: Home = None, answer: Answer = ANSWER) -> int:
    """
    Create an agent's file, HOME/NAME.db, register the agent, and print the path.

    An existing file is kept and its schema is updated, so init may be repeated.
    Other agents of the same home reach the new one by its name.

    Example: onceward init shop
    """
    path = agent_file(name, home)
    path.parent.mkdir(parents=True, exist_ok=True)
    refuse_deleted(path)
    created = not path.exists()
    with Postbox(path, agent=name, start=False) as box:
        found = {"agent": box.agent, "path": str(box.file.path), "created": created}
    emit(found, ("path",), answer)
    if not created and not answer.json:
        note(f"{path} existed already")
    return DONE
