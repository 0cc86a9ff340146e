"""The async versions of channels."""

from __future__ import annotations

from collections.abc import AsyncIterator

from typing_extensions import TypeForm

from onceward.core.handle.bridge import FileBridge
from onceward.core.handle.message import AsyncMessage
from onceward.core.run.async_face import AsyncFace, awaitable, awaitable_as
from onceward.features.channels.api import Channel, Channels, Topics
from onceward.message.body import Body
from onceward.message.times import Span


class AsyncChannel(AsyncFace[Channel]):
    """One channel, as this agent takes part in it; see ``Channel``."""

    def __init__(self, channel: Channel, bridge: FileBridge) -> None:
        super().__init__(channel, bridge)
        self._bridge = bridge
        self.name = channel.name
        """Name of the channel."""
        self.session = channel.session
        """Conversation in which messages are sent."""
        self.created = channel.created
        """Whether the call that returned this made the channel."""

    info = awaitable(Channel.info)
    members = awaitable(Channel.members)
    join = awaitable(Channel.join)
    add = awaitable(Channel.add)
    add_many = awaitable(Channel.add_many)
    leave = awaitable(Channel.leave)
    remove = awaitable(Channel.remove)
    subscribe = awaitable(Channel.subscribe)
    unsubscribe = awaitable(Channel.unsubscribe)
    pause = awaitable(Channel.pause)
    resume = awaitable(Channel.resume)
    drain = awaitable(Channel.drain)
    close = awaitable(Channel.close)
    send = awaitable(Channel.send)
    respond = awaitable(Channel.respond)
    acknowledge = awaitable(Channel.acknowledge)
    acknowledgments = awaitable(Channel.acknowledgments)
    detach = awaitable(Channel.detach)
    history = awaitable(Channel.history)

    async def attach(
        self, handle: str, type: TypeForm[Body] | str | None = None
    ) -> AsyncMessage[Body]:
        """Return a message that was detached; see ``Channel.attach``."""
        found = await self._bridge.call(lambda: self._plain.attach(handle, type))
        return AsyncMessage(found, self._bridge)

    async def receive(
        self,
        type: TypeForm[Body] | str | None = None,
        timeout: Span = 0.0,
        *,
        topics: Topics = None,
    ) -> AsyncMessage[Body] | None:
        """Lease this agent's next message of the channel; see ``Channel.receive``."""
        return await self._bridge.receive(lambda: self._plain.receive(type, topics=topics), timeout)

    async def receive_each(
        self, type: TypeForm[Body] | str | None = None, timeout: Span | None = None
    ) -> AsyncIterator[AsyncMessage[Body]]:
        """Yield messages as they come; see ``Channel.receive_each``."""
        while found := await self._bridge.receive(lambda: self._plain.receive(type), timeout):
            yield found


class AsyncChannels(AsyncFace[Channels]):
    """The channels of the home; see ``Channels``."""

    create = awaitable_as(AsyncChannel, Channels.create)
    ensure = awaitable_as(AsyncChannel, Channels.ensure)
    get = awaitable_as(AsyncChannel, Channels.get)
    delete = awaitable(Channels.delete)
    list = awaitable(Channels.list)
