"""What tests of HTTP share: homes with keys, served agents, requests by hand, a scripted server."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import httpx2
import trustme

from onceward import Postbox
from onceward.message import wire
from onceward.message.clock import Clock, SystemClock
from onceward.message.frame import Frame
from onceward.message.parcel import Parcel
from onceward.message.settings import Settings
from onceward.testing import Controls
from onceward.testing.builders import build_frame, parcel
from onceward.transports import TransportContext
from onceward.transports.network.http import HttpTransport
from onceward.transports.network.http_listener import HttpListener
from onceward.transports.network.http_signing import head_signature, new_nonce, signed_headers
from onceward.transports.network.keys import Keys

LOOPBACK = "http://127.0.0.1:0"


def context(
    home: Path, agent: str, *, clock: Clock | None = None, **settings: Any
) -> TransportContext:
    """Return what a transport or listener of *agent* is made from."""
    return TransportContext(
        agent=agent,
        folder=home,
        settings=Settings.merge(None, settings),
        clock=clock or SystemClock(),
    )


def share_keys(home: Path, names: list[str]) -> str:
    """Give all pairs of a home one secret, and return it."""
    keys = Keys(home)
    secret = keys.create(names[0])
    for name in names[1:]:
        keys.add(name, secret)
    return secret


def a_parcel(body: object = "hello", *, sender: str = "alice", recipient: str = "bob") -> Parcel:
    """Return the first parcel of a stream, of one frame."""
    frame: Frame = build_frame(body, sender=sender, recipient=recipient)
    return parcel(1, [frame], sender=sender, recipient=recipient)


@dataclass
class Served:
    """Bob, served over HTTP from a home of his own, and Alice's home with her key."""

    bob: Postbox
    server: HttpListener
    near: Path
    far: Path
    stack: ExitStack = field(repr=False)

    @property
    def url(self) -> str:
        """Return where Bob is served."""
        return self.server.url

    def transport(self, **settings: Any) -> HttpTransport:
        """Return Alice's transport."""
        made = HttpTransport(context(self.near, "alice", **settings))
        self.stack.callback(made.close)
        return made

    def kept(self) -> list[Any]:
        """Return the bodies that Bob's inbox has kept, oldest first."""
        found: list[Any] = []
        while (message := self.bob.receive()) is not None:
            with message:
                found.append(message.body)
        return found

    def signed(
        self, body: bytes, verb: str = "parcels", to: str = "bob", **changed: str
    ) -> dict[str, str]:
        """Return the headers of a request of Alice, some changed after they were signed."""
        return (
            request_headers(Keys(self.near).secrets("bob"), body, verb=verb, recipient=to) | changed
        )

    def post(
        self, body: bytes, headers: dict[str, str], path: str = "/v1/agents/bob/parcels"
    ) -> httpx2.Response:
        """Make one request by hand."""
        with httpx2.Client(trust_env=False) as client:
            return client.post(self.url + path, content=body, headers=headers)


def request_headers(
    secrets: Sequence[bytes],
    body: bytes,
    *,
    sender: str = "alice",
    recipient: str = "bob",
    verb: str = "parcels",
    at: int | None = None,
) -> dict[str, str]:
    """Return the headers of a request, as its sender signs them at *at*, in seconds."""
    nonce, now = new_nonce(), SystemClock().now() // 1000 if at is None else at
    return {
        "content-type": wire.CONTENT_TYPE if verb == "parcels" else wire.ANSWER_TYPE,
        **signed_headers(secrets, sender, nonce, now, body),
        **head_signature(secrets, (sender, recipient, verb), nonce, now),
    }


@contextmanager
def served(folder: Path, **options: Any) -> Iterator[Served]:
    """Serve Bob from ``far``, with Alice's key; her home is ``near``."""
    near, far = folder / "near", folder / "far"
    near.mkdir()
    far.mkdir()
    Keys(far).add("alice", Keys(near).create("bob"))
    testing = Controls(clock=options.pop("clock", SystemClock()))
    server = HttpListener(options.pop("url", LOOPBACK), **options)
    with ExitStack() as stack:
        bob = stack.enter_context(
            Postbox(far / "bob.db", agent="bob", start=False, listeners=[server], testing=testing)
        )
        yield Served(bob, server, near, far, stack)


# -- by hand -------------------------------------------------------------------------------------


def raw(url: str) -> socket.socket:
    """Return a connection to the server at *url*."""
    host, port = url.removeprefix("http://").split(":")
    made = socket.create_connection((host, int(port)))
    made.settimeout(30)
    return made


def head(headers: dict[str, str], path: str = "/v1/agents/bob/parcels") -> bytes:
    """Return the head of a request."""
    lines = [f"POST {path} HTTP/1.1", "host: x", *(f"{k}: {v}" for k, v in headers.items())]
    return "\r\n".join([*lines, "", ""]).encode()


def answer_of(connection: socket.socket) -> bytes:
    """Read until the other end closes; a reset counts as closed."""
    found = b""
    try:
        while part := connection.recv(65536):
            found += part
    except ConnectionResetError:
        pass
    return found


def whole_answer(connection: socket.socket) -> bytes:
    """Read one answer from a connection that stays open."""
    found = b""
    while b"\r\n\r\n" not in found:
        found += connection.recv(65536)
    top, _, body = found.partition(b"\r\n\r\n")
    [length] = [
        int(line.split(b":")[1])
        for line in top.lower().split(b"\r\n")
        if line.startswith(b"content-length:")
    ]
    while len(body) < length:
        body += connection.recv(65536)
    return top + b"\r\n\r\n" + body


Reply = Callable[["Asked"], tuple[int, dict[str, str], bytes]]


@dataclass
class Asked:
    """A request that came to the scripted server."""

    headers: dict[str, str]
    body: bytes
    path: str


@contextmanager
def scripted(reply: Reply) -> Iterator[str]:
    """Serve what *reply* returns, status, headers and body, and yield the url."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            length = int(self.headers.get("content-length", 0))
            asked = Asked(
                {k.lower(): v for k, v in self.headers.items()}, self.rfile.read(length), self.path
            )
            status, headers, body = reply(asked)
            self.send_response_only(status)
            for name, value in ({"content-length": str(len(body))} | headers).items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def files_of(authority: trustme.CA, folder: Path, name: str) -> tuple[str, str]:
    """Return the files of a certificate for *name* and of its key."""
    issued = authority.issue_cert(name)
    certificate, key = folder / f"{name}.pem", folder / f"{name}.key"
    issued.cert_chain_pems[0].write_to_path(certificate)
    issued.private_key_pem.write_to_path(key)
    return str(certificate), str(key)
