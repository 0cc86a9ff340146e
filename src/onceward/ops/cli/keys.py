"""``onceward keys``: the secrets that a home shares with peers on other machines."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from onceward.keys import Keys
from onceward.ops.cli.command import emit, picked
from onceward.ops.cli.exit_codes import DONE
from onceward.ops.cli.options import Quiet, said
from onceward.ops.cli.output import note
from onceward.ops.cli.stdin import read_stdin
from onceward.ops.cli.target import ANSWER, Answer, home_folder

Peer = Annotated[str, said("The peer's name.")]
Secret = Annotated[
    str, said("The peer's secret, whsec_...; a dash, or no argument, reads it from stdin.")
]
Home = Annotated[Path | None, said("The home folder; default ONCEWARD_HOME, else here.")]
COLUMNS = ("peer", "created_at", "count", "mode_ok", "fingerprint")


def new(peer: Peer, /, *, home: Home = None, answer: Answer = ANSWER) -> int:
    """
    Create the secret that this home shares with a peer, and print it.

    Give it to the peer's operator in private, who adds it with onceward keys add AGENT; AGENT is
    the name of the agent here. It is stored in HOME/keys/PEER, mode 0600.

    Example: onceward keys new bob
    """
    secret = _keys(home).create(peer)
    note(f"give it to the operator of {peer}: onceward keys add AGENT, with the name of your agent")
    return emit({"peer": peer, "secret": secret}, ("secret",), answer)


def add(peer: Peer, given: Secret = "-", /, *, home: Home = None, answer: Answer = ANSWER) -> int:
    """
    Add the secret that a peer's operator created; stdin keeps it out of shell histories.

    The old secret stays valid beside it until onceward keys rotate PEER --finish.

    Example: cat secret.txt | onceward keys add alice

    Example: onceward keys add alice whsec_rqzWWFhWXkyYhsZoIqvBbxXjS8qXPMvk
    """
    _keys(home).add(peer, read_stdin() if given == "-" else given)
    return _row(home, peer, answer)


def ls(*, home: Home = None, answer: Answer = ANSWER) -> int:
    """
    List the keys, without their secrets.

    A count of two means an unfinished rotation; a key whose mode_ok is false is not used. Both
    sides of a pair list the same fingerprint, which does not reveal the secret.

    Columns: peer, created_at, count, mode_ok, fingerprint.

    Example: onceward keys ls --json
    """
    rows = [picked(each, COLUMNS) for each in _keys(home).list()]
    return emit(rows, COLUMNS, answer)


def rotate(
    peer: Peer,
    /,
    *,
    finish: Annotated[bool, Quiet] = False,
    home: Home = None,
    answer: Answer = ANSWER,
) -> int:
    """
    Create a new secret beside the current one and print it; both are valid until --finish.

    Parcels keep flowing: add the new secret at the peer, then finish on both sides.

    Example: onceward keys rotate bob

    Example: onceward keys rotate bob --finish

    Args:
        finish: Delete the old secret.

    """
    keys = _keys(home)
    if finish:
        keys.retire(peer)
        return _row(home, peer, answer)
    secret = keys.rotate(peer)
    note(f"give it to the operator of {peer}, then finish on both sides: keys rotate --finish")
    return emit({"peer": peer, "secret": secret}, ("secret",), answer)


def remove(peer: Peer, /, *, home: Home = None, answer: Answer = ANSWER) -> int:
    """
    Remove the key of a peer; then neither side reaches the other.

    Example: onceward keys remove bob
    """
    _keys(home).remove(peer)
    return emit({"peer": peer, "removed": True}, ("peer",), answer) if answer.json else DONE


def _keys(home: Path | None) -> Keys:
    return Keys(home_folder(home))


def _row(home: Path | None, peer: str, answer: Answer) -> int:
    found = next(each for each in _keys(home).list() if each.peer == peer)
    return emit(picked(found, COLUMNS), COLUMNS, answer)
