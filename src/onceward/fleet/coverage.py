"""Find the files that cover an agent's messages, and how far their records are complete."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, NamedTuple, Self

from onceward.fleet.evidence import number_of
from onceward.message.clock import Millis
from onceward.message.ids import moment_of, time_prefix

OpenVerdict = Literal["no_sender_row", "no_recipient_row"]
"""The question for a message without a row on one side: pruned, or never there?"""
READ: Final = "read"
ALWAYS: Final = 2**62
"""A moment after all others."""


@dataclass(frozen=True, slots=True)
class Reading:
    """Facts of one file: whether it was read, and how far back its records go."""

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
    pools: Sequence[str] = ()
    """The pools to which the agent sends."""
    upto_at: Millis = ALWAYS
    """The file's own time up to which it is known; a log may be behind its file."""

    @classmethod
    def of(cls, path: str, told: str) -> Self:
        """Return the reading of a file from its facts as JSON."""
        known: dict[str, Any] = json.loads(told)
        return cls(
            path,
            READ,
            agent=known["agent"],
            file=number_of(known["file_id"]),
            pruned_at=known["pruned_at"],
            streams={name: (epoch, horizon) for name, (epoch, horizon) in known["streams"].items()},
            peers=known["peers"],
            pools=tuple(known.get("pools", ())),
            upto_at=known.get("upto_at", ALWAYS),
        )


class Coverage(NamedTuple):
    """The range in which the files of one end would have rows of another file's messages."""

    known: int
    """Whether a file of the missing side was read: 1 or 0."""
    horizon_id: str = ""
    """Dedup records of ids up to this one may have been pruned."""
    pruned_id: str = ""
    """The outbox may have been pruned of ids below this one."""
    pruned_at: Millis = 0
    upto_at: Millis = ALWAYS
    """The files that were read have no later events."""
    horizon_at: Millis = 0
    """The moment of the horizon id: dedup records of keys used until then may have been pruned."""


class CoverageIndex:
    """
    The files of a fleet, by agent and by file id.

    A name may belong to several files: of two tenants, or of a recreated agent. Sender and
    recipient share the epoch of their stream, which identifies the file.
    """

    def __init__(self, readings: Iterable[Reading]) -> None:
        self._files: defaultdict[str, set[int]] = defaultdict(set)
        self._copies: defaultdict[int, list[Reading]] = defaultdict(list)
        for one in readings:
            if one.state == READ:
                self._files[one.agent].add(one.file)
                self._copies[one.file].append(one)

    def coverage(self, verdict: OpenVerdict, sender: str, recipient: str, file: int) -> Coverage:
        """
        Return the coverage of *file*'s messages at the end without a row of them.

        Number 0 means an unknown file.
        """
        end = recipient if verdict == "no_recipient_row" else sender
        others = self._not_taken(file, self._files[end], sender, recipient)
        known, upto = int(bool(others)), self._upto(others)
        if verdict == "no_recipient_row":
            horizon = max((self._horizon(one, sender) for one in others), default="")
            return Coverage(known, horizon, upto_at=upto, horizon_at=moment_of(horizon))
        pruned = max(
            (copy.pruned_at or 0 for one in others for copy in self._copies[one]), default=0
        )
        prefix = time_prefix(pruned) if pruned else ""
        return Coverage(known, pruned_id=prefix, pruned_at=pruned, upto_at=upto)

    @property
    def twins(self) -> bool:
        """Whether a name belongs to several files."""
        return any(len(files) > 1 for files in self._files.values())

    def owners(self, sender: str, recipient: str) -> dict[int, int]:
        """
        Return by file of two agents the file of the sender whose messages it knows.

        Empty unless both names belong to several files, and their streams identify the pairs with
        certainty.
        """
        senders, takers = self._files[sender], self._files[recipient]
        if len(senders) < 2 or len(takers) < 2:  # noqa: PLR2004 - one file each: no doubt
            return {}
        owners = {one: one for one in senders}
        if sender == recipient:
            return owners
        partners = {one: self._partners(one, sender, recipient) for one in takers}
        met = set[int]().union(*partners.values())
        if max(map(len, partners.values())) > 1 or (senders - met and not all(partners.values())):
            return {}
        return owners | {one: next(iter(found), one) for one, found in partners.items()}

    def _upto(self, files: Iterable[int]) -> Millis:
        """Return the moment up to which all of the files are known."""
        reached = (max(copy.upto_at for copy in self._copies[one]) for one in files)
        return min(reached, default=ALWAYS)

    def _horizon(self, file: int, sender: str) -> str:
        return max(copy.streams.get(sender, ("", ""))[1] for copy in self._copies[file])

    def _not_taken(self, file: int, others: set[int], sender: str, recipient: str) -> set[int]:
        """Return those of *others* that share a stream with *file*, otherwise those without any."""
        if not file:
            return others
        if sender == recipient:
            return others & {file}
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
