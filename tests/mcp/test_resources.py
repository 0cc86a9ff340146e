"""Resources, and the notification when a message comes."""

from __future__ import annotations

import json
from typing import Any

import anyio
import pytest
from mcp.shared.exceptions import MCPError
from mcp.shared.subscriptions import ResourceUpdated
from mcp_types import ResourceUpdatedNotification
from tests.mcp.conftest import Serve, call

from onceward import Postbox

INBOX = "onceward://inbox"


def test_the_inbox_and_threads_are_resources(serve: Serve, bob: Postbox) -> None:
    """They hold what check_inbox and conversation return; an unknown thread is none."""
    sent = bob.send("alice", "x")
    bob.flush()

    async def main() -> Any:
        async with serve() as client:
            inbox = await client.read_resource(INBOX)
            thread = await client.read_resource(f"onceward://threads/{sent}")
            with pytest.raises(MCPError, match="no message 0199"):
                await client.read_resource("onceward://threads/0199")
            return [json.loads(getattr(each.contents[0], "text")) for each in (inbox, thread)]  # noqa: B009

    inbox, thread = anyio.run(main)

    assert [[sent], [sent]] == [
        [each["message_id"] for each in found["messages"]] for found in (inbox, thread)
    ]


def test_a_listening_client_is_told_of_a_message(serve: Serve, bob: Postbox) -> None:
    """The inbox changed, and so did the thread of the message."""

    async def main() -> Any:
        async with serve() as client, client.listen(resource_subscriptions=[INBOX]) as heard:
            bob.send("alice", "x")
            with anyio.fail_after(60):
                return await anext(aiter(heard))

    assert ResourceUpdated(uri=INBOX) == anyio.run(main)


@pytest.mark.filterwarnings("ignore:resources/(un)?subscribe is removed")
def test_a_subscribed_client_of_2025_is_told_of_a_message(serve: Serve, bob: Postbox) -> None:
    """By the notification of its protocol; not after it has unsubscribed."""

    async def main() -> list[str]:
        heard = list[str]()
        came = anyio.Event()

        async def hear(message: Any) -> None:
            if isinstance(message, ResourceUpdatedNotification):
                heard.append(str(message.params.uri))
                came.set()

        async with serve("legacy", hear=hear) as client:
            await client.subscribe_resource(INBOX)
            bob.send("alice", "x")
            with anyio.fail_after(60):
                await came.wait()
            await client.unsubscribe_resource(INBOX)
            bob.send("alice", "y")
            given = await call(client, "check_inbox", wait_seconds=60)
            assert given["messages"] != []
        return heard

    assert [INBOX] == anyio.run(main)


def test_a_look_waits_for_a_message(serve: Serve, bob: Postbox) -> None:
    """check_inbox with wait_seconds returns when one comes."""

    async def main() -> Any:
        async with serve() as client, anyio.create_task_group() as tasks:

            async def send() -> None:
                bob.send("alice", "x")

            tasks.start_soon(send)
            return (await call(client, "check_inbox", wait_seconds=60))["messages"]

    assert ["x"] == [each["body"] for each in anyio.run(main)]
