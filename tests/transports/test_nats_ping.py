"""A ping through a NATS server says what is missing, and leaves the streams as they are."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest
from nats.aio.client import Client
from nats.aio.msg import Msg
from tests.transports.nats_server import nats_server, users_block
from tests.transports.test_nats import SOON, Ends, pushed
from tests.waiting import until

from onceward.errors import Unreachable
from onceward.message.protocol import Speaks
from onceward.message.wire import Notice, decode_notice, encode_notice
from onceward.nats import NatsTransport, make_streams, make_user, user_entries
from onceward.testing.clock import ManualClock
from onceward.transports.network import nats_names as names
from onceward.transports.network.nats_link import Link
from onceward.transports.network.nats_ping import ping


def heard(transport: NatsTransport, url: str, peer: str) -> int:
    """Ping until the listener has begun, and return how far its clock is ahead."""
    while True:
        with suppress(Unreachable):
            return transport.ping(url, peer)


@pytest.fixture
def ends(tmp_path: Path) -> Iterator[Ends]:
    """A server without users, and nothing else yet."""
    with nats_server(tmp_path) as server:
        made = Ends(tmp_path, server)
        with made.stack:
            yield made


def test_a_ping_tells_the_clock_of_the_listener(ends: Ends) -> None:
    """A process that listens for a peer answers beside the streams, which stay as they are."""
    transport = ends.transport()
    ends.listener()
    transport.deliver(ends.server.url("far"), pushed(1))
    until(lambda: ends.streams()["OW_PARCELS"][0] == 0)  # acknowledged after its answer
    before = ends.streams()

    ahead = [transport.ping(ends.server.url("far"), "far") for _ in range(2)]

    assert all(abs(each) < 60_000 for each in ahead)
    assert before == ends.streams()


def test_a_ping_compares_the_clocks_halfway() -> None:
    """The peer's clock is 7 s ahead, and its answer comes 3 s after the question."""
    clock = ManualClock()

    class SlowLink:
        url = "nats://far"

        async def exchange(
            self, to: str, back: str, body: bytes, answers: Callable[[Msg], Notice | None]
        ) -> Notice | None:
            clock.advance(1.5)
            asked = decode_notice(body)
            pong = replace(
                asked, kind="pong", sender="far", recipient="near", at=clock.now() + 7000
            )
            clock.advance(1.5)
            return answers(Msg(None, to, back, encode_notice(pong)))  # type: ignore[arg-type]

    told = asyncio.run(ping(cast("Link", SlowLink()), "near", "far", clock))

    assert (7000, Speaks.here()) == told


def test_a_ping_without_a_listener(ends: Ends) -> None:
    """A peer that is not up is told as such; the parcel that waits for it stays."""
    transport = ends.transport(timeout=SOON)
    with pytest.raises(Unreachable, match="no answer from far"):
        transport.deliver(ends.server.url("far"), pushed(1))
    before = ends.streams()

    with pytest.raises(Unreachable, match="listener: no process listens for far at this server"):
        transport.ping(ends.server.url("far"), "far")

    assert before == ends.streams()


def test_a_ping_of_another_agent_or_server(ends: Ends) -> None:
    """A url of another agent, and a server that is away, are told as such."""
    transport = ends.transport()
    with pytest.raises(Unreachable, match=r"name: .* is the url of other, not of far"):
        transport.ping(ends.server.url("other"), "far")
    ends.server.kill()
    with pytest.raises(Unreachable, match=r"no connection to .*: server: "):
        transport.ping(ends.server.url("far"), "far")


def test_answers_to_other_pings_are_not_taken(ends: Ends) -> None:
    """A word that answers no ping of this call, or is none, ends no ping; no listener is there."""
    transport = ends.transport(timeout=SOON)
    asked_of = list[bytes]()

    async def forge(client: Client) -> None:
        async def answer(msg: Msg) -> None:
            asked_of.append(msg.data)
            asked = decode_notice(msg.data)
            for body in (
                b"{}",
                msg.data,
                encode_notice(Notice(kind="pong", sender="far", recipient="near", at=1)),
                encode_notice(
                    Notice(kind="pong", sender="x", recipient="near", at=1, detail=asked.detail)
                ),
            ):
                await client.publish(names.subject("pong", "near", "far"), body)

        await client.subscribe(names.subject("ping", "far", "near"), cb=answer)
        loop = asyncio.get_running_loop()
        with pytest.raises(Unreachable, match="no answer from far"):
            await loop.run_in_executor(None, transport.ping, ends.server.url("far"), "far")

    ends.raw(forge)

    assert 1 == len(asked_of)


def test_what_is_no_ping_is_not_answered(ends: Ends) -> None:
    """Bytes, another kind and another sender at the subject of pings get no word."""
    ends.listener()
    heard(ends.transport(), ends.server.url("far"), "far")
    told = list[bytes]()
    done = asyncio.Event()

    async def ask(client: Client) -> None:
        async def take(msg: Msg) -> None:
            told.append(msg.data)
            done.set()

        await client.subscribe(names.subjects_to("pong", "near"), cb=take)
        good = Notice(kind="ping", sender="near", recipient="far", detail="1")
        for each in (
            b"",
            b"[]",
            encode_notice(replace(good, kind="pong")),
            encode_notice(replace(good, sender="other")),
            encode_notice(replace(good, recipient="other")),
            encode_notice(good),
        ):
            await client.publish(names.subject("ping", "far", "near"), each)
        async with asyncio.timeout(60):
            await done.wait()

    ends.raw(ask)

    assert [("pong", "1")] == [(each.kind, each.detail) for each in map(decode_notice, told)]


# -- what the server's configuration lacks --------------------------------------------------------


def refusal(folder: Path, more: str) -> str:
    """Return what a ping of near says at a server with *more* in its configuration."""
    with nats_server(folder, more) as server:
        ends = Ends(folder, server)
        with ends.stack, pytest.raises(Unreachable) as caught:
            ends.transport().ping(server.url("far"), "far")
    return str(caught.value)


def test_a_missing_secret_is_told(tmp_path: Path) -> None:
    """A server with users wants a secret; the home has none."""
    (tmp_path / "other").mkdir()
    users = users_block(user_entries([make_user(tmp_path / "other", "near")]))

    assert "key: " in (told := refusal(tmp_path, users))
    assert "this home has no secret of near" in told


def test_a_secret_that_the_server_does_not_know_is_told(tmp_path: Path) -> None:
    """The home has a secret, and the server's configuration has another one, or none."""
    (tmp_path / "other").mkdir()
    make_user(tmp_path, "near")
    users = users_block(user_entries([make_user(tmp_path / "other", "near")]))

    told = refusal(tmp_path, users)

    assert "key or name: " in told
    assert "add the entry that onceward nats setup --user near prints" in told


def test_a_missing_permission_is_told(tmp_path: Path) -> None:
    """A user whose permissions lack a subject is told which, and what prints them."""
    users = users_block(user_entries([make_user(tmp_path, "near", peers=["far"], keeper=True)]))

    told = refusal(tmp_path, users.replace("ow.ping.*.near", "ow.x"))

    assert 'publish to "ow.ping.far.near": add the entry that onceward nats setup' in told.lower()


def test_a_peer_that_the_user_does_not_list_is_told(tmp_path: Path) -> None:
    """A user stores nothing for other names than its peers; the error says what lists them."""
    users = users_block(user_entries([make_user(tmp_path, "near", peers=["fare"], keeper=True)]))

    told = refusal(tmp_path, users)

    assert 'publish to "ow.parcel.far.near": add the entry that onceward nats setup' in told.lower()


def test_missing_streams_are_told(tmp_path: Path) -> None:
    """A user that may not make the streams is told who may."""
    users = users_block(user_entries([make_user(tmp_path, "near", peers=["far"])]))

    assert (
        "near cannot create stream OW_PARCELS, a keeper must create it: onceward nats setup"
        in refusal(tmp_path, users)
    )


def test_a_server_without_jetstream_is_told(tmp_path: Path) -> None:
    """A server that keeps no streams is none for parcels."""
    with nats_server(tmp_path) as server:
        config = tmp_path / "nats.conf"
        server.kill()
        plain = [line for line in config.read_text().splitlines() if "jetstream" not in line]
        config.write_text("\n".join(plain))
        server.start()
        ends = Ends(tmp_path, server)
        with ends.stack, pytest.raises(Unreachable, match="is JetStream enabled"):
            ends.transport().ping(server.url("far"), "far")


def test_a_peer_that_may_not_answer_is_told(tmp_path: Path) -> None:
    """The peer's user does not list the agent: its parcels would be stored, and never answered."""
    near = make_user(tmp_path, "near", peers=["far"], keeper=True)
    users = users_block(user_entries([near, make_user(tmp_path, "far")]))
    with nats_server(tmp_path, users) as server:
        ends = Ends(tmp_path, server)
        make_streams(server.url(), tmp_path, "near")

        def reason() -> str:
            with pytest.raises(Unreachable) as caught:
                ends.transport().ping(server.url("far"), "far")
            return "" if "no process listens" in str(caught.value) else str(caught.value)

        with ends.stack:
            ends.listener()
            told = until(reason)

    assert "permission: far cannot answer: " in told
    assert 'publish to "ow.answer.near.far": add the entry that onceward nats setup' in told.lower()


def test_two_users_ping_each_other(tmp_path: Path) -> None:
    """The permissions that setup prints suffice for a ping and its answer."""
    both = ("near", "far")
    users = [make_user(tmp_path, name, peers=both, keeper=name == "far") for name in both]
    with nats_server(tmp_path, users_block(user_entries(users))) as server:
        ends = Ends(tmp_path, server)
        with ends.stack:
            ends.listener()
            ends.listener(agent="near")
            found = heard(ends.transport(), server.url("far"), "far")
            back = heard(ends.transport("far"), server.url("near"), "near")

    assert abs(found) < 60_000
    assert abs(back) < 60_000
