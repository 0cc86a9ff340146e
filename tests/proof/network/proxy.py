"""A proxy between two agents that spoils requests and answers in every way that it can."""

from __future__ import annotations

import random
import socket
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from threading import Lock, Thread
from typing import Final

from onceward.errors import OncewardError
from onceward.message import wire
from onceward.message.parcel import Answer, Receipt
from onceward.message.wire import Notice, encode_notice

FAULTS: Final = (
    *("refuse", "swallow", "half", "error", "error_after", "busy", "unsigned_413"),
    *("twice", "old", "forged_taken", "forged_gone", "flipped_request", "flipped_answer"),
)
SPOILED: Final = 0.3
"""Share of the requests that are spoiled."""
OLD_MAX: Final = 50
"""Recorded requests that may come again."""
END: Final = b"\r\n\r\n"


class Spoiler:
    """Forwards requests to a port; the seed says which are spoiled, and how."""

    def __init__(self, port: int, seed: int, faults: tuple[str, ...]) -> None:
        self.faults = faults
        self.port, self.rng, self.lock = port, random.Random(seed), Lock()
        self.old: list[bytes] = []
        self.told: Counter[str] = Counter()

    def serve(self, connection: socket.socket) -> None:
        """Answer one request and close."""
        with closing(connection), suppress(OSError):
            connection.settimeout(10)
            request = read(connection)
            if END not in request:
                return
            with self.lock:
                fault = self.rng.choice(self.faults) if self.rng.random() < SPOILED else "pass"
                old = self.rng.choice(self.old) if self.old else request
                at = self.rng.random()
                self.told[fault] += 1
                self.old = [*self.old, request][-OLD_MAX:]
            connection.sendall(self.answer(fault, request, old, at))

    def answer(self, fault: str, request: bytes, old: bytes, at: float) -> bytes:
        """Return the bytes that the sender gets; none where the connection just ends."""
        match fault:
            case "refuse":
                return b""
            case "error":
                return say(500)
            case "busy":
                return say(503, b"retry-after: 0\r\n")
            case "unsigned_413":
                return say(413)
            case "forged_gone":
                return say(410, body=refusal(request))
            case "forged_taken":
                return say(200, body=forged(request))
            case "flipped_request":
                return self.forward(flip(request, at))
            case "old":
                self.forward(old)
            case "twice":
                self.forward(request)
        found = self.forward(request)
        spoiled = {
            "swallow": b"",
            "half": found[: len(found) // 2],
            "error_after": say(500),
            "flipped_answer": flip(found, at),
        }
        return spoiled.get(fault, found)

    def forward(self, request: bytes) -> bytes:
        """Return the answer of the true server, nothing where it is away."""
        with suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 10) as way:
            way.sendall(request)
            return read(way)
        return b""


def read(connection: socket.socket) -> bytes:
    """Read one request or answer, as long as its head says."""
    found = b""
    while END not in found:
        part = connection.recv(65536)
        if not part:
            return found
        found += part
    head, _, body = found.partition(END)
    length = next(
        (
            int(line.partition(b":")[2])
            for line in head.lower().split(b"\r\n")
            if line.startswith(b"content-length:")
        ),
        0,
    )
    while len(body) < length and (part := connection.recv(65536)):
        body += part
    return head + END + body


def say(status: int, headers: bytes = b"", body: bytes = b"spoiled") -> bytes:
    """Return an answer of the proxy's own."""
    head = b"HTTP/1.1 %d x\r\ncontent-length: %d\r\n%bconnection: close\r\n\r\n"
    return head % (status, len(body), headers) + body


def flip(found: bytes, at: float) -> bytes:
    """Return *found* with one bit of its body turned."""
    begin = found.find(END) + len(END)
    if begin >= len(found):
        return found
    place = begin + int(at * (len(found) - begin))
    return found[:place] + bytes([found[place] ^ 1]) + found[place + 1 :]


def forged(request: bytes) -> bytes:
    """Return the answer that all of a parcel was handled, which its recipient never gave."""
    with suppress(OncewardError):
        parcel = wire.decode_parcel(request.partition(END)[2])
        told = tuple(Receipt(frame.id, "processed") for frame in parcel.frames)
        return wire.encode_answer(Answer(verdict="accepted", receipts=told), parcel)
    return b"{}"


def refusal(request: bytes) -> bytes:
    """Return the word that a parcel is refused for good, which its recipient never gave."""
    with suppress(OncewardError):
        parcel = wire.decode_parcel(request.partition(END)[2])
        return encode_notice(
            Notice(kind="refused", sender=parcel.recipient, recipient=parcel.sender)
        )
    return b"{}"


@contextmanager
def spoiling(
    port: int, seed: int, faults: tuple[str, ...] = FAULTS
) -> Iterator[tuple[str, Spoiler]]:
    """Serve on a port of its own, and yield the url and the proxy."""
    spoiler = Spoiler(port, seed, faults)
    with socket.create_server(("127.0.0.1", 0)) as server:
        Thread(target=_accept, args=(server, spoiler), daemon=True).start()
        yield f"http://127.0.0.1:{server.getsockname()[1]}", spoiler
        server.shutdown(socket.SHUT_RDWR)


def _accept(server: socket.socket, spoiler: Spoiler) -> None:
    while True:
        try:
            connection, _ = server.accept()
        except OSError:
            return
        Thread(target=spoiler.serve, args=(connection,), daemon=True).start()
