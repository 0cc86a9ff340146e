"""Channels, awaitable: one line for each call."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from typing import Any, Protocol, TypeVar, Unpack

from onceward.api.awaitable import AsyncMessage
from onceward.api.channels import Channel, Channels
from onceward.model.names import DEFAULT_SESSION
from onceward.model.send_options import SendOptions
from onceward.model.vocabulary import ChannelRole, ChannelType, PauseMode
from onceward.runtime.async_bridge import AsyncBridge
from onceward.runtime.fanout import SendResult
from onceward.runtime.message import Message
from onceward.store import queries
from onceward.store.acknowledgments import Acknowledgment
from onceward.store.directory.cache import Member
from onceward.store.directory.channels import ChannelInfo

T = TypeVar("T")


class Wait(Protocol):
    """How the postbox waits for something to be there."""

    def __call__(self, look: Callable[[], T | None], seconds: float | None) -> Awaitable[T | None]:
        """Look until there is something, for so many seconds at most."""
        ...


class AsyncChannel:
    """One channel, as this agent takes part in it; see ``Channel``."""

    def __init__(self, channel: Channel, crossing: AsyncBridge, wait: Wait) -> None:
        self._channel, self._crossing, self._wait = channel, crossing, wait
        self.name, self.session, self.created = channel.name, channel.session, channel.created

    def __repr__(self) -> str:
        """Name the channel, and who takes part in it here."""
        return repr(self._channel)

    async def info(self) -> ChannelInfo:
        """Return the channel as it is now."""
        return await self._crossing.call(self._channel.info)

    async def members(self) -> list[Member]:
        """Return who takes part, in the order of joining."""
        return await self._crossing.call(self._channel.members)

    async def join(self, role: ChannelRole = "member") -> bool:
        """Take part from now on; see ``Channel.join``."""
        return await self._crossing.call(lambda: self._channel.join(role))

    async def add(self, agent: str, role: ChannelRole = "member") -> bool:
        """Let an agent take part; see ``Channel.add``."""
        return await self._crossing.call(lambda: self._channel.add(agent, role))

    async def add_many(self, agents: Iterable[str], role: ChannelRole = "member") -> int:
        """Let many agents take part in one change; see ``Channel.add_many``."""
        return await self._crossing.call(lambda: self._channel.add_many(agents, role))

    async def leave(self) -> bool:
        """Take part no longer; see ``Channel.leave``."""
        return await self._crossing.call(self._channel.leave)

    async def remove(self, agent: str) -> bool:
        """Let an agent take part no longer; see ``Channel.remove``."""
        return await self._crossing.call(lambda: self._channel.remove(agent))

    async def subscribe(self, pattern: str) -> bool:
        """Have what is sent here under *pattern*; see ``Channel.subscribe``."""
        return await self._crossing.call(lambda: self._channel.subscribe(pattern))

    async def unsubscribe(self, pattern: str) -> bool:
        """End a subscription; see ``Channel.unsubscribe``."""
        return await self._crossing.call(lambda: self._channel.unsubscribe(pattern))

    async def pause(self, mode: PauseMode = "hold") -> None:
        """Let what is sent wait, or be refused; see ``Channel.pause``."""
        await self._crossing.call(lambda: self._channel.pause(mode))

    async def resume(self) -> None:
        """Go on; see ``Channel.resume``."""
        await self._crossing.call(self._channel.resume)

    async def drain(self) -> None:
        """Take nothing more; see ``Channel.drain``."""
        await self._crossing.call(self._channel.drain)

    async def close(self) -> None:
        """End the channel; see ``Channel.close``."""
        await self._crossing.call(self._channel.close)

    async def delete(self) -> None:
        """Forget a closed channel; see ``Channel.delete``."""
        await self._crossing.call(self._channel.delete)

    async def send(
        self, body: object, *, kind: str = "text", **options: Unpack[SendOptions]
    ) -> SendResult:
        """Send to all who are to have it; see ``Channel.send``."""
        return await self._crossing.call(lambda: self._channel.send(body, kind=kind, **options))

    async def respond(
        self,
        message: Message[Any] | AsyncMessage[Any],
        body: object,
        **options: Unpack[SendOptions],
    ) -> SendResult:
        """Answer a query of this channel; see ``Channel.respond``."""
        return await self._crossing.call(
            lambda: self._channel.respond(_plain(message), body, **options)
        )

    async def acknowledge(
        self,
        message: Message[Any] | AsyncMessage[Any],
        status: str = "completed",
        detail: str | None = None,
    ) -> str:
        """Say how far this agent has come with a message; see ``Channel.acknowledge``."""
        return await self._crossing.call(
            lambda: self._channel.acknowledge(_plain(message), status, detail)
        )

    async def detach(self, message: Message[Any] | AsyncMessage[Any]) -> str:
        """Keep a message leased after this process; see ``Channel.detach``."""
        return await self._crossing.call(lambda: self._channel.detach(_plain(message)))

    async def attach(self, handle: str, type: Any = None) -> AsyncMessage[Any]:
        """Return a message that was handed over; see ``Channel.attach``."""
        return AsyncMessage(
            await self._crossing.call(lambda: self._channel.attach(handle, type)), self._crossing
        )

    async def acknowledgments(self, message_id: str) -> list[Acknowledgment]:
        """Return how far its recipients have come with a message of ours; see ``Channel.acknowledgments``."""
        return await self._crossing.call(lambda: self._channel.acknowledgments(message_id))

    async def receive(
        self,
        type: Any = None,
        timeout: float = 0.0,
        *,
        topics: str | Iterable[str] | None = None,
    ) -> AsyncMessage[Any] | None:
        """Lease this agent's next message of the channel; see ``Channel.receive``."""
        found = await self._wait(lambda: self._channel.receive(type, topics=topics), timeout)
        return None if found is None else AsyncMessage(found, self._crossing)

    async def messages(
        self,
        type: Any = None,
        timeout: float | None = None,
    ) -> AsyncIterator[AsyncMessage[Any]]:
        """Yield messages as they come; see ``Channel.messages``."""
        while (found := await self._wait(lambda: self._channel.receive(type), timeout)) is not None:
            yield AsyncMessage(found, self._crossing)

    async def history(self, **filters: Any) -> queries.Page:
        """Return past messages of the channel, newest first; see ``Channel.history``."""
        return await self._crossing.call(lambda: self._channel.history(**filters))


class AsyncChannels:
    """The channels of the home; see ``Channels``."""

    def __init__(self, channels: Channels, crossing: AsyncBridge, wait: Wait) -> None:
        self._channels, self._crossing, self._wait = channels, crossing, wait

    async def create(
        self,
        name: str,
        type: ChannelType = "group",
        *,
        description: str = "",
        **config: Any,
    ) -> AsyncChannel:
        """Make a channel that this agent owns; see ``Channels.create``."""
        return self._made(
            await self._crossing.call(
                lambda: self._channels.create(name, type, description=description, **config)
            )
        )

    async def ensure(
        self,
        name: str,
        type: ChannelType = "group",
        *,
        description: str = "",
        **config: Any,
    ) -> AsyncChannel:
        """Make a channel, or take the one that is there as it is; see ``Channels.ensure``."""
        return self._made(
            await self._crossing.call(
                lambda: self._channels.ensure(name, type, description=description, **config)
            )
        )

    async def get(self, name: str, *, session: str = DEFAULT_SESSION) -> AsyncChannel:
        """Return a channel, sending in *session*; see ``Channels.get``."""
        return self._made(
            await self._crossing.call(lambda: self._channels.get(name, session=session))
        )

    async def list(self) -> list[ChannelInfo]:
        """Return all channels by name."""
        return await self._crossing.call(self._channels.list)

    def _made(self, channel: Channel) -> AsyncChannel:
        return AsyncChannel(channel, self._crossing, self._wait)


def _plain(message: Message[Any] | AsyncMessage[Any]) -> Message[Any]:
    return message.plain if isinstance(message, AsyncMessage) else message
