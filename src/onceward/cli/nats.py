"""``onceward nats``: prepare a NATS server for agents."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

from onceward.cli.exit_codes import DONE, Usage
from onceward.cli.options import Quiet, said
from onceward.cli.output import document, note
from onceward.cli.target import Answer
from onceward.db.environment import env_or_project
from onceward.model import nats as names

ANSWER = Answer()
Names = Annotated[list[str] | None, said("An agent; may be repeated.", negative=())]
Keepers = Annotated[
    list[str] | None,
    said("An agent that may also make the streams; may be repeated.", negative=()),
]


def setup(
    *,
    user: Names = None,
    keeper: Keepers = None,
    url: str = "nats://127.0.0.1:4222",
    apply: Annotated[bool, Quiet] = False,
    replicas: int = 1,
    home: Path | None = None,
    answer: Answer = ANSWER,
) -> int:
    """
    Print the users of a NATS server's configuration for agents; make the streams with --apply.

    Each agent gets a secret, HOME/nats/AGENT.nk, if it has none; the server is told its public
    part only. A user can publish under its own name only and read what is for it. With --apply
    nothing is printed: the first keeper, or else the first user, makes the streams that the
    server does not have; those that it has keep their limits.

    Args:
        url: The server at which --apply makes the streams.
        apply: Make the streams.
        replicas: Servers of a cluster that hold each stream that is made.
        home: The home folder; default ONCEWARD_HOME, else here.

    """
    from onceward import nats  # noqa: PLC0415 - loads asyncio

    chosen = dict.fromkeys([*(keeper or ()), *(user or ())])
    if not chosen:
        msg = "which agents? Give --user NAME or --keeper NAME"
        raise Usage(msg)
    folder = home or Path(env_or_project("home") or ".")
    users = [nats.make_user(folder, each, keeper=each in (keeper or ())) for each in chosen]
    if apply:
        nats.make_streams(url, folder, users[0].agent, replicas=replicas)
    text = nats.configuration(users)
    if answer.json:
        document({"users": [_row(each) for each in users], "configuration": text})
    elif apply:
        note(f"{url} has the streams {', '.join(names.STREAMS)}")
    else:
        sys.stdout.write(text)
    return DONE


def _row(user: object) -> dict[str, object]:
    return {name: getattr(user, name) for name in ("agent", "public_key", "keeper")}
