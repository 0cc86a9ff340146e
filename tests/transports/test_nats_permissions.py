"""Users of a NATS server with the permissions that ``nats setup`` prints are who they say."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from nats.aio.client import Client
from tests.transports.nats_server import nats_server, users_block
from tests.transports.test_nats import Ends, pushed, stored
from tests.waiting import until

from onceward.errors import Unreachable
from onceward.message.parcel import Answer, Parcel
from onceward.message.wire import encode_answer, encode_parcel
from onceward.nats import examine, make_user, user_entries
from onceward.testing.builders import build_frame, parcel
from onceward.transports.network import nats_names as names
from onceward.transports.network.nats import ANSWERED, OUTCOME, PARCEL, _content
from onceward.transports.network.nats_keys import create_seed
from onceward.transports.network.nats_link import Link
from onceward.transports.network.nats_listener import NatsListener

USERS = ("near", "far", "mallory")
STRANGER = "mallory"
EVERYTHING = """
    { nkey: %s }
"""


@pytest.fixture
def ends(tmp_path: Path) -> Iterator[Ends]:
    """A server whose users have their own permissions; far may make the streams."""
    users = [
        names.user(name, create_seed(tmp_path, name), USERS, keeper=name == "far") for name in USERS
    ]
    users.append(EVERYTHING % create_seed(tmp_path, "operator"))
    with nats_server(tmp_path, f"authorization {{ users = [\n{''.join(users)}] }}") as server:
        made = Ends(tmp_path, server)
        with made.stack:
            yield made


def as_user(ends: Ends, name: str, work: Callable[[Client], Coroutine[Any, Any, Any]]) -> None:
    """Run *work* with a client that has a user's key."""
    ends.raw(work, error_cb=_ignore, **_key(ends, name))


async def _ignore(error: Exception) -> None:
    del error


def refused(ends: Ends, work: Callable[[Client], Coroutine[Any, Any, Any]]) -> str:
    """Run *work* as the stranger; return what the server tells of it."""
    told = list[str]()

    async def run(client: Client) -> None:
        heard = asyncio.Event()

        async def note(error: Exception) -> None:
            told.append(str(error))
            heard.set()

        client._error_cb = note
        await work(client)
        async with asyncio.timeout(60):
            await heard.wait()

    ends.raw(run, **_key(ends, STRANGER))
    return told[0]


def _key(ends: Ends, name: str) -> dict[str, Any]:
    seed = (ends.folder / "nats" / f"{name}.nk").read_text(encoding="ascii")
    return {"nkeys_seed_str": seed, "inbox_prefix": names.inbox_prefix(name)}


def make_streams(ends: Ends) -> None:
    """Make the streams, as an operator does."""
    make_streams_as(ends, "operator")


def make_streams_as(ends: Ends, name: str) -> None:
    """Make the streams as a user that may."""
    as_user(ends, name, lambda client: Link(client, name).make_streams())


def held(ends: Ends) -> dict[str, bytes]:
    """Return the messages of both streams by subject."""
    found = dict[str, bytes]()

    async def look(client: Client) -> None:
        stream = client.jetstream()
        for name in names.STREAMS:
            info = await stream.stream_info(name, subjects_filter=">")
            for subject in info.state.subjects or {}:
                found[subject] = (await stream.get_last_msg(name, subject)).data or b""

    as_user(ends, "operator", look)
    return found


def test_agents_with_their_own_keys_reach_each_other(ends: Ends) -> None:
    """The permissions suffice for both ends."""
    make_streams(ends)
    ends.listener()
    answer = ends.transport().deliver(ends.server.url("far"), pushed())

    assert stored(pushed()) == answer


def test_a_keeper_makes_the_streams(ends: Ends) -> None:
    """An agent whose permissions say so makes the streams, also after their loss."""
    keeper = ends.transport("far", timeout=2.5)
    for _ in range(2):
        with pytest.raises(Unreachable, match="no answer from near"):
            keeper.deliver(ends.server.url("near"), _to_near())
        ends.server.kill()
        ends.server.wipe()
        ends.server.start()


def _to_near() -> Parcel:
    sent = build_frame(1, sender="far", recipient="near")
    return parcel(1, [sent], sender="far", recipient="near")


def test_streams_that_this_agent_may_not_make(ends: Ends) -> None:
    """Without streams, an agent that may not make them says which permission it lacks."""
    with pytest.raises(
        Unreachable, match=r"onceward nats setup --keeper NAME --apply.*stream\.create"
    ):
        ends.transport().deliver(ends.server.url("far"), pushed())


def test_a_server_takes_no_agent_without_its_key(ends: Ends, tmp_path: Path) -> None:
    """An agent whose home has no key, or another's, is not let in."""
    (tmp_path / "other").mkdir()
    stranger = Ends(tmp_path / "other", ends.server)
    create_seed(tmp_path / "other", "near")
    with stranger.stack:
        for agent in ("near", "far"):
            with pytest.raises(Unreachable, match=r"no connection to .*uthorization"):
                stranger.transport(agent).deliver(ends.server.url("far"), pushed())


TO_FAR = names.subjects_to("parcel", "far")


@pytest.mark.parametrize(
    "subject",
    [
        names.subject("parcel", "far", "near"),
        names.subject("answer", "near", "far"),
        names.subject("answer", "far", "near"),
        names.subject("parcel", "nobody", STRANGER),
        names.subject("answer", "nobody", STRANGER),
        f"$JS.API.STREAM.CREATE.{names.PARCELS}",
        f"$JS.API.STREAM.INFO.{names.PARCELS}",
        f"$JS.API.STREAM.MSG.GET.{names.PARCELS}",
        f"$JS.API.STREAM.PURGE.{names.PARCELS}",
        f"$JS.API.STREAM.DELETE.{names.PARCELS}",
        f"$JS.API.DIRECT.GET.{names.PARCELS}.{names.subject('parcel', 'far', 'near')}",
        f"$JS.API.CONSUMER.MSG.NEXT.{names.PARCELS}.{names.consumer('far')}",
        f"$JS.API.CONSUMER.DELETE.{names.PARCELS}.{names.consumer('far')}",
        f"$JS.API.CONSUMER.CREATE.{names.PARCELS}.{names.consumer('far')}.{TO_FAR}",
        f"$JS.API.CONSUMER.CREATE.{names.PARCELS}.x.{TO_FAR}",
        f"$JS.API.CONSUMER.CREATE.{names.PARCELS}.{names.consumer('mallory')}",
        f"$JS.API.CONSUMER.DURABLE.CREATE.{names.PARCELS}.{names.consumer('mallory')}",
        f"$JS.API.CONSUMER.CREATE.{names.ANSWERS}.x.{names.subjects_to('answer', 'near')}",
        f"$JS.ACK.{names.PARCELS}.{names.consumer('far')}.1.1.1.1.0",
        "_INBOX_near.x",
        names.subject("ping", "far", "near"),
        names.subject("pong", "near", "far"),
    ],
)
def test_a_stranger_may_not_publish(ends: Ends, subject: str) -> None:
    """A user can publish in its own name to its peers, and ask nothing about other agents."""

    async def attack(client: Client) -> None:
        await client.publish(subject, b"x")

    assert f'permissions violation for publish to "{subject.lower()}"' in refused(ends, attack)


def test_a_user_stores_one_message_of_a_kind_for_each_peer(ends: Ends) -> None:
    """However much a user sends, its share of the streams is bounded by the list of its peers."""
    named = [*USERS, *(f"nobody{number}" for number in range(40))]

    async def fill(client: Client) -> None:
        for name in named:
            for kind in names.STORED:
                for _ in range(3):
                    await client.publish(names.subject(kind, name, STRANGER), b"x" * 100_000)
            await client.flush()

    make_streams(ends)
    as_user(ends, STRANGER, fill)

    assert {names.subject(kind, name, STRANGER) for kind in names.STORED for name in USERS} == set(
        held(ends)
    )


def test_bytes_that_an_agent_may_not_answer_do_not_come_again(tmp_path: Path) -> None:
    """What is no parcel is dropped, also if its sender is no peer of the recipient."""
    near = make_user(tmp_path, "near", peers=["far"], keeper=True)
    users = users_block(user_entries([near, make_user(tmp_path, "far")]))
    with nats_server(tmp_path, users) as server:
        ends = Ends(tmp_path, server)
        make_streams_as(ends, "near")

        async def junk(client: Client) -> None:
            await client.publish(names.subject("parcel", "far", "near"), b"no parcel")
            await client.flush()

        def waiting() -> str:
            return examine(server.url(), tmp_path, "near")[0].found.partition(",")[0]

        with ends.stack:
            as_user(ends, "near", junk)
            before = waiting()
            ends.listener()
            until(lambda: waiting() == "0 messages")

    assert "1 messages" == before


def test_a_keeper_sees_the_streams_for_all_agents_of_a_listener(ends: Ends) -> None:
    """Other agents are refused once for each connection, and are not asked again."""
    make_streams(ends)
    listener = NatsListener(ends.server.url())
    for name in ("near", "far"):
        serving = listener(ends.context(name))
        ends.stack.callback(serving.close)
        serving.listen(name, stored)
        until(lambda: listener.links)  # the link of near comes first
        if name == "near":
            refused = listener.streams(), len(listener.links)
    seen = until(listener.streams)

    assert ([], 0) == refused
    assert ["ok", "ok"] == [each.level for each in seen]


@pytest.mark.parametrize(
    "subject",
    [
        *(">", "ow.>", "ow.parcel.far.*", "ow.answer.near.*", "_INBOX_near.>", "$JS.>"),
        names.subjects_to("ping", "far"),
        names.subjects_to("pong", "near"),
    ],
)
def test_a_stranger_may_not_read(ends: Ends, subject: str) -> None:
    """A user can subscribe to its own inbox and pings only."""

    async def attack(client: Client) -> None:
        await client.subscribe(subject)

    assert f'permissions violation for subscription to "{subject.lower()}"' in refused(ends, attack)


@pytest.mark.parametrize("how", ["filter_subject", "filter_subjects"])
def test_a_consumer_reads_what_its_permission_names(ends: Ends, how: str) -> None:
    """A request whose body asks for other subjects than its own subject makes no consumer."""
    inbox, wanted = names.consumer(STRANGER), names.subjects_to("parcel", "far")
    config: dict[str, Any] = {"name": inbox, "durable_name": inbox, "ack_policy": "explicit"}
    config[how] = [wanted] if how.endswith("s") else wanted
    told: list[dict[str, Any]] = []

    async def attack(client: Client) -> None:
        subject = f"{names.PARCELS}.inbox-mallory.{names.subjects_to('parcel', STRANGER)}"
        body = {"stream_name": names.PARCELS, "config": config}
        reply = await client.request(
            f"$JS.API.CONSUMER.CREATE.{subject}", json.dumps(body).encode()
        )
        told.append(json.loads(reply.data))

    make_streams(ends)
    as_user(ends, STRANGER, attack)

    assert [400] == [each["error"]["code"] for each in told]


async def make_consumer(client: Client, stream: str, **config: str) -> None:
    """Make a consumer of the stranger's own subjects."""
    wanted = (
        names.subjects_to("parcel", STRANGER)
        if stream == names.PARCELS
        else names.subjects_to("answer", STRANGER)
    )
    verb = f"$JS.API.CONSUMER.CREATE.{stream}.{config['name']}.{wanted}"
    body = {"stream_name": stream, "config": {**config, "filter_subject": wanted}}
    reply = json.loads((await client.request(verb, json.dumps(body).encode())).data)
    assert config["name"] == reply.get("name"), reply


async def lead_astray(client: Client, target: str, body: bytes, headers: dict[str, str]) -> None:
    """
    Let the server send to *target*, which the user may not publish to.

    A server looks at no permission for the subject that a request names for its reply.
    """
    mine = names.subject("parcel", STRANGER, STRANGER), names.subject("answer", STRANGER, STRANGER)
    inbox = names.consumer(STRANGER)
    await make_consumer(
        client, names.PARCELS, name=inbox, durable_name=inbox, ack_policy="explicit"
    )
    for subject in mine:
        await client.request(subject, body, headers=headers)
        await client.publish(subject, body, reply=target, headers=headers)  # PubAck to target
    pull = f"$JS.API.CONSUMER.MSG.NEXT.{names.PARCELS}.{inbox}"
    await client.publish(pull, b'{"batch":3,"expires":1000000000}', reply=target)
    for stream, subject in zip(names.STREAMS, mine, strict=True):
        await client.publish(f"$JS.API.DIRECT.GET.{stream}.{subject}", reply=target)
    if not target.startswith("ow.answer."):  # the server refuses what would be a cycle
        await make_consumer(
            client, names.ANSWERS, name="astray", deliver_subject=target, ack_policy="none"
        )
    await client.request(mine[1], body, headers=headers)


FORGERIES = {"by its server": (STRANGER, False), "by an operator, as a control": ("operator", True)}


@pytest.mark.parametrize(("forger", "succeeds"), FORGERIES.values(), ids=FORGERIES)
def test_no_parcel_is_forged(ends: Ends, forger: str, *, succeeds: bool) -> None:
    """The server brings no parcel of a stranger to far under the name of near."""
    seen = list[int]()
    target, forged = names.subject("parcel", "far", "near"), pushed(2, previous="x")

    def accept(taken: Parcel) -> Answer:
        seen.append(taken.number)
        return stored(taken)

    async def attack(client: Client) -> None:
        body, headers = encode_parcel(forged), {PARCEL: _content(forged)}
        if succeeds:
            await client.jetstream().publish(target, body, headers=headers)
        else:
            await lead_astray(client, target, body, headers)

    make_streams(ends)
    ends.listener(accept)
    sender = ends.transport()
    sender.deliver(ends.server.url("far"), pushed(1))
    as_user(ends, forger, attack)
    sender.deliver(ends.server.url("far"), pushed(3, previous="y"))

    assert [1, *([2] if succeeds else []), 3] == seen


@pytest.mark.parametrize(("forger", "succeeds"), FORGERIES.values(), ids=FORGERIES)
def test_no_answer_is_forged(ends: Ends, forger: str, *, succeeds: bool) -> None:
    """The server brings no answer of a stranger to near under the name of far."""
    target, waiting = names.subject("answer", "near", "far"), pushed(2, previous="x")

    async def attack(client: Client) -> None:
        body = encode_answer(stored(waiting), waiting)
        headers = {PARCEL: _content(waiting), OUTCOME: ANSWERED}
        if succeeds:
            await client.jetstream().publish(target, body, headers=headers)
        else:
            await lead_astray(client, target, body, headers)

    make_streams(ends)
    sender = ends.transport(timeout=6.0)
    told = list[object]()
    with ThreadPoolExecutor(1) as pool:
        push = pool.submit(sender.deliver, ends.server.url("far"), waiting)
        while target.replace("answer.near.far", "parcel.far.near") not in held(ends):
            assert not push.done()
        as_user(ends, forger, attack)
        assert succeeds or not push.done()
        try:
            told.append(push.result(60))
        except Unreachable as error:
            told.append(str(error))

    assert [stored(waiting) if succeeds else "no answer from far within 6 s"] == told
