"""``onceward dead edit``: correct the body of a dead letter, so that a replay can succeed."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

from onceward import Postbox
from onceward.file.backup import read_info
from onceward.ops.cli.command import emit
from onceward.ops.cli.exit_codes import Failed, NothingThere, Usage
from onceward.ops.cli.named_agents import agent_of
from onceward.ops.cli.options import said
from onceward.ops.cli.output import note
from onceward.ops.cli.readonly import views, whole_id
from onceward.ops.cli.records import plain_body
from onceward.ops.cli.send import parsed
from onceward.ops.cli.target import WHERE, Where, existing
from onceward.ops.views.messages import dead_ids
from onceward.types import DeadLetter

Id = Annotated[str, said("The dead letter's id, or a unique prefix of it.")]
NewBody = Annotated[
    str | None,
    said("The body, as JSON or plain text; a dash reads it from stdin.", allow_leading_hyphen=True),
]
Handlers = Annotated[
    str | None, said("module:agent, whose handler's model the body is checked against.")
]


def edit(
    id: Id, /, *, body: NewBody = None, handlers: Handlers = None, where: Where = WHERE
) -> int:
    """
    Correct the body of a received dead letter, and print its id; onceward dead replay follows.

    Without --body the present body is opened in $VISUAL, $EDITOR or vi. With --handlers the body
    must fit the model of the handler of its type, else nothing is changed: exit code 2. onceward
    show prints each earlier body, and when it was replaced, in the header bodyedits of its frame.

    Example: onceward dead edit 0199f0c2 --body '{"id": 7, "cents": 1999}' --handlers app:billing
    """
    path = existing(where.path())
    with views(path) as found:
        message_id = whole_id(found, dead_ids, id)
    agent = None if handlers is None else agent_of(handlers, read_info(path).agent)
    with Postbox(path, agent=agent, start=False) as box:
        dead = box.dead_letters.get(message_id)
        if dead is None:
            raise NothingThere(f"dead letter {message_id} is gone: see onceward dead ls")
        edited = box.dead_letters.edit(message_id, _edited(dead) if body is None else parsed(body))
        if not box.dead_letters.checks(edited.type, edited.topic):
            note(f"the body is not checked: no model of {edited.type} is known; give --handlers")
        return emit([{"id": message_id}], ("id",), where)


def _edited(dead: DeadLetter) -> object:
    """
    Return the body as the user leaves it in an editor.

    Raises:
        Usage: the command has no terminal for an editor.
        NothingThere: nothing was changed.

    """
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise Usage("an editor needs a terminal: give the body with --body")
    before = json.dumps(plain_body(dead), indent=2, ensure_ascii=False)
    with TemporaryDirectory(prefix="onceward-") as folder:  # only its owner may read it
        file = Path(folder, "body.json")
        file.write_text(before, encoding="utf-8")
        words = shlex.split(os.environ.get("VISUAL") or os.environ.get("EDITOR") or "vi")
        try:
            subprocess.run([*words, str(file)], check=True)  # noqa: S603 - the user's own editor
        except (OSError, subprocess.CalledProcessError) as error:
            raise Failed(f"the editor {words[0]} failed, nothing was changed: {error}") from error
        after = file.read_text(encoding="utf-8")
    if after.strip() == before.strip():
        raise NothingThere("nothing was changed")
    return parsed(after)
