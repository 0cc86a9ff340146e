"""``onceward init``: the only command that creates an agent's file by itself."""

from __future__ import annotations

from pathlib import Path

from onceward import Postbox
from onceward.cli.exit_codes import DONE
from onceward.cli.output import document, note, show
from onceward.cli.target import Answer, agent_file, refuse_deleted

ANSWER = Answer()


def init(name: str, /, *, home: Path | None = None, answer: Answer = ANSWER) -> int:
    """
    Create an agent's file, HOME/agents/NAME.db, and print its path.

    A file that exists is left as it is (and its schema brought up to date), so that init may be repeated. Other agents of the
    same home reach the new one by its name.

    Args:
        name: The agent's name: letters, digits, dot, dash and underscore, at most 128.
        home: The home folder; it is created. Default: ONCEWARD_HOME, else the current folder.
        answer: How to answer.

    """
    path = agent_file(name, home)
    path.parent.mkdir(parents=True, exist_ok=True)
    refuse_deleted(path)
    created = not path.exists()
    with Postbox(path, agent=name, start=False) as box:
        found = {"agent": box.agent, "path": str(box.path), "created": created}
    if answer.json:
        document(found)
    else:
        show([found], ("path",), answer.style)
    if not created and not answer.json:
        note(f"{path} was there already")
    return DONE
