"""Find a pool of the home by its name; nothing is pushed to a pool itself."""

from __future__ import annotations

from typing import Final, NoReturn

from onceward.core.contract import Opening
from onceward.core.deliver.transport import Features, TransportContext
from onceward.errors import InvalidArgument, OncewardError, Unreachable
from onceward.features.pools import home
from onceward.features.pools.members import HomeMember
from onceward.file import known_homes
from onceward.message.log import log
from onceward.message.names import quoted
from onceward.message.parcel import Parcel

URL: Final = "pool:"
"""Url of each pool, as a peer of its senders."""


class PoolTransport:
    """The way to a pool: messages wait in the sender's file until a member gets them."""

    features = Features(schemes=frozenset({"pool"}))

    @staticmethod
    def here() -> bool:
        """Return False: no process pushes to a pool."""
        return False

    @staticmethod
    def check(url: str) -> None:
        """Raise InvalidArgument unless a url is that of a pool."""
        if url != URL:
            raise InvalidArgument(f"{quoted(url)}: a pool has the url {URL}; add its members apart")

    def deliver(self, url: str, parcel: Parcel) -> NoReturn:
        """Raise Unreachable."""
        del url
        raise Unreachable(f"{parcel.recipient} is a pool: its members get its messages")

    def close(self) -> None:
        """Hold nothing."""


def transport(_: TransportContext) -> PoolTransport:
    """Return the transport of pools."""
    return PoolTransport()


def find(opening: Opening, name: str) -> str | None:
    """Return the url of a name that an agent of the home serves; else None."""
    return URL if known_members(opening, name) else None


def _has_directory(opening: Opening) -> bool:
    """Return whether the home has a directory that this file may read."""
    return opening.deps.db.vfs is None and opening.home.known


def homes_with_agent(opening: Opening, name: str) -> list[tuple[str, str]]:
    """Return name and url of the known homes that serve an agent of that name."""
    if not _has_directory(opening):
        return []
    return known_homes.serving(opening.home.directory.read, name)


def known_members(opening: Opening, pool: str) -> dict[str, HomeMember] | None:
    """Return the members in this home and in those it knows; None if no directory tells them."""
    if not _has_directory(opening):
        return {}
    try:
        here = home.members(opening.home.directory, pool)
        far = home.far_members(opening.home.directory, pool)
    except OncewardError as error:
        log.failure("debug", "the home tells no members", error, agent=opening.deps.db.agent)
        return None
    path = opening.files.path  # an agent here gets what is sent to its name
    return {name: each for name, each in far.items() if path(name) is None} | here
