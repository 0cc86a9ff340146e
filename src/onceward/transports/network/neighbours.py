"""Connect homes: show our key, add and remove others, rotate, and exchange lists of agents."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from onceward.core.deliver.transport import TransportContext
from onceward.errors import InvalidArgument, UnknownKey, Unreachable, WrongHome
from onceward.file import known_homes
from onceward.file.environment import load_settings
from onceward.file.known_homes import HomeAgent, KnownHome
from onceward.message.clock import Millis, SystemClock, monotonic
from onceward.message.names import AGENT, POLL, agent_name
from onceward.message.settings import Settings
from onceward.transports.network.homes import OF_HOME, HomeKeys
from onceward.transports.network.http import HttpTransport
from onceward.transports.network.identity import (
    KEY_BYTES,
    IdentityFile,
    OwnKey,
    check_fingerprint,
    decoded,
    fingerprint_of,
)

ANSWER_MAX: Final = 64 << 10


@dataclass(frozen=True, slots=True)
class OwnHome:
    """The key of this home, without its secret part."""

    fingerprint: str
    """The operator of another home gives it to ``onceward homes add``."""
    created_at: Millis


@dataclass(frozen=True, slots=True)
class HomePing:
    """The signed answer of a home."""

    name: str
    url: str
    took: float
    """Seconds from the question to the answer."""
    clock_ahead: Millis
    """Milliseconds by which its clock is ahead of ours, to the second."""
    agents: int
    """Number of agents that it serves."""


class Homes:
    """
    The key of a home, and the other homes that it exchanges messages with.

    Each of two homes adds the other one by url and fingerprint. Then all their agents reach each
    other by name, without a peer or a key of their own.
    """

    def __init__(self, home: Path, settings: Settings | None = None) -> None:
        if not home.is_dir():
            raise InvalidArgument(
                f"there is no folder {home}: create the home, or correct its name"
            )
        self._settings = settings or load_settings(None, {})
        self._context = TransportContext(
            agent=OF_HOME, folder=home, settings=self._settings, clock=SystemClock()
        )
        self._identity = IdentityFile(home)

    def show(self) -> OwnHome:
        """
        Return the fingerprint of this home; create its key if it has none.

        Raises:
            UnsafeKey: others can read the key, or it is damaged.
            MissingExtra: ``onceward[homes]`` is not installed.

        """
        return _shown(self._identity.create())

    def add(self, url: str, fingerprint: str, name: str = "") -> KnownHome:
        """
        Exchange messages with the home at *url*, once its key has that fingerprint.

        A home that cannot be called has the url ``poll:``; its first request shows its key. The
        default *name* is host and port. Adding the same again changes nothing.

        Raises:
            InvalidArgument: name, url or fingerprint is invalid, or belongs to another known home.
            WrongHome: the key there is another one.
            Unreachable: no home answered at the url.

        """
        url, mark = url.rstrip("/"), check_fingerprint(fingerprint)
        if mark == self._identity.create().fingerprint:
            raise InvalidArgument("this is the fingerprint of this home: give the other one's")
        if url != POLL:
            with self._transport() as transport:
                transport.check(url)
                _compare(url, mark, _marks(transport, url))
        with self._keys() as keys:
            return known_homes.add(keys.directory, agent_name(name or _name(url)), url, mark)

    def ping(self, name: str) -> HomePing:
        """
        Exchange lists of agents with a known home now.

        Raises:
            UnknownKey: no home of that name is known.
            Unreachable: it cannot be called, did not answer, or does not know this home; says what
                to check.

        """
        home = self._named(name)
        if home.url == POLL:
            raise Unreachable(f"the home {name} cannot be called: it tells its agents as it polls")
        began = monotonic()
        with self._transport() as transport:
            try:
                ahead = transport.telling.exchange(home.url)
            except Unreachable:
                _compare(home.url, self._named(name).fingerprint, _marks(transport, home.url))
                raise
        took = monotonic() - began
        return HomePing(name, home.url, took, ahead, self._named(name).agents)

    def agents(self) -> list[HomeAgent]:
        """Return the agents of the known homes, as these have told them."""
        with self._keys() as keys:
            return known_homes.agents(keys.directory.read)

    def list(self) -> list[KnownHome]:
        """Return the known homes by name."""
        with self._keys() as keys:
            return known_homes.all_homes(keys.directory.read)

    def remove(self, name: str) -> None:
        """
        Remove a home: its next request is refused, and messages for its agents wait.

        Raises:
            UnknownKey: no home of that name is known.

        """
        with self._keys() as keys:
            if not known_homes.remove(keys.directory, name):
                raise _unknown(name)

    def rotate(self) -> OwnHome:
        """
        Replace the key of this home by a new one; known homes follow with the next exchange.

        The old key signs the new one, so no message waits for it. A home that misses eight
        rotations must be added again.

        Raises:
            UnknownKey: this home has no key.

        """
        return _shown(self._identity.rotate())

    def _keys(self) -> HomeKeys:
        return HomeKeys(self._context.folder, settings=self._settings)

    def _named(self, name: str) -> KnownHome:
        with self._keys() as keys:
            found = known_homes.named(keys.directory.read, name)
        if found is None:
            raise _unknown(name)
        return found

    @contextmanager
    def _transport(self) -> Iterator[HttpTransport]:
        made = HttpTransport(self._context)
        try:
            yield made
        finally:
            made.close()


def _shown(own: OwnKey) -> OwnHome:
    return OwnHome(own.fingerprint, own.created_at)


def _unknown(name: str) -> UnknownKey:
    return UnknownKey(f"no home {name!r} is known here: see onceward homes ls", peer=name)


def _name(url: str) -> str:
    """Return the default name of the home at a url."""
    place = urlsplit(url)
    name = "-".join(filter(None, (place.hostname or "", str(place.port or ""))))
    if AGENT.fullmatch(name) is None:
        raise InvalidArgument(f"which name shall the home at {url} have? Give --name NAME")
    return name


def _marks(transport: HttpTransport, url: str) -> list[str]:
    """Return the fingerprints of the homes that are served at a url."""
    reply = transport.exchange("GET", f"{url}/v1/home", {}, b"", limit=ANSWER_MAX)
    try:
        told: Any = json.loads(reply.body) if reply.status == HTTPStatus.OK else {}
        keys = [decoded(str(each["key"]), KEY_BYTES) for each in told.get("homes", ())]
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        keys = []
    return [fingerprint_of(key) for key in keys if key is not None]


def _compare(url: str, mark: str, found: list[str]) -> None:
    if not found:
        cure = "run onceward homes show there, and serve its agents at this url"
        raise Unreachable(f"no home with a key answers at {url}: {cure}")
    if mark not in found:
        shown = " or ".join(found)
        raise WrongHome(
            f"the home at {url} has the fingerprint {shown}, not {mark}: ask its operator for that "
            "of onceward homes show; if they differ, another machine answers at this url"
        )


__all__ = ["HomeAgent", "HomePing", "Homes", "KnownHome", "OwnHome"]
