"""One hub takes the parcels of hundreds of senders and holds the questions of hundreds of peers."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.children import PYTHON, Child
from tests.transports.over_http import (
    LOOPBACK,
    a_parcel,
    context,
    head,
    raw,
    request_headers,
    whole_answer,
)
from tests.waiting import until

from onceward.http import HttpLimits, HttpListener
from onceward.message import wire
from onceward.message.parcel import Answer
from onceward.message.wire import Notice, encode_notice
from onceward.transports.network.http_connections import ConnectionStats
from onceward.transports.network.keys import Keys

CROWD = 300
FILES = 1024
SERVING = """
import resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (int(sys.argv[2]), int(sys.argv[2])))
from onceward import Postbox
from onceward.http import HttpListener
server = HttpListener("http://127.0.0.1:0")
with Postbox(sys.argv[1], agent="bob", start=False, listeners=[server]) as bob:
    print(server.url, flush=True)
    sys.stdin.readline()
    [[arrived]] = bob.query("SELECT count(*) AS arrived FROM onceward_inbox")
    print(server.connections().refused, arrived, flush=True)
"""
"""A program that serves bob within so many files, and then says what it refused and received."""
LAPTOPS = [f"laptop{n}" for n in range(CROWD)]
SENDERS = [f"sender{n}" for n in range(CROWD)]


@dataclass
class Hub:
    """Bob, who has a key of each of the crowd, and the crowd's secrets."""

    server: HttpListener
    secrets: dict[str, tuple[bytes, ...]]
    stack: ExitStack

    def connections(self) -> ConnectionStats:
        """Return the numbers of the connections."""
        found = self.server.connections()
        assert found is not None
        return found

    def ask(self, name: str, verb: str, body: bytes) -> socket.socket:
        """Make one request on a connection that stays open."""
        headers = request_headers(self.secrets[name], body, sender=name, verb=verb)
        headers["content-length"] = str(len(body))
        made = self.stack.enter_context(raw(self.server.url))
        made.sendall(head(headers, f"/v1/agents/bob/{verb}") + body)
        return made


@pytest.fixture
def hub(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Hub]:
    """Yield a hub for twice the crowd, or for as many connections as the test says."""
    keys = Keys(tmp_path)
    for name in (*LAPTOPS, *SENDERS):
        keys.create(name)
    limits = HttpLimits(connections=getattr(request, "param", 2 * CROWD), questions=CROWD)
    server = HttpListener(LOOPBACK, limits=limits)
    listener = server(context(tmp_path, "bob"))
    listener.listen("bob", lambda _: Answer(verdict="accepted"))
    with ExitStack() as stack:
        yield Hub(server, {name: keys.secrets(name) for name in (*LAPTOPS, *SENDERS)}, stack)
    listener.close()
    server.endpoint.close()


def _status(connection: socket.socket) -> bytes:
    return whole_answer(connection)[9:12]


@pytest.mark.skipif(os.name == "nt", reason="it opens more sockets than select() can take there")
def test_a_crowd_is_served_with_the_first_try(hub: Hub) -> None:
    """Three hundred questions are held, and three hundred senders are answered beside them."""
    held = []
    for name in LAPTOPS:
        question = Notice(kind="collect", sender=name, recipient="bob", limit=15_000)
        held.append(hub.ask(name, "collect", encode_notice(question) + b"\n"))
    until(lambda: hub.connections().held == CROWD)

    def push(name: str) -> bytes:
        return _status(hub.ask(name, "parcels", wire.encode_parcel(a_parcel(sender=name))))

    with ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(push, SENDERS))
    found = hub.connections()

    assert [b"200"] * CROWD == answers
    assert (CROWD, 0, 0) == (found.held, found.refused, found.displaced)


@pytest.mark.parametrize("hub", [CROWD + 50], indirect=True)
def test_senders_that_rest_make_room_for_laptops(hub: Hub) -> None:
    """Connections that senders keep open keep no question out: the oldest of them are closed."""
    for name in SENDERS:
        assert b"200" == _status(
            hub.ask(name, "parcels", wire.encode_parcel(a_parcel(sender=name)))
        )
    for name in LAPTOPS:
        question = Notice(kind="collect", sender=name, recipient="bob", limit=15_000)
        hub.ask(name, "collect", encode_notice(question) + b"\n")
    until(lambda: hub.connections().held == CROWD)
    found = hub.connections()

    assert (0, CROWD - 50) == (found.refused, found.displaced)
    assert found.strangers + found.peers + found.held <= CROWD + 50


@pytest.mark.skipif(os.name == "nt", reason="a process has no limit of open files there")
def test_a_crowd_is_served_within_the_usual_files(tmp_path: Path) -> None:
    """Three hundred senders connect before the first speaks; 1,024 files suffice for all."""
    keys = Keys(tmp_path)
    requests = []
    for name in SENDERS:
        keys.create(name)
        body = wire.encode_parcel(a_parcel(sender=name))
        headers = request_headers(keys.secrets(name), body, sender=name)
        requests.append(head(headers | {"content-length": str(len(body))}) + body)
    serving = Child([*PYTHON, "-c", SERVING, tmp_path / "bob.db", FILES], "stdin", "stdout")
    with serving as hub, ExitStack() as stack:
        url = hub.hear()
        crowd = [stack.enter_context(raw(url)) for _ in requests]
        for each, request in zip(crowd, requests, strict=True):
            each.sendall(request)
        answers = [_status(each) for each in crowd]
        hub.tell()
        refused_and_arrived = hub.hear()

    assert [b"200"] * CROWD == answers
    assert f"0 {CROWD}" == refused_and_arrived
