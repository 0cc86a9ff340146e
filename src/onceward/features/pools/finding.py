"""Find a pool of the home by its name; nothing is pushed to a pool itself."""

from __future__ import annotations

from typing import NoReturn

from onceward.core.contract import Opening
from onceward.core.deliver.transport import Features, TransportContext
from onceward.errors import InvalidArgument, OncewardError, Unreachable
from onceward.features.pools import home
from onceward.features.pools.members import HomeMember
from onceward.message.log import log
from onceward.message.names import quoted
from onceward.message.parcel import Parcel

URL = "pool:"
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
    return URL if members_at_home(opening, name) else None


def members_at_home(opening: Opening, pool: str) -> dict[str, HomeMember] | None:
    """Return the members of a pool in the home; None if its directory cannot be read."""
    if opening.deps.db.vfs is not None or not opening.home.known:
        return {}
    try:
        return home.members(opening.home.directory, pool)
    except OncewardError as error:
        log.failure("debug", "the home tells no members", error, agent=opening.deps.db.agent)
        return None
