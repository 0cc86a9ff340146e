"""Prepare a NATS server for agents, and examine whether it is prepared."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, TypeVar

from onceward.errors import InvalidArgument, Unreachable
from onceward.message.names import agent_name
from onceward.transports.network import nats_names as names
from onceward.transports.network.nats_keys import create_seed
from onceward.transports.network.nats_link import Address, Credentials, Link

FORGING: Final = (
    "allow_direct", "mirror_direct", "republish", "mirror", "sources", "subject_transform",
)  # fmt: skip
"""Options of a stream that let messages appear under subjects of agents that did not send them."""
FILLING: Final = 0.7
"""Fraction of a stream's bytes from which its state is a warning."""
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class NatsUser:
    """An agent as a user of a NATS server."""

    agent: str
    public_key: str
    keeper: bool
    """Whether it may create the streams."""
    peers: tuple[str, ...] = ()
    """The agents for which it may store messages."""


StreamLevel = Literal["ok", "missing", "differs", "unsafe", "hidden", "filling"]


@dataclass(frozen=True, slots=True)
class NatsStream:
    """A stream at the server."""

    name: str
    level: StreamLevel
    """
    Its state: ``unsafe`` allows forged messages, ``differs`` has other limits, ``hidden`` is
    invisible, ``filling`` has used 70 % of its bytes.
    """
    found: str
    bytes: int = 0
    """Used bytes; 0 unless the stream is visible."""
    max_bytes: int = 0
    """Maximum bytes; 0 if there is none, or the stream is not visible."""


def make_user(
    home: Path, agent: str, *, peers: Iterable[str] = (), keeper: bool = False
) -> NatsUser:
    """
    Return an agent as a user; create its secret in its home if there is none.

    It may store messages at the server for *peers* only; ``"*"`` stands for any name.

    Raises:
        InvalidArgument: a name is invalid, or the existing secret cannot be used.

    """
    chosen = tuple(each if each == names.ANY else agent_name(each) for each in peers)
    return NatsUser(agent, create_seed(home, agent), keeper, chosen)


def user_entries(users: Iterable[NatsUser]) -> str:
    """
    Return the entries of *users* for the list ``users`` of a server, each for its own name only.

    Put the entries of several homes into one list: of two lists, or of two ``authorization``
    blocks, a server uses the last one and ignores the other silently.
    """
    return "".join(
        names.user(each.agent, each.public_key, each.peers, keeper=each.keeper) for each in users
    )


def make_streams(
    url: str,
    home: Path,
    agent: str,
    *,
    replicas: int = 1,
    max_bytes: int = names.STREAM_MAX_BYTES,
) -> list[NatsStream]:
    """
    Create the streams that the server does not have; existing ones keep their limits.

    Return the previous state of all streams. Each may hold *max_bytes* on the server's disk.

    Raises:
        InvalidArgument: the url is invalid, or *replicas* or *max_bytes* is out of range.
        Unreachable: the server is unreachable or has no space, or *agent* may not create them.

    """
    if max_bytes < 1:
        raise InvalidArgument(f"max_bytes must be at least 1, not {max_bytes}")
    if not 1 <= replicas <= names.REPLICAS_MAX:
        raise InvalidArgument(f"replicas must be from 1 to {names.REPLICAS_MAX}, not {replicas}")

    async def make(link: Link) -> list[NatsStream]:
        before = await streams_at(link)
        await link.make_streams(replicas, max_bytes)
        return before

    return _over(url, home, agent, make)


def examine(url: str, home: Path, agent: str) -> list[NatsStream]:
    """
    Return the streams of a server as *agent* sees them.

    Raises:
        InvalidArgument: the url is invalid.
        Unreachable: the server is unreachable, or refuses the agent.

    """
    return _over(url, home, agent, streams_at)


async def streams_at(link: Link) -> list[NatsStream]:
    """Return the streams as the agent of *link* sees them."""
    return [await _examined(link, name) for name in names.STREAMS]


async def _examined(link: Link, name: str) -> NatsStream:
    try:
        told = await link.api(f"STREAM.INFO.{name}", {})
    except Unreachable as error:
        return NatsStream(name, "hidden", str(error))
    if told is None:
        return NatsStream(name, "missing", "there is no such stream")
    return NatsStream(
        name,
        *_level(name, told["config"], told["state"]),
        bytes=int(told["state"]["bytes"]),
        max_bytes=max(0, int(told["config"].get("max_bytes", 0))),
    )


def _level(
    name: str, config: Mapping[str, Any], state: Mapping[str, Any]
) -> tuple[StreamLevel, str]:
    """Return the worst that there is to say about a stream, and what was found."""
    if unsafe := [each for each in FORGING if config.get(each)]:
        return "unsafe", f"has {', '.join(unsafe)}"
    used, limit = int(state["bytes"]), int(config.get("max_bytes", 0))
    said = f"{state['messages']} messages, {used} of {limit} bytes"
    other = _differences(config, names.STREAMS[name])
    # a full stream of answers drops the oldest, which costs a push; one of parcels refuses all
    if config.get("discard") == "new" and 0 < FILLING * limit <= used:
        return "filling", ", ".join([said, *other])
    return ("differs", ", ".join(other)) if other else ("ok", said)


def _differences(config: Mapping[str, Any], wanted: Mapping[str, Any]) -> list[str]:
    """Return the differences of a stream from its definition, except for its limit of bytes."""
    unbounded = [] if config.get("max_bytes", -1) > 0 else ["max_bytes has no limit"]
    return unbounded + [
        f"{key} is {config.get(key)}, not {value}"
        for key, value in wanted.items()
        if key not in {"description", "max_bytes"} and config.get(key) != value
    ]


def _over(url: str, home: Path, agent: str, work: Callable[[Link], Awaitable[T]]) -> T:
    """Run *work* over a separate connection."""
    servers = Address.parse(url).servers

    async def run() -> T:
        link = await Link.open(servers, agent, Credentials(home))
        try:
            return await work(link)
        finally:
            await link.close()

    return asyncio.run(run())
