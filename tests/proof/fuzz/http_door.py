"""Heads of requests from strangers, at a listener of HTTP."""

from __future__ import annotations

import re
import socket
import time
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from tests.transports.over_http import request_headers

from onceward.message import wire
from onceward.message.clock import SystemClock
from onceward.message.frame import digest
from onceward.message.parcel import Answer, Parcel, ParcelFrame
from onceward.message.settings import Settings
from onceward.transports import TransportContext
from onceward.transports.network.http_endpoint import HttpLimits
from onceward.transports.network.http_listener import HttpListener
from onceward.transports.network.keys import Keys

SEP: Final = b"\x1f"
"""Stands between the lines of a head."""
END: Final = b"\x1e"
"""Stands before the body."""
LINE: Final = b"POST /v1/agents/b/parcels HTTP/1.1"
STATUS: Final = re.compile(rb"^HTTP/1\.[01] (\d{3})", re.MULTILINE)
STATUSES: Final = {100, 200, 400, 401, 404, 405, 408, 411, 413, 415, 421, 422, 426, 429, 431, 501}
"""Whatever a stranger writes, it makes no error of ours (500) and holds no budget (503)."""
LAST: Final = b"GET /healthz HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"
LIMITS: Final = HttpLimits(header_timeout=0.1, body_timeout=0.1)
PATIENCE: Final = 20.0
EVERY: Final = 10
"""Inputs after which a good request has to be taken."""
BODY: Final = wire.encode_parcel(
    Parcel(
        sender="a",
        recipient="b",
        epoch="e",
        number=1,
        previous="",
        frames=(ParcelFrame("0", "{}", digest("{}")),),
    )
)


class Surprise(AssertionError):
    """The door took what it must not, or answered what it must not."""


class HttpDoor:
    """
    Requests whose head a stranger has made from the lines of a good one.

    A body is taken only with its own signature, and once; no place and no bytes stay taken.
    """

    def __init__(self) -> None:
        self._folder = TemporaryDirectory(prefix="onceward-fuzz-")
        home = Path(self._folder.name)
        Keys(home).create("a")
        self._secrets = Keys(home).secrets("a")
        self._taken: list[Parcel] = []
        self._server = HttpListener("http://127.0.0.1:0", limits=LIMITS)
        context = TransportContext(agent="b", folder=home, settings=Settings(), clock=SystemClock())
        self._listener = self._server(context)
        self._listener.listen("b", self._accept)
        self._count = 0

    def _accept(self, parcel: Parcel) -> Answer:
        self._taken.append(parcel)
        return Answer(verdict="accepted")

    def __call__(self, raw: bytes) -> None:
        """Make one request, and now and then a good one."""
        self._ask(raw)
        self._count += 1
        if self._count % EVERY == 0 and self._ask(b"%head%" + END + b"%body%") != {200}:
            msg = "a good request is not taken any more"
            raise Surprise(msg)

    def _ask(self, raw: bytes) -> set[int]:
        """Make one request; return the statuses of the answers."""
        signed = request_headers(self._secrets, BODY, sender="a", recipient="b")
        del signed["content-type"]
        request, before = _request(raw, signed), len(self._taken)
        found = {int(each) for each in STATUS.findall(self._answer(request))}
        took = len(self._taken) - before
        if not found <= STATUSES:
            msg = f"status {found - STATUSES} to {request!r}"
            raise Surprise(msg)
        proved = all(value.encode() in request for value in signed.values()) and BODY in request
        if took > (1 if proved else 0):
            msg = f"taken {took} times, answered {found}: {request!r}"
            raise Surprise(msg)
        return found

    def _answer(self, request: bytes) -> bytes:
        """Send a request, and one that ends the connection; return all that comes."""
        found = b""
        url = self._server.url.removeprefix("http://").split(":")
        with (
            socket.create_connection((url[0], int(url[1])), PATIENCE) as way,
            suppress(ConnectionError),  # it was answered before it was read
        ):
            way.sendall(request + LAST)
            while part := way.recv(65536):
                found += part
        limit, endpoint = time.monotonic() + PATIENCE, self._server.endpoint
        while endpoint._slots or endpoint._in_flight:
            if time.monotonic() > limit:
                msg = f"{endpoint._slots} and {endpoint._in_flight} bytes stay taken: {request!r}"
                raise Surprise(msg)
        return found

    def close(self) -> None:
        """End the server."""
        self._listener.close()
        self._server.endpoint.close()
        self._folder.cleanup()


def _request(raw: bytes, signed: dict[str, str]) -> bytes:
    """Return a request; ``%head%``, ``%line%``, ``%body%`` … stand for parts of a good one."""
    head, _, body = raw.partition(END)
    good = {
        **signed,
        "host": "x",
        "content-type": wire.CONTENT_TYPE,
        "content-length": str(len(BODY)),
    }
    chunk = b"%x\r\n%b\r\n" % (len(BODY), BODY)
    lines = head.split(SEP)
    if not lines[0].endswith(b"%line%") and b" /" not in lines[0] and b"HTTP/" not in lines[0]:
        lines.insert(0, b"%line%")
    text = b"\r\n".join(lines) + b"\r\n\r\n" + body
    whole = b"\r\n".join(f"{name}: {value}".encode() for name, value in good.items())
    for name, part in (("line", LINE), ("head", whole), ("body", BODY), ("chunk", chunk)):
        text = text.replace(f"%{name}%".encode(), part)
    for name, value in good.items():
        text = text.replace(f"%{name}%".encode(), value.encode())
    for size in (9000, 70_000):
        text = text.replace(b"%%%d%%" % size, b"a" * size)
    return text
