"""Know which file answers for an agent, and up to where each file's records are complete."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, Self

from onceward.fleet.evidence import number_of
from onceward.model.clock import Millis
from onceward.model.ids import time_prefix

Question = Literal["unsent", "unseen"]
"""``unsent``: has its sender a record of the message? ``unseen``: has its recipient?"""
READ: Final = "read"


@dataclass(frozen=True, slots=True)
class Reading:
    """Facts of one file: whether it was read, and if so, how far back its records go."""

    path: str
    state: str
    """``read``, or the reason why the file was not."""
    detail: str = ""
    agent: str = ""
    file: int = 0
    """Number of its file id: copies of a file have the same."""
    pruned_at: Millis | None = None
    streams: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    """By sender: epoch of its stream, and the id up to which its dedup records may be gone."""
    peers: Mapping[str, str] = field(default_factory=dict)
    """By recipient: epoch of the stream to it."""

    @classmethod
    def of(cls, path: str, told: str) -> Self:
        """Return the reading of a file from the JSON that it tells of itself."""
        known: dict[str, Any] = json.loads(told)
        return cls(
            path,
            READ,
            agent=known["agent"],
            file=number_of(known["file_id"]),
            pruned_at=known["pruned_at"],
            streams={name: (epoch, horizon) for name, (epoch, horizon) in known["streams"].items()},
            peers=known["peers"],
        )


@dataclass(frozen=True, slots=True)
class Witness:
    """The answer of the files of one agent to one file's questions about a sender or recipient."""

    question: Question
    sender: str
    recipient: str
    file: int
    """The asking file; 0 where it is not known."""
    known: int
    """Whether a file of the asked agent was read: 1 or 0."""
    horizon_id: str = ""
    """Dedup records of ids up to this one may have been pruned."""
    pruned_id: str = ""
    """The outbox may have been pruned of ids below this one."""
    pruned_at: Millis = 0


class Witnesses:
    """
    The files of a fleet, by agent and by file id.

    A name may belong to several files: of two tenants, or of an agent that
    was begun anew. Sender and recipient have the epoch of their stream in
    common, which tells whose file is meant.
    """

    def __init__(self, readings: Iterable[Reading]) -> None:
        self._files: defaultdict[str, set[int]] = defaultdict(set)
        self._copies: defaultdict[int, list[Reading]] = defaultdict(list)
        for one in readings:
            if one.state == READ:
                self._files[one.agent].add(one.file)
                self._copies[one.file].append(one)

    def answer(self, question: Question, sender: str, recipient: str, file: int) -> Witness:
        """Return what the agent that is asked can prove to the file that asks."""
        if question == "unseen":
            asked = self._not_taken(file, self._files[recipient], sender, recipient)
            horizon = max((self._horizon(one, sender) for one in asked), default="")
            return Witness(question, sender, recipient, file, int(bool(asked)), horizon)
        asked = self._not_taken(file, self._files[sender], sender, recipient)
        pruned = max(
            (copy.pruned_at or 0 for one in asked for copy in self._copies[one]), default=0
        )
        prefix = time_prefix(pruned) if pruned else ""
        return Witness(question, sender, recipient, file, int(bool(asked)), "", prefix, pruned)

    def _horizon(self, file: int, sender: str) -> str:
        return max(copy.streams.get(sender, ("", ""))[1] for copy in self._copies[file])

    def _not_taken(self, file: int, others: set[int], sender: str, recipient: str) -> set[int]:
        """Return those of *others* that share a stream with *file*, else those that share none."""
        if not file:
            return others
        if len(others) < 2 and len(self._files[sender]) < 2 and len(self._files[recipient]) < 2:  # noqa: PLR2004 - one file each: no doubt
            return others
        partners = {one: self._partners(one, sender, recipient) for one in others}
        mine = {one for one, found in partners.items() if file in found}
        return mine or {one for one, found in partners.items() if not found - {file}}

    def _partners(self, file: int, sender: str, recipient: str) -> set[int]:
        """Return the files at the other end of the stream from sender to recipient."""
        mine = self._epochs(file, sender, recipient)
        others = self._files[sender] | self._files[recipient]
        return {one for one in others - {file} if mine & self._epochs(one, sender, recipient)}

    def _epochs(self, file: int, sender: str, recipient: str) -> set[str]:
        """Return the epochs under which a file, and its copies, know the stream."""
        found: set[str] = set()
        for copy in self._copies[file]:
            if copy.agent == sender:
                found.add(copy.peers.get(recipient, ""))
            if copy.agent == recipient:
                found.add(copy.streams.get(sender, ("", ""))[0])
        return found - {""}
