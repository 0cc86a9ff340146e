"""
Agree with other processes on one value, by objects that each of them alone overwrites.

This is Disk Paxos (Gafni and Lamport, 2000) with one disk. Each process has a vote, an object that
no other process writes. It raises its ballot, reads all other votes, takes over the value that was
cast under the highest ballot, casts it, and reads all other votes again. Where no vote shows a
higher ballot, the value is chosen, and every later ballot finds it. A process may be killed at any
step: no two processes ever learn different values.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from typing import Final, Protocol
from uuid import uuid4

from onceward.fleet.opening import LogTrouble

ROUNDS: Final = 64
LONGEST: Final = 2.0
"""Seconds of the longest pause between two rounds."""
ENDING: Final = ".vote"
LENGTH: Final = 256
"""
Bytes of every vote: a store is asked for the length of an object before its bytes, and the first
bytes of a longer one that was written in between would be half a vote.
"""
Ballot = tuple[int, str]
NONE: Final[Ballot] = (0, "")


class LogContended(LogTrouble):
    """Other processes kept committing to the log of the same file: ship again later."""

    retryable = True


class Register(Protocol):
    """The objects that votes are kept in."""

    def put(self, path: str, data: bytes) -> None:
        """Write an object, replacing an older one."""
        ...

    def get(self, path: str) -> bytes:
        """Return an object; raise FileNotFoundError if there is none."""
        ...

    def names(self, folder: str) -> list[str]:
        """Return the names in a folder."""
        ...


@dataclass(frozen=True, slots=True)
class Vote:
    """The state of one process: its highest ballot, and the value that it cast."""

    ballot: Ballot = NONE
    """The highest ballot that it has begun."""
    cast: Ballot = NONE
    """The ballot under which it cast its value."""
    value: str = ""


def agree(
    register: Register,
    slot: str,
    value: str,
    *,
    pause: Callable[[float], object] = time.sleep,
    voter: str = "",
) -> str:
    """
    Return the chosen value of a slot: *value*, or another process's.

    Raises:
        LogContended: other processes began higher ballots each time.

    """
    own, voter = Vote(), voter or uuid4().hex
    chance = random.Random(voter)  # noqa: S311 - a pause, not a secret
    for turn in range(ROUNDS):
        others = _others(register, slot, voter)
        highest = max((vote.ballot[0] for vote in others), default=0)
        own = replace(own, ballot=(max(highest, own.ballot[0]) + 1, voter))
        own, chosen = _round(register, slot, own, value)
        if chosen:
            return own.value
        pause(chance.random() * min(LONGEST, 0.01 * 2**turn))
    raise LogContended(f"{slot}: other processes keep committing to the same log; ship again later")


def _round(register: Register, slot: str, own: Vote, value: str) -> tuple[Vote, bool]:
    """Try one ballot; return the vote as it stands, and whether its value is chosen."""
    others = _told(register, slot, own)
    if any(vote.ballot > own.ballot for vote in others):
        return own, False
    latest = max([own, *others], key=lambda vote: vote.cast)
    own = replace(own, cast=own.ballot, value=latest.value if latest.cast > NONE else value)
    others = _told(register, slot, own)
    return own, not any(vote.ballot > own.ballot for vote in others)


def _told(register: Register, slot: str, own: Vote) -> list[Vote]:
    """Write the own vote, then read all others: of two processes one sees the other."""
    said = json.dumps(asdict(own)).ljust(LENGTH)
    register.put(f"{slot}/{own.ballot[1]}{ENDING}", said.encode())
    return _others(register, slot, own.ballot[1])


def _others(register: Register, slot: str, voter: str) -> list[Vote]:
    found = []
    for name in register.names(slot):
        if not name.endswith(ENDING) or name == f"{voter}{ENDING}":
            continue
        with suppress(FileNotFoundError):  # removed: the number is long past, and is not asked for
            said = json.loads(register.get(f"{slot}/{name}"))
            found.append(Vote(tuple(said["ballot"]), tuple(said["cast"]), said["value"]))
    return found
