"""``onceward nats setup`` and what the doctor says of a NATS server."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from nats.aio.client import Client
from tests.children import ONCEWARD, Child
from tests.cli.conftest import Cli
from tests.transports.nats_server import NatsServer, nats_server, users_block

from onceward import Msg, Postbox
from onceward.errors import InvalidArgument, Unreachable
from onceward.nats import NatsListener, examine, make_user


class Answer(Msg, type="answer"):
    """What billing replies."""

    n: int


@pytest.fixture
def server(home: Path) -> Iterator[NatsServer]:
    """A server without users."""
    with nats_server(home) as made:
        yield made


def test_the_printed_users_run_a_server(home: Path, cli: Cli) -> None:
    """What setup prints are users of a server by which two agents reach each other."""
    printed = cli("nats", "setup", "--keeper", "shop", "--user", "billing.eu")
    again = cli("nats", "setup", "--keeper", "shop", "--user", "billing.eu")
    with nats_server(home, users_block(printed.out)) as server:
        made = cli("nats", "setup", "--keeper", "shop", "--url", server.url(), "--apply")
        with (
            Postbox(home / "shop.db", agent="shop", listeners=[NatsListener(server.url())]) as shop,
            Postbox(
                home / "billing.eu.db",
                agent="billing.eu",
                listeners=[NatsListener(server.url())],
            ) as billing,
        ):
            shop.peers.add("billing.eu", server.url("billing.eu"))
            billing.peers.add("shop", server.url("shop"))
            ticket = shop.request("billing.eu", {"n": 1})
            message = billing.receive(timeout=30)
            assert message is not None
            with message:
                message.reply(Answer(n=2))
            reply = shop.result(ticket, reply=Answer, timeout=30)

    assert (0, 0, printed.out) == (printed.code, made.code, again.out)
    assert Answer(n=2) == reply
    assert 0o600 == (home / "nats" / "shop.nk").stat().st_mode & 0o777
    assert (home / "nats" / "shop.nk").read_text(encoding="ascii") not in printed.out


def test_what_several_homes_print_is_one_list(tmp_path: Path, cli: Cli) -> None:
    """The entries of two homes, one after the other, let both in; a main file includes them."""
    homes = {name: tmp_path / name for name in ("shop", "billing.eu")}
    for each in homes.values():
        each.mkdir()
    printed = [cli("nats", "setup", "--user", name, "--home", homes[name]) for name in homes]
    listed = f"users: [\n{''.join(each.out for each in printed)}]\n"
    (tmp_path / "agents.conf").write_text(listed, encoding="ascii")
    with nats_server(tmp_path, 'authorization { include "agents.conf" }') as server:
        levels = {
            name: [each.level for each in examine(server.url(), folder, name)]
            for name, folder in homes.items()
        }

    assert {name: ["hidden", "hidden"] for name in homes} == levels
    assert all(
        "between the brackets of authorization { users: [ ] }" in each.err for each in printed
    )


def test_a_user_may_store_for_its_peers_only(home: Path, shop: Postbox, cli: Cli) -> None:
    """Peers are those of its file, the other agents of the command, and those that it names."""
    shop.peers.add("billing", "nats://broker:4222/billing")
    shop.peers.add("plain", "https://far:8443")
    words = ("--user", "shop", "--user", "audit", "--peer", "tax.eu", "--json")
    told = {each["agent"]: each for each in cli("nats", "setup", *words).json["users"]}
    entries = cli("nats", "setup", *words).json["entries"]
    for_any = cli("nats", "setup", "--user", "audit", "--peer", "*").out
    alone = cli("nats", "setup", "--user", "audit")
    wrong = cli("nats", "setup", "--user", "audit", "--peer", "a>b")

    assert ["audit", "tax.eu", "billing"] == told["shop"]["peers"]
    assert ["shop", "tax.eu"] == told["audit"]["peers"]
    assert '"ow.parcel.tax~eu.shop"' in entries
    assert '"ow.answer.tax~eu.audit"' in entries
    assert '"ow.parcel.*' not in entries
    assert '"ow.parcel.*.audit"' in for_any
    assert "audit has no peer at a NATS server" in alone.err
    assert '"ow.parcel' not in alone.out
    assert (2, True) == (wrong.code, "agent name 'a>b'" in wrong.err)


def test_entries_in_the_wrong_place_start_no_server(home: Path, cli: Cli) -> None:
    """Entries outside the list of users, or twice in it, are an error of the server."""
    printed = cli("nats", "setup", "--user", "shop").out
    for wrong in (printed, f"authorization {{\n{printed}}}", users_block(printed, printed)):
        with pytest.raises(RuntimeError, match=r"unknown field|Duplicate nkey|Expected"):
            NatsServer(home, wrong).start()


def test_the_disk_of_a_server_is_bounded(home: Path, cli: Cli, server: NatsServer) -> None:
    """Each stream has a limit of bytes and of age, and no consumer outlives its use for ever."""
    apply = ("nats", "setup", "--keeper", "shop", "--url", server.url(), "--apply")
    cli(*apply, "--max-bytes", 5_000_000)
    found = dict[str, Any]()

    async def look() -> None:
        client = Client()
        await client.connect(server.url())
        for name in ("OW_PARCELS", "OW_ANSWERS"):
            told = await client.request(f"$JS.API.STREAM.INFO.{name}", b"")
            found[name] = json.loads(told.data)["config"]
        told = await client.request("$JS.API.CONSUMER.LIST.OW_PARCELS", b"")
        found["consumers"] = json.loads(told.data)["consumers"]
        await client.close()

    with Postbox(home / "shop.db", agent="shop", listeners=[NatsListener(server.url())]):
        while not found.get("consumers"):
            asyncio.run(look())

    assert {5_000_000} == {found[name]["max_bytes"] for name in ("OW_PARCELS", "OW_ANSWERS")}
    assert all(found[name]["max_age"] > 0 for name in ("OW_PARCELS", "OW_ANSWERS"))
    assert all(
        found[name]["consumer_limits"]["inactive_threshold"] > 0
        for name in ("OW_PARCELS", "OW_ANSWERS")
    )
    assert [True] == [each["config"]["inactive_threshold"] > 0 for each in found["consumers"]]
    assert "OW_PARCELS was there: 0 messages" in cli(*apply).err


def test_a_server_without_room_for_the_streams(home: Path, cli: Cli) -> None:
    """A server that lets a stream hold less than 1 GiB is told from one that permits none."""
    with nats_server(home, sync=", max_file_store: 50MB") as server:
        apply = ("nats", "setup", "--keeper", "shop", "--url", server.url(), "--apply")
        refused, made = cli(*apply), cli(*apply, "--max-bytes", 20_000_000)
        wrong = cli(*apply, "--max-bytes", 0)

    assert (1, 0, 2) == (refused.code, made.code, wrong.code)
    assert "allows less storage: onceward nats setup" in refused.err
    assert "--max-bytes N: " in refused.err


def test_setup_says_how_each_stream_is(cli: Cli, server: NatsServer) -> None:
    """What was made, what was there, with what other limits; an unsafe one fails the command."""

    async def change(**changes: Any) -> None:
        client = Client()
        await client.connect(server.url())
        stream = client.jetstream()
        config = (await stream.stream_info("OW_PARCELS")).config
        await stream.update_stream(config.evolve(**changes))
        await client.close()

    apply = ("nats", "setup", "--keeper", "shop", "--url", server.url(), "--apply")
    first, second = cli(*apply), cli(*apply)
    asyncio.run(change(max_msgs_per_subject=5))
    third = cli(*apply)
    asyncio.run(change(allow_direct=True))
    fourth = cli(*apply, "--json")

    assert ["OW_PARCELS was made: 0 messages, 0 of 1073741824 bytes", "OW_ANSWERS was made"] == [
        first.err.splitlines()[0].partition(" ")[2],
        first.err.splitlines()[1].partition(" ")[2].partition(":")[0],
    ]
    assert "OW_PARCELS was there: 0 messages" in second.err
    assert "OW_PARCELS was there: max_msgs_per_subject is 5, not 1: change it" in third.err
    assert (0, 0, 0, 1) == (first.code, second.code, third.code, fourth.code)
    assert ["unsafe", "ok"] == [each["level"] for each in fourth.json["streams"]]


def test_setup_by_an_agent_that_is_no_keeper(home: Path, cli: Cli) -> None:
    """A user that may not make the streams is told to let a keeper do it."""
    printed = cli("nats", "setup", "--user", "shop")
    with nats_server(home, users_block(printed.out)) as server:
        ran = cli("nats", "setup", "--user", "shop", "--url", server.url(), "--apply")
        other = cli("nats", "setup", "--user", "other", "--url", server.url(), "--apply")

    assert (1, 1) == (ran.code, other.code)
    assert "shop cannot create stream OW_PARCELS, a keeper must create it" in ran.err
    assert "key or name: " in other.err


def test_a_peer_is_pinged_by_way_of_a_server(
    home: Path, shop: Postbox, cli: Cli, server: NatsServer
) -> None:
    """A ping tells the clock of the peer, or what is missing."""
    shop.peers.add("bob", server.url("bob"))
    missing = cli("peers", "ping", "bob")
    with Postbox(home / "bob.db", agent="bob", start=False, listeners=[NatsListener(server.url())]):
        while (found := cli("peers", "ping", "bob", "--json")).code:
            pass
    server.kill()
    away = cli("peers", "ping", "bob")

    assert abs(found.json["clock_ahead_ms"]) < 60_000
    assert (1, 1) == (missing.code, away.code)
    assert "no process listens for bob" in missing.err
    assert "server: " in away.err


def test_setup_as_json(home: Path, cli: Cli) -> None:
    """The document has the users, with their public keys, and the entries as text."""
    ran = cli("nats", "setup", "--user", "shop", "--json")
    [user] = ran.json["users"]

    assert ("shop", False) == (user["agent"], user["keeper"])
    assert f"nkey: {user['public_key']}" in ran.json["entries"]


@pytest.mark.parametrize(
    ("tokens", "code", "told"),
    [
        ([], 2, "which agents"),
        (["--user", "no name"], 2, "agent name 'no name'"),
        (["--user", "shop", "--apply", "--replicas", "9"], 2, "replicas must be from 1 to 5"),
        (["--user", "shop", "--apply", "--url", "http://x"], 2, "is not a url of an agent"),
        (["--user", "shop", "--apply", "--url", "nats://127.0.0.1:1"], 1, "no connection to"),
    ],
)
def test_what_setup_refuses(cli: Cli, tokens: list[str], code: int, told: str) -> None:
    """A call that cannot be done says why."""
    ran = cli("nats", "setup", *tokens)

    assert code == ran.code
    assert told in ran.err


def test_a_secret_that_others_may_read_is_refused(home: Path) -> None:
    """Neither setup nor a connection uses a secret that is open to others."""
    make_user(home, "shop")
    (home / "nats" / "shop.nk").chmod(0o644)
    with pytest.raises(InvalidArgument, match="other users may read"):
        make_user(home, "shop")


def test_a_damaged_secret_is_refused(home: Path) -> None:
    """A file that holds no seed is not overwritten; the error names it."""
    (home / "nats").mkdir()
    (home / "nats" / "shop.nk").write_text("SUnothing", encoding="ascii")
    (home / "nats" / "shop.nk").chmod(0o600)
    with pytest.raises(InvalidArgument, match=r"shop\.nk contains no usable seed"):
        make_user(home, "shop")


def nats_findings(cli: Cli) -> list[tuple[str, str]]:
    """Return level and text of what the doctor says of NATS."""
    found = cli("doctor", "shop.db", "--json").json["findings"]
    return [(each["level"], each["found"]) for each in found if each["check"] == "nats"]


def test_the_doctor_examines_streams(shop: Postbox, cli: Cli, server: NatsServer) -> None:
    """It says which streams are missing, which have other limits, which let messages be forged."""

    async def change(**changes: Any) -> None:
        client = Client()
        await client.connect(server.url())
        stream = client.jetstream()
        config = (await stream.stream_info("OW_PARCELS")).config
        await stream.update_stream(config.evolve(**changes))
        await client.close()

    shop.peers.add("billing", server.url("billing"))
    told = [nats_findings(cli)]
    cli("nats", "setup", "--keeper", "shop", "--url", server.url(), "--apply")
    told.append(nats_findings(cli))
    asyncio.run(change(max_msgs_per_subject=5))
    told.append(nats_findings(cli))
    asyncio.run(change(allow_direct=True))
    told.append(nats_findings(cli))

    assert [
        ["warning", "warning"], ["ok", "ok"], ["warning", "ok"], ["serious", "ok"],
    ] == [[level for level, _ in each] for each in told]  # fmt: skip
    assert f"{server.url()} OW_PARCELS: max_msgs_per_subject is 5, not 1" == told[2][0][1]
    assert f"{server.url()} OW_PARCELS: has allow_direct" == told[3][0][1]


def test_the_doctor_without_a_server(shop: Postbox, cli: Cli) -> None:
    """A server that is away is a warning; without peers through NATS there is nothing to say."""
    before = nats_findings(cli)
    shop.peers.add("billing", "nats://127.0.0.1:1/billing")

    assert [] == before
    assert [("warning", True)] == [
        (level, "no connection to nats://127.0.0.1:1" in found)
        for level, found in nats_findings(cli)
    ]


def test_urls_are_checked(shop: Postbox) -> None:
    """A url that names no server, no agent, a user or a path is not registered."""
    wrong = (
        "nats://", "nats://host", "nats://host/", "nats:host/bob", "nats://user:pw@host/bob",
        "nats://host:0/bob", "nats://host:70000/bob", "nats://host/bob/x", "nats://host/b ob",
        "nats://host/bob?x=1",
    )  # fmt: skip
    for url in wrong:
        with pytest.raises(InvalidArgument, match=r"write|not a server|not a url"):
            shop.peers.add("bob", url)
    shop.peers.add("bob", "nats://host,other:4223/bob")

    assert ["nats://host,other:4223/bob"] == [peer.url for peer in shop.peers.list()]


def test_a_peer_is_not_another_agent(shop: Postbox, server: NatsServer) -> None:
    """A url that names another agent than the peer delivers nothing to it."""
    shop.peers.add("bob", server.url("billing"))
    shop.send("bob", 1)
    shop.run_until_idle()
    [peer] = shop.peers.list()

    assert "is the url of billing, not of bob" in str(peer.last_error)
    assert issubclass(Unreachable, Exception)


def test_a_home_is_served_by_way_of_a_server(home: Path, server: NatsServer) -> None:
    """One process takes parcels in for all agents of a home; SIGTERM ends it gracefully."""
    far = home / "far"
    far.mkdir()
    for name in ("bob", "carl"):
        Postbox(far / f"{name}.db", agent=name, start=False).close()
    with Child([*ONCEWARD, "serve", far, "--listen", server.url()], "stderr") as child:
        said = child.read()
        with Postbox(home / "shop.db", agent="shop") as shop:
            shop.peers.add({name: server.url(name) for name in ("bob", "carl")})
            for name in ("bob", "carl"):
                shop.send(name, {"to": name})
            left = shop.flush(timeout=60)
        child.stop()
    bodies = []
    for name in ("bob", "carl"):
        with Postbox(far / f"{name}.db", start=False) as box:
            bodies += [message.body for message in box.history().messages]

    assert said.endswith(f" INFO serving bob, carl at {server.url()}; interrupt to stop\n")
    assert 0 == left
    assert (143, [{"to": "bob"}, {"to": "carl"}]) == (child.returncode, bodies)


def test_options_of_https_are_not_for_nats(cli: Cli) -> None:
    """A certificate beside a url of NATS is a usage error, as is a url that is none."""
    url = "nats://127.0.0.1:4222"

    assert 2 == cli("serve", "--listen", url, "--behind-proxy").code
    assert 2 == cli("serve", "--listen", url, "--certfile", "home.pem").code
    assert 2 == cli("serve", "--listen", "nats://").code
