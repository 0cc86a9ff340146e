"""Both transports, as processes: clients at once, and killed in the middle."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anyio
import httpx2
import pytest
from mcp.client.streamable_http import streamable_http_client
from tests.children import ONCEWARD, Child
from tests.mcp.conftest import Refused, call
from tests.waiting import until

from mcp import Client, StdioServerParameters
from onceward import Postbox

PROGRAM = [*ONCEWARD, "mcp"]
PRINTED = re.compile(r"at (http://\S+); interrupt to stop")
TOKEN = "t" * 20


def stdio(home: Path, *words: str) -> StdioServerParameters:
    """Return how a client starts the server of alice."""
    args = [*PROGRAM[1:], "--db", str(home / "alice.db"), *words]
    return StdioServerParameters(command=PROGRAM[0], args=args)


@contextmanager
def serving(home: Path, *words: str, **env: str) -> Iterator[tuple[Child, str]]:
    """Start the server of alice at a free port; yield it and its address."""
    command = [*PROGRAM, "--db", home / "alice.db", "--http", "127.0.0.1:0", *words]
    with Child(command, "stderr", env=os.environ | env) as child:
        found = PRINTED.search(child.read())
        assert found is not None
        yield child, found[1]


async def work(client: Client, done: list[str]) -> None:
    """Claim and finish messages, with a reply each, until none is left."""
    while message := (await call(client, "claim_message"))["message"]:
        await call(client, "finish_message", claim=message["claim"], reply=message["body"])
        done.append(message["message_id"])


def filled(bob: Postbox, count: int) -> set[str]:
    """Return the ids of so many messages to alice, each in a session of its own."""
    sent = {bob.session(f"s{number}").send("alice", f"m{number}") for number in range(count)}
    bob.flush()
    return sent


def replies(bob: Postbox) -> list[str]:
    """Return the bodies that alice has sent to bob, once they have come."""
    return sorted(body for (body,) in bob.query("SELECT body FROM onceward_inbox"))


@pytest.mark.parametrize("mode", ["auto", "legacy"])
def test_two_clients_share_a_server(home: Path, bob: Postbox, mode: Any) -> None:
    """Over HTTP each message is had by one of them, and answered once."""
    sent, done = filled(bob, 12), list[str]()

    async def main(url: str) -> None:
        async with (
            Client(url, mode=mode) as one,
            Client(url, mode=mode) as two,
            anyio.create_task_group() as tasks,
        ):
            tasks.start_soon(work, one, done)
            tasks.start_soon(work, two, done)

    with serving(home) as (_, url):
        anyio.run(main, url)
        until(lambda: len(replies(bob)) == len(sent))

    assert (sent, 12) == (set(done), len(done))
    assert sorted(f"m{number}" for number in range(12)) == replies(bob)


@pytest.mark.parametrize("mode", ["auto", "legacy"])
def test_two_servers_share_a_file(home: Path, bob: Postbox, mode: Any) -> None:
    """Over stdio each client has a server of its own: each message is had by one of them."""
    sent, done = filled(bob, 12), list[str]()

    async def main() -> None:
        async with (
            Client(stdio(home), mode=mode) as one,
            Client(stdio(home), mode=mode) as two,
            anyio.create_task_group() as tasks,
        ):
            tasks.start_soon(work, one, done)
            tasks.start_soon(work, two, done)

    anyio.run(main)
    with Postbox(home / "alice.db", start=True):
        until(lambda: len(replies(bob)) == len(sent))

    assert (sent, 12) == (set(done), len(done))
    assert sorted(f"m{number}" for number in range(12)) == replies(bob)


def test_what_was_answered_survives_a_kill(home: Path, bob: Postbox) -> None:
    """A sent message is there once, its repeat is the same; a claimed one comes back."""
    filled(bob, 1)

    async def first(url: str, child: Child) -> tuple[str, str]:
        async with Client(url, mode="legacy") as client:
            sent = await call(client, "send_message", to="bob", body="paid", key="k")
            message = (await call(client, "claim_message", lease_seconds=0.1))["message"]
            child.kill()
            return sent["message_id"], message["message_id"]

    async def again(url: str) -> tuple[str, dict[str, Any]]:
        async with Client(url, mode="legacy") as client:
            sent = await call(client, "send_message", to="bob", body="paid", key="k")
            with anyio.fail_after(60):
                message = None
                while message is None:
                    message = (await call(client, "claim_message"))["message"]
            await call(client, "finish_message", claim=message["claim"])
            return sent["message_id"], message

    with serving(home) as (child, url):
        sent, claimed = anyio.run(first, url, child)
    with serving(home) as (_, url):
        repeated, message = anyio.run(again, url)
        until(lambda: replies(bob))

    assert (sent, claimed, 2) == (repeated, message["message_id"], message["attempt"])
    assert ["paid"] == replies(bob)


def test_a_killed_client_loses_nothing(home: Path, bob: Postbox) -> None:
    """Its stdio server ends with its input; the next one gets the message that it had claimed."""
    filled(bob, 1)

    async def claim() -> Any:
        async with Client(stdio(home)) as client:
            return (await call(client, "claim_message", lease_seconds=0.1))["message"]

    async def again() -> Any:
        async with Client(stdio(home)) as client:
            with anyio.fail_after(60):
                while (message := (await call(client, "claim_message"))["message"]) is None:
                    pass
            await call(client, "finish_message", claim=message["claim"])
            return message

    first, second = anyio.run(claim), anyio.run(again)

    assert (first["message_id"], 2) == (second["message_id"], second["attempt"])


def test_a_request_that_is_sent_again_sends_once(home: Path, bob: Postbox) -> None:
    """On one connection the number of a request names it: a client may repeat it."""
    hello = {
        "protocolVersion": "2025-06-18",
        "capabilities": {},
        "clientInfo": {"name": "t", "version": "1"},
    }
    arguments = {"to": "bob", "body": "once"}
    send = {"name": "send_message", "arguments": arguments}
    calls: list[dict[str, Any]] = [
        {"id": 1, "method": "initialize", "params": hello},
        {"method": "notifications/initialized"},
        {"id": 2, "method": "tools/call", "params": send},
        {"id": 2, "method": "tools/call", "params": send},
        {"id": 3, "method": "tools/call", "params": send},
    ]
    ids = list[str]()
    with Child([*PROGRAM, "--db", home / "alice.db"], "stdin", "stdout") as child:
        for request in calls:
            child.tell(json.dumps({"jsonrpc": "2.0", **request}))
            if "id" in request:
                answer = json.loads(child.hear())
                ids.append(answer["result"].get("structuredContent", {}).get("message_id"))
        child.ended()

    assert 0 == child.returncode
    assert ids[1] == ids[2] != ids[3]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_a_server(home: Path, number: signal.Signals, code: int) -> None:
    """Over stdio, with its input still open, and over HTTP with a client."""
    command = [*PROGRAM, "--db", home / "alice.db", "--read-only"]
    with Child(command, "stdin", "stdout") as child:
        child.tell('{"jsonrpc":"2.0","id":1,"method":"ping"}')
        child.hear()
        child.send_signal(number)
        assert code == child.code()

    async def stop(url: str, web: Child) -> None:
        async with Client(url, mode="legacy") as client:
            await call(client, "check_inbox")
            web.send_signal(number)
            assert code == await anyio.to_thread.run_sync(web.code)

    with serving(home) as (web, url):
        anyio.run(stop, url, web)


def test_a_token_is_asked_for_where_it_is_set(home: Path) -> None:
    """Requests without it are refused; with it a client works."""

    async def main(url: str) -> Any:
        given = {"authorization": f"Bearer {TOKEN}"}
        async with (
            httpx2.AsyncClient(headers=given) as web,
            Client(streamable_http_client(url, http_client=web)) as client,
        ):
            return await call(client, "check_inbox")

    with serving(home, ONCEWARD_MCP_TOKEN=TOKEN) as (_, url):
        refused = httpx2.post(url, json={}, headers={"authorization": "Bearer x"})
        assert (401, "Bearer") == (refused.status_code, refused.headers["www-authenticate"])
        assert "alice" == anyio.run(main, url)["agent"]


def test_a_page_of_a_browser_is_refused(home: Path) -> None:
    """A name that resolves to this machine, and a page of another site, reach nothing."""
    with serving(home) as (_, url):
        codes = [
            httpx2.post(url, json={}, headers=headers).status_code
            for headers in ({"host": "evil.example"}, {"origin": "https://evil.example"})
        ]

    assert [421, 403] == codes


def test_a_huge_request_is_refused(home: Path, bob: Postbox) -> None:
    """Over HTTP by its size; a body over the limit of the file by the tool."""

    async def main(url: str) -> None:
        async with Client(url) as client:
            with pytest.raises(Refused, match="Send a shorter body"):
                await call(client, "send_message", to="bob", body="x" * 2_000_000)

    with serving(home) as (_, url):
        answer = httpx2.post(
            url, content=b"x" * 5_000_000, headers={"content-type": "application/json"}
        )
        anyio.run(main, url)

    assert 413 == answer.status_code
