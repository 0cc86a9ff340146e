"""``onceward nats``: prepare a NATS server for agents."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Final

from onceward.ops.cli.command import picked
from onceward.ops.cli.exit_codes import DONE, FAILED, Usage
from onceward.ops.cli.options import Quiet, said
from onceward.ops.cli.output import document, note
from onceward.ops.cli.readonly import views
from onceward.ops.cli.target import ANSWER, Answer, home_folder
from onceward.ops.views.lists import peers

CURES: Final = {
    "differs": ": change it with nats stream edit",
    "unsafe": ": senders can be forged until you change it with nats stream edit",
}
"""By level of a stream: what to do about it."""
FIELDS: Final = ("agent", "public_key", "keeper", "peers")
SCHEME: Final = "nats://"
BELONGS: Final = (
    "these entries belong between the brackets of authorization { users: [ ] }, beside all others"
)
NO_PEERS: Final = (
    "has no peer at a NATS server, so it can send nothing there: run this again with --peer NAME, "
    "or after onceward peers add NAME nats://HOST:PORT/NAME"
)
Names = Annotated[list[str] | None, said("An agent; may be repeated.", negative=())]
Peers = Annotated[
    list[str] | None,
    said("A peer of all these agents; '*' for any name; may be repeated.", negative=()),
]
Keepers = Annotated[
    list[str] | None,
    said("An agent that may also create the streams; may be repeated.", negative=()),
]


def setup(
    *,
    user: Names = None,
    keeper: Keepers = None,
    peer: Peers = None,
    url: str = "nats://127.0.0.1:4222",
    apply: Annotated[bool, Quiet] = False,
    replicas: int = 1,
    max_bytes: int = 1 << 30,
    home: Path | None = None,
    answer: Answer = ANSWER,
) -> int:
    """
    Print agents as entries of a NATS server's user list; --apply creates the streams.

    Each agent gets a secret, HOME/nats/AGENT.nk, unless it has one; the server gets only its public
    part. Put the entries of several homes into one list. A user can publish only under its own name
    and read only its own messages. The server stores its messages for its peers only: the peers of
    its file with a url of nats:, the other agents here, and each --peer. With --apply the first
    keeper, or else the first user, creates the missing streams and prints the state of each;
    existing ones keep their limits. Exit code 1 if a stream lets senders be forged.

    Example: onceward nats setup --keeper shop --user billing

    Example: onceward nats setup --keeper shop --url nats://broker:4222 --apply

    Args:
        url: The server on which --apply creates the streams.
        apply: Create the streams.
        replicas: Number of cluster servers that hold each created stream.
        max_bytes: Maximum bytes of each created stream on the server's disk.
        home: The home folder; default ONCEWARD_HOME, else here.

    """
    from onceward import nats  # noqa: PLC0415 - loads asyncio

    chosen = dict.fromkeys([*(keeper or ()), *(user or ())])
    if not chosen:
        raise Usage("which agents? Give --user NAME or --keeper NAME")
    folder = home_folder(home)
    users = [
        nats.make_user(
            folder,
            each,
            peers=_peers(folder / f"{each}.db", each, [*chosen, *(peer or ())]),
            keeper=each in (keeper or ()),
        )
        for each in chosen
    ]
    first = users[0].agent
    limits = {"replicas": replicas, "max_bytes": max_bytes}
    before = nats.make_streams(url, folder, first, **limits) if apply else []
    streams = nats.examine(url, folder, first) if apply else []
    text = nats.user_entries(users)
    if answer.json:
        rows = [asdict(each) for each in streams]
        document(
            {"users": [picked(each, FIELDS) for each in users], "entries": text, "streams": rows}
        )
    elif not apply:
        sys.stdout.write(text)
        note(BELONGS)
        for made in users:
            if not made.peers:
                note(f"{made.agent} {NO_PEERS}")
    for was, each in zip(before, streams, strict=True):
        did = "was made" if was.level == "missing" else "was there"
        note(f"{url} {each.name} {did}: {each.found}{CURES.get(each.level, '')}")
    return FAILED if any(each.level == "unsafe" for each in streams) else DONE


def _peers(path: Path, agent: str, given: Iterable[str]) -> list[str]:
    """Return the peers that an agent reaches at NATS servers, by its file, and the given ones."""
    known = list[str]()
    if path.exists():
        with views(path) as found:
            known = [each.name for each in peers(found) if (each.url or "").startswith(SCHEME)]
    return [each for each in dict.fromkeys([*given, *known]) if each != agent]
