"""``onceward nats``: prepare a NATS server for agents."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Final

from onceward.ops.cli.exit_codes import DONE, FAILED, Usage
from onceward.ops.cli.options import Quiet, said
from onceward.ops.cli.output import document, note
from onceward.ops.cli.target import Answer, home_folder

ANSWER = Answer()
CURES: Final = {
    "differs": ", which is yours to change: nats stream edit",
    "unsafe": ": messages can come under false names until nats stream edit changes that",
}
"""By level of a stream: what to do about it."""
BELONGS: Final = (
    "these entries belong between the brackets of authorization { users: [ ] }, beside all others"
)
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
    max_bytes: int = 1 << 30,
    home: Path | None = None,
    answer: Answer = ANSWER,
) -> int:
    """
    Print agents as entries of a NATS server's list of users; make the streams with --apply.

    Each agent gets a secret, HOME/nats/AGENT.nk, if it has none; the server is told its public
    part only. The entries of several homes belong one after the other into one list. A user can
    publish under its own name only and read what is for it. With --apply the first keeper, or else
    the first user, makes the streams that the server does not have, and says how each of them is;
    those that it has keep their limits. Exit code 1 if one of them lets messages be forged.

    Args:
        url: The server at which --apply makes the streams.
        apply: Make the streams.
        replicas: Servers of a cluster that hold each stream that is made.
        max_bytes: Most bytes of each stream that is made, on the server's disk.
        home: The home folder; default ONCEWARD_HOME, else here.

    """
    from onceward import nats  # noqa: PLC0415 - loads asyncio

    chosen = dict.fromkeys([*(keeper or ()), *(user or ())])
    if not chosen:
        msg = "which agents? Give --user NAME or --keeper NAME"
        raise Usage(msg)
    folder = home_folder(home)
    users = [nats.make_user(folder, each, keeper=each in (keeper or ())) for each in chosen]
    first = users[0].agent
    limits = {"replicas": replicas, "max_bytes": max_bytes}
    before = nats.make_streams(url, folder, first, **limits) if apply else []
    streams = nats.examine(url, folder, first) if apply else []
    text = nats.user_entries(users)
    if answer.json:
        rows = [asdict(each) for each in streams]
        document({"users": [_row(each) for each in users], "entries": text, "streams": rows})
    elif not apply:
        sys.stdout.write(text)
        note(BELONGS)
    for was, each in zip(before, streams, strict=True):
        did = "was made" if was.level == "missing" else "was there"
        note(f"{url} {each.name} {did}: {each.found}{CURES.get(each.level, '')}")
    return FAILED if any(each.level == "unsafe" for each in streams) else DONE


def _row(user: object) -> dict[str, object]:
    return {name: getattr(user, name) for name in ("agent", "public_key", "keeper")}
