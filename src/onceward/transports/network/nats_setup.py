"""Prepare a NATS server for agents, and examine whether it is prepared."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, TypeVar

from onceward.errors import InvalidArgument, Unreachable
from onceward.transports.network import nats_names as names
from onceward.transports.network.nats_keys import create_seed
from onceward.transports.network.nats_link import Address, Credentials, Link

FORGING: Final = (
    "allow_direct",
    "mirror_direct",
    "republish",
    "mirror",
    "sources",
    "subject_transform",
)
"""Options of a stream by which messages come under subjects of agents that did not send them."""
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class NatsUser:
    """An agent as a user of a NATS server."""

    agent: str
    public_key: str
    keeper: bool
    """Whether it may make the streams."""


StreamLevel = Literal["ok", "missing", "differs", "unsafe", "hidden"]


@dataclass(frozen=True, slots=True)
class NatsStream:
    """A stream as it is at the server."""

    name: str
    level: StreamLevel
    """
    Whether it is as it should be: ``unsafe`` lets messages be forged, ``differs`` has other
    limits, ``hidden`` is there or not, which this agent may not see.
    """
    found: str


def make_user(home: Path, agent: str, *, keeper: bool = False) -> NatsUser:
    """
    Return an agent as a user; its secret is made in its home if there is none.

    Raises:
        InvalidArgument: the name is none, or the secret that is there cannot be used.

    """
    return NatsUser(agent, create_seed(home, agent), keeper)


def user_entries(users: Iterable[NatsUser]) -> str:
    """
    Return the entries of *users* for the list ``users`` of a server, each as itself only.

    The entries of several homes belong one after the other into one list: of two lists, or of two
    blocks ``authorization``, a server uses the last one and says nothing of the other.
    """
    made = (names.user(each.agent, each.public_key, keeper=each.keeper) for each in users)
    return "".join(made)


def make_streams(
    url: str,
    home: Path,
    agent: str,
    *,
    replicas: int = 1,
    max_bytes: int = names.STREAM_MAX_BYTES,
) -> list[NatsStream]:
    """
    Make the streams that the server does not have; those that it has keep their limits.

    Returns all of them as they were before. Each may hold *max_bytes* on the server's disk.

    Raises:
        InvalidArgument: the url is none, or there are not that many servers, or no bytes.
        Unreachable: the server is away or has no room, or *agent* may not make them.

    """
    if max_bytes < 1:
        msg = f"max_bytes is the most bytes of each stream, at least 1, not {max_bytes}"
        raise InvalidArgument(msg)
    if not 1 <= replicas <= names.REPLICAS_MAX:
        msg = f"replicas is a number from 1 to {names.REPLICAS_MAX}, not {replicas}"
        raise InvalidArgument(msg)

    async def make(link: Link) -> list[NatsStream]:
        before = await _all(link)
        await link.make_streams(replicas, max_bytes)
        return before

    return _over(url, home, agent, make)


def examine(url: str, home: Path, agent: str) -> list[NatsStream]:
    """
    Return the streams of a server as *agent* sees them.

    Raises:
        InvalidArgument: the url is none.
        Unreachable: the server is away, or does not let the agent in.

    """
    return _over(url, home, agent, _all)


async def _all(link: Link) -> list[NatsStream]:
    return [await _examined(link, name) for name in names.STREAMS]


async def _examined(link: Link, name: str) -> NatsStream:
    try:
        told = await link.api(f"STREAM.INFO.{name}", {})
    except Unreachable as error:
        return NatsStream(name, "hidden", str(error))
    if told is None:
        return NatsStream(name, "missing", "there is no such stream")
    config, state = told["config"], told["state"]
    if unsafe := [each for each in FORGING if config.get(each)]:
        return NatsStream(name, "unsafe", f"has {', '.join(unsafe)}")
    if other := _differences(config, names.STREAMS[name]):
        return NatsStream(name, "differs", ", ".join(other))
    return NatsStream(name, "ok", f"{state['messages']} messages, {state['bytes']} bytes")


def _differences(config: Mapping[str, Any], wanted: Mapping[str, Any]) -> list[str]:
    """Return in what a stream is not as it is made; each bound of its bytes is an operator's."""
    unbounded = [] if config.get("max_bytes", -1) > 0 else ["max_bytes has no bound"]
    return unbounded + [
        f"{key} is {config.get(key)}, not {value}"
        for key, value in wanted.items()
        if key not in {"description", "max_bytes"} and config.get(key) != value
    ]


def _over(url: str, home: Path, agent: str, work: Callable[[Link], Awaitable[T]]) -> T:
    """Run *work* over a connection of its own."""
    servers = Address.parse(url).servers

    async def run() -> T:
        link = await Link.open(servers, agent, Credentials(home))
        try:
            return await work(link)
        finally:
            await link.close()

    return asyncio.run(run())
