"""
Recognise other homes by their keys, and know which agents they serve.

A request names the key that signed it, and the home that it is for; both are signed, so no home can
pass it on to another one. The key must be that of a known home, whose list of agents must contain
the sender.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import to_json

from onceward.errors import InvalidParcel, StoreClosed
from onceward.file import forks, known_homes
from onceward.file.directory import DirectoryDatabase, directory_path
from onceward.file.known_homes import KnownHome
from onceward.message.clock import Clock, SystemClock
from onceward.message.names import AGENT, DIRECTORY
from onceward.message.settings import Settings
from onceward.message.validators import parsed
from onceward.transports.network.identity import (
    KEY_BYTES,
    SIGNATURE_BYTES,
    IdentityFile,
    OwnKey,
    decoded,
    encoded,
    fingerprint_of,
    former_of,
    verified,
)

HOME: Final = "onceward-home"
"""Header with the public key of the home that signed."""
FOR: Final = "onceward-for-home"
"""Header with the fingerprint of the home that a request is for."""
FORMER: Final = "onceward-former-homes"
"""Header with the former keys of the home that signed, each with its signature of the next one."""
VERSION_1: Final = "v1a,"
"""Begins a signature by Ed25519, as in Standard Webhooks."""
OF_AGENTS: Final = "agents"
"""The verb by which homes tell their agents."""
OF_HOME: Final = "home"
"""Stands for an agent in exchanges between homes."""
AGENTS_MAX: Final = 10_000
LIST_MAX: Final = 8 << 20
"""Maximum bytes of a list of agents."""
TYPES_MAX: Final = 200
POOLS_MAX: Final = 200


class _Agent(BaseModel):
    model_config = ConfigDict(strict=True, extra="ignore")

    name: Annotated[str, Field(max_length=128, pattern=f"^{AGENT.pattern}$")]
    description: Annotated[str, Field(max_length=2000)]
    accepts: Annotated[list[Annotated[str, Field(max_length=256)]], Field(max_length=TYPES_MAX)]
    pools: Annotated[
        dict[
            Annotated[str, Field(max_length=128, pattern=f"^{AGENT.pattern}$")],
            Annotated[int, Field(ge=0, lt=2**31)],
        ],
        Field(max_length=POOLS_MAX),
    ] = {}


class _Listed(BaseModel):
    model_config = ConfigDict(strict=True, extra="ignore")

    agents: Annotated[list[_Agent], Field(max_length=AGENTS_MAX)]


def decode_agents(body: bytes) -> list[dict[str, Any]]:
    """Return the agents that a home tells; raise InvalidParcel for another form."""
    try:
        return [each.model_dump() for each in parsed(_Listed, body).agents]
    except (ValidationError, RecursionError) as error:
        raise InvalidParcel(f"not a list of agents: {str(error)[:200]}") from error


def encode_agents(agents: Sequence[Mapping[str, Any]]) -> bytes:
    """Return a list of agents as bytes that ``decode_agents`` reads back."""
    told = [
        {
            "name": each["name"],
            "description": each["description"][:2000],
            "accepts": [name for name in each["accepts"] if len(name) <= 256][:TYPES_MAX],  # noqa: PLR2004
            "pools": dict(sorted(each["pools"].items())[:POOLS_MAX]),
        }
        for each in agents[:AGENTS_MAX]
    ]
    return to_json({"agents": told})


@dataclass(frozen=True, slots=True)
class KeyClaim:
    """The keys that a request or an answer names, not verified yet."""

    public: bytes
    former: str
    recipient: str

    @classmethod
    def read(cls, headers: Mapping[str, str]) -> Self | None:
        """Return the claim of a request or an answer; None if no home signed it."""
        public = decoded(headers.get(HOME, ""), KEY_BYTES)
        former, recipient = headers.get(FORMER, ""), headers.get(FOR, "")
        return None if public is None else cls(public, former, recipient)


@dataclass(frozen=True, slots=True)
class HomePair:
    """The key pair of this home and the public key of another, for one exchange."""

    own: OwnKey
    other: bytes
    """Its public key; empty for a request before its first answer."""
    theirs: str
    """Its fingerprint."""
    ours: str
    """Our fingerprint as the other home knows it."""
    answering: bool
    """Whether the other home asks and this one answers."""

    def sign(self, text: bytes) -> str:
        """Return our signature of *text* for the other home."""
        purpose = "answer" if self.answering else "request"
        ours = self.own.fingerprint
        return VERSION_1 + encoded(self.own.sign(_text(purpose, ours, self.theirs, text)))

    def verify(self, text: bytes, signature: str) -> bool:
        """Return whether the other home signed *text* for this one."""
        purpose = "request" if self.answering else "answer"
        found = decoded(signature.removeprefix(VERSION_1), SIGNATURE_BYTES)
        if found is None or not self.other:
            return False
        return verified(self.other, found, _text(purpose, self.theirs, self.ours, text))

    def headers(self) -> dict[str, str]:
        """Return the headers that name the keys of what we sign."""
        found = {HOME: encoded(self.own.public)}
        if not self.answering:
            found[FOR] = self.theirs
        return found | ({FORMER: self.own.chain()} if self.own.former else {})


def _text(purpose: str, sender: str, recipient: str, text: bytes) -> bytes:
    return f"onceward-home {purpose} {sender} {recipient}\n".encode() + text


class HomeKeys:
    """
    The key of a home and its known homes, for transports and endpoints.

    A home without a key opens no directory: an exchange by a shared secret costs nothing more.
    """

    def __init__(
        self, folder: Path, *, settings: Settings | None = None, clock: Clock | None = None
    ) -> None:
        self.folder = folder
        self.identity = IdentityFile(folder)
        self._settings, self._clock = settings or Settings(), clock or SystemClock()
        self._lock = forks.new_lock()
        self._open: DirectoryDatabase | None = None
        self._closed = False

    @property
    def directory(self) -> DirectoryDatabase:
        """The directory of the home, opened or created on first use."""
        with self._lock:
            if self._closed:
                raise StoreClosed("the transport was closed")
            if self._open is None:
                path = directory_path(self.folder / DIRECTORY)
                self._open = DirectoryDatabase.open(
                    path, settings=self._settings, clock=self._clock
                )
            return self._open

    def close(self) -> None:
        """Close the directory for good. Safe to call twice."""
        with self._lock:
            opened, self._open, self._closed = self._open, None, True
        if opened is not None:
            opened.close()

    def __enter__(self) -> Self:
        """Open nothing yet."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the directory."""
        self.close()

    # -- requests that we make --------------------------------------------------------------

    def asking(self, url: str) -> HomePair | None:
        """Return what signs a request to the home at *url*; None if it or our key is unknown."""
        own = self.identity.load()
        home = None if own is None else known_homes.at_url(self.directory.read, url)
        return None if own is None or home is None else self.asking_home(own, home.fingerprint)

    @staticmethod
    def asking_home(own: OwnKey, fingerprint: str) -> HomePair:
        """Return what signs a request to the home with a fingerprint."""
        return HomePair(own, b"", fingerprint, own.fingerprint, answering=False)

    def answered(self, asked: HomePair, claim: KeyClaim | None) -> HomePair | None:
        """
        Return what verifies the answer to a request; None if another home signed it.

        An answer with the next key of that home, signed by the known one, moves it to that key once
        ``learn`` is called with the verified answer.
        """
        if claim is None:
            return None
        names = [claim.public, *former_of(claim.public, claim.former)]
        if asked.theirs not in map(fingerprint_of, names):
            return None
        theirs = fingerprint_of(claim.public)
        return HomePair(asked.own, claim.public, theirs, asked.ours, answering=False)

    # -- requests that we answer ------------------------------------------------------------

    def claimed(self, claim: KeyClaim) -> HomePair | None:
        """Return what verifies a request, by the key that it names; None if it is not for us."""
        own = self.identity.load()
        if own is None or not own.known_as(claim.recipient):
            return None
        theirs = fingerprint_of(claim.public)
        return HomePair(own, claim.public, theirs, claim.recipient, answering=True)

    def proved(self, claim: KeyClaim) -> KnownHome | None:
        """Return the known home whose key a verified request names; follow its rotations."""
        new, now, read = fingerprint_of(claim.public), self._clock.now(), self.directory.read
        found = known_homes.proved(read, new, now)
        if found is not None:
            return found
        for old in former_of(claim.public, claim.former):
            if self.learn(fingerprint_of(old), new):
                return known_homes.proved(read, new, now)
        return None

    def learn(self, old: str, new: str) -> bool:
        """Move the home with the fingerprint *old* to its next key; return whether it is known."""
        return old != new and known_homes.rotate(self.directory, old, new)

    def may_use(self, home: KnownHome, agent: str) -> str:
        """Return why a home may not send as *agent*; empty if it may."""
        claims = [name for name, _ in known_homes.serving(self.directory.read, agent)]
        if home.name not in claims:
            return f"name: the home {home.name} has not told that it serves this agent"
        if (self.folder / f"{agent}.db").exists():
            return f"name: this home has an agent of that name, and so has the home {home.name}"
        if claims[0] != home.name:
            return f"name: the homes {claims[0]} and {home.name} both serve an agent of that name"
        return ""

    # -- lists of agents --------------------------------------------------------------------

    def own_agents(self) -> bytes:
        """Return the agents that this home serves, as it tells them to known homes."""
        files = {name[:-3] for name in os.listdir(self.folder) if name.endswith(".db")}  # noqa: PTH208
        files.discard(Path(DIRECTORY).stem)
        return encode_agents(known_homes.own_agents(self.directory, files))

    def told(self, home: KnownHome, body: bytes) -> bool:
        """Store the agents that a home tells; raise InvalidParcel for another form."""
        return known_homes.tell(self.directory, home, decode_agents(body))
