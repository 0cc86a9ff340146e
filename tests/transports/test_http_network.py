"""Exchanges over HTTP on the threads that wait for them: one deadline, whatever they wait for."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest
from tests.transports.over_http import a_parcel, context, served

from onceward.errors import Unreachable
from onceward.transports.network.http import HttpTransport
from onceward.transports.network.keys import Keys


def test_a_push_to_a_number_starts_no_thread(tmp_path: Path) -> None:
    """The thread that pushes makes the exchange itself, on the connection of the one before."""
    with served(tmp_path) as there:
        way = there.transport()
        before = {each.name for each in threading.enumerate()}
        way.deliver(there.url, a_parcel())
        after = {each.name for each in threading.enumerate()}

    assert set() == {name for name in after - before if not name.startswith("onceward-http-in")}


def test_the_next_address_of_a_host_is_tried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A host that has several addresses is reached though the first one is not."""
    looked_up = socket.getaddrinfo

    def two(host: str, port: int, **options: Any) -> list[Any]:
        if host != "two.test":
            return looked_up(host, port, **options)
        if options["flags"]:
            raise socket.gaierror
        return looked_up("127.0.0.1", closed, **options) + looked_up("127.0.0.1", port, **options)

    with served(tmp_path) as there, socket.socket() as unheard:
        unheard.bind(("127.0.0.1", 0))
        closed = unheard.getsockname()[1]
        monkeypatch.setattr(socket, "getaddrinfo", two)
        url = there.url.replace("127.0.0.1", "two.test")
        answer = there.transport(http_plain_hosts=("two.test",)).deliver(url, a_parcel())

    assert answer.verdict == "accepted"


@contextmanager
def deaf_resolver(monkeypatch: pytest.MonkeyPatch) -> Iterator[Event]:
    """Let names be looked up without end; yield the event that a look-up sets."""
    asked, go_on = Event(), Event()

    def wait(host: str, port: int, **options: Any) -> list[Any]:
        if not options["flags"]:
            asked.set()
            go_on.wait(60)
        raise socket.gaierror

    monkeypatch.setattr(socket, "getaddrinfo", wait)
    try:
        yield asked
    finally:
        go_on.set()


def test_a_look_up_is_within_the_deadline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A resolver that does not answer holds a push no longer than the exchange may take."""
    Keys(tmp_path).create("bob")
    way = HttpTransport(context(tmp_path, "alice", deliver_timeout=0.2))
    with (
        deaf_resolver(monkeypatch),
        pytest.raises(Unreachable, match=r"no complete answer within 0\.2 s"),
    ):
        way.deliver("https://nowhere.test", a_parcel())
    way.close()


def test_closing_ends_a_look_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A push that waits for the resolver ends when the transport is closed."""
    Keys(tmp_path).create("bob")
    way, errors = HttpTransport(context(tmp_path, "alice", deliver_timeout=20)), list[str]()

    def push() -> None:
        try:
            way.deliver("https://nowhere.test", a_parcel())
        except Unreachable as error:
            errors.append(str(error))

    with deaf_resolver(monkeypatch) as asked:
        pusher = Thread(target=push)
        pusher.start()
        assert asked.wait(60)
        way.close()
        pusher.join()

    assert ["this transport was closed"] == errors


def test_an_unread_parcel_is_given_up(tmp_path: Path) -> None:
    """The deadline holds while a body is sent, however slowly the server reads."""
    Keys(tmp_path).create("bob")
    way, stop = HttpTransport(context(tmp_path, "alice", deliver_timeout=0.3)), Event()

    def sip(server: socket.socket) -> None:
        connection, _ = server.accept()
        with connection:
            while not stop.wait(0.01):
                connection.recv(1)

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = Thread(target=sip, args=(server,))
        thread.start()
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
        with pytest.raises(Unreachable, match=r"no complete answer within 0\.3 s"):
            way.deliver(url, a_parcel("x" * (16 << 20)))
        stop.set()
        thread.join()
    way.close()


def test_transports_of_a_process_share_their_connections(tmp_path: Path) -> None:
    """Two transports push on one connection, one after the other, also after one was closed."""
    with served(tmp_path) as there:
        first, second = there.transport(), there.transport()
        pushed = a_parcel()
        verdicts = [first.deliver(there.url, pushed).verdict]
        verdicts.append(second.deliver(there.url, pushed).verdict)
        first.close()
        verdicts.append(second.deliver(there.url, pushed).verdict)
        found = there.server.connections()

    assert ["accepted", "duplicate", "duplicate"] == verdicts
    assert found is not None
    assert 1 == found.peers


def test_closing_a_transport_ends_its_own_pushes_only(tmp_path: Path) -> None:
    """A push of another transport of the process goes on."""
    errors, verdicts = list[str](), list[str]()
    Keys(tmp_path).create("bob")
    stuck = HttpTransport(context(tmp_path, "alice", deliver_timeout=60))

    def push() -> None:
        try:
            stuck.deliver(deaf, a_parcel())
        except Unreachable as error:
            errors.append(str(error))

    (tmp_path / "served").mkdir()
    with socket.create_server(("127.0.0.1", 0)) as server, served(tmp_path / "served") as there:
        deaf = f"http://127.0.0.1:{server.getsockname()[1]}"
        other, pusher = there.transport(), Thread(target=push)
        pushed = a_parcel()
        verdicts.append(other.deliver(there.url, pushed).verdict)
        pusher.start()
        connection, _ = server.accept()
        connection.recv(1)
        stuck.close()
        verdicts.append(other.deliver(there.url, pushed).verdict)
        pusher.join()
        connection.close()
        found = there.server.connections()

    assert (["this transport was closed"], ["accepted", "duplicate"]) == (errors, verdicts)
    assert found is not None
    assert 1 == found.peers
