"""Connect to servers for exchanges with one deadline each, on the waiting threads."""

from __future__ import annotations

import select
import socket
import ssl
import threading
from collections.abc import Iterable, Iterator
from concurrent.futures import CancelledError, Future, InvalidStateError
from contextlib import contextmanager, suppress
from threading import Condition, Thread
from typing import Any, Final

import httpcore2

from onceward.errors import Unreachable
from onceward.file import forks
from onceward.message.clock import monotonic

CLOSE_WITHIN: Final = 5.0
"""Seconds that closing waits for the exchanges that it ended."""
NEXT_ADDRESS: Final = 2.0
"""Seconds after which the next address of a host is tried."""
ERRORS: Final = (httpcore2.NetworkError, httpcore2.ProtocolError, httpcore2.TimeoutException)
"""Errors of an incomplete exchange."""
Address = tuple[Any, ...]


class TlsFailed(httpcore2.ConnectError):
    """A server was reached, but the TLS handshake failed."""


class TlsTimeout(httpcore2.ConnectTimeout):
    """A server was reached, but the TLS handshake took too long."""


class Network:
    """
    The exchanges of a transport, on connections shared by all transports of the process.

    A thread makes one exchange at a time, and waits no longer than the exchange may take. Closing
    ends running exchanges, including those that wait for a name lookup; connections in use by
    others stay open.
    """

    def __init__(self) -> None:
        self._changed = Condition(forks.new_rlock())
        self._closed, self._under_way = False, 0
        self._sockets: set[socket.socket] = set()
        self._lookups: set[Future[list[Address]]] = set()

    @contextmanager
    def exchange(self, within: float) -> Iterator[None]:
        """
        Limit this thread's use of connections to *within* seconds in total.

        Raises:
            Unreachable: it took longer; or the transport was closed.

        """
        with self._changed:
            self._check_open()
            self._under_way += 1
        _this.network, _this.ends = self, monotonic() + within
        _this.socket = None
        try:
            yield
        except ERRORS as error:
            if self._closed:
                raise Unreachable("this transport was closed") from error
            if isinstance(error, TlsTimeout):
                raise
            if isinstance(error, httpcore2.TimeoutException):
                raise Unreachable(f"no complete answer within {within:.3g} s") from error
            raise
        finally:
            with self._changed:
                self._sockets.discard(_this.socket)
                self._under_way -= 1
                self._changed.notify_all()
            _this.network = _this.socket = None

    def close(self) -> bool:
        """End running exchanges; return whether none is left."""
        with self._changed:
            self._closed = True
            for each in self._lookups:
                each.cancel()
            for made in self._sockets:
                with suppress(OSError):  # not SSLSocket's, which would continue without TLS
                    socket.socket.shutdown(made, socket.SHUT_RDWR)
            return self._changed.wait_for(lambda: not self._under_way, CLOSE_WITHIN)

    def use(self, made: socket.socket) -> None:
        """Shut a socket down when the transport is closed while this exchange uses it."""
        with self._changed:
            self._check_open()
            self._sockets.discard(_this.socket)
            self._sockets.add(made)
        _this.socket = made

    def addresses(self, host: str, port: int) -> list[Address]:
        """Look up a host on its own thread: the system's resolver has no deadline."""
        with suppress(socket.gaierror):
            return _resolved(host, port, socket.AI_NUMERICHOST)
        found: Future[list[Address]] = Future()
        with self._changed:
            self._check_open()
            self._lookups.add(found)
        try:
            Thread(
                target=_look_up, args=(found, host, port), name="onceward-look-up", daemon=True
            ).start()
            return found.result(_left())
        except CancelledError as error:
            raise OSError from error
        finally:
            with self._changed:
                self._lookups.discard(found)

    def _check_open(self) -> None:
        if self._closed:
            raise Unreachable("this transport is closed")


_this = threading.local()
"""For each thread, the network of its exchange, its deadline, and its socket."""


def _use(made: socket.socket) -> float:
    """Record that this thread's exchange uses a socket; return its remaining seconds."""
    if _this.socket is not made:
        _this.network.use(made)
    return _left()


def _left() -> float:
    """Return the remaining seconds of this thread's exchange; raise TimeoutError."""
    seconds: float = _this.ends - monotonic()
    if seconds <= 0:
        raise TimeoutError
    return seconds


class Connector(httpcore2.NetworkBackend):
    """Connects to servers, on the thread of the exchange that needs a connection."""

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ARG002 - the exchange has its own
        local_address: str | None = None,  # noqa: ARG002 - as the system chooses
        socket_options: Iterable[Any] | None = None,  # noqa: ARG002 - none are given
    ) -> httpcore2.NetworkStream:
        """Connect to a host, by name or number."""
        with _told(httpcore2.ConnectTimeout, httpcore2.ConnectError):
            addresses = _this.network.addresses(host, port)
            for nth, address in enumerate(addresses, 1):
                last = nth == len(addresses)
                try:
                    return _connected(address, _left() if last else NEXT_ADDRESS)
                except OSError:
                    if last:
                        raise
            raise OSError(f"{host} has no address")


def _connected(address: Address, within: float) -> _Stream:
    family, kind, protocol, _, place = address
    made = socket.socket(family, kind, protocol)
    try:
        left = _use(made)
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        made.settimeout(min(within, left))
        made.connect(place)
    except BaseException:
        made.close()
        raise
    return _Stream(made)


class _Stream(httpcore2.NetworkStream):
    """A connection that waits no longer than the exchange of its thread."""

    def __init__(self, made: socket.socket) -> None:
        self._socket = made

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:  # noqa: ARG002
        """Return received bytes, at least one before the end."""
        with _told(httpcore2.ReadTimeout, httpcore2.ReadError):
            self._socket.settimeout(_use(self._socket))
            return self._socket.recv(max_bytes)

    def write(self, buffer: bytes, timeout: float | None = None) -> None:  # noqa: ARG002
        """Send all bytes."""
        rest = memoryview(buffer)
        with _told(httpcore2.WriteTimeout, httpcore2.WriteError):
            while rest:
                self._socket.settimeout(_use(self._socket))
                rest = rest[self._socket.send(rest) :]

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()

    def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,  # noqa: ARG002
    ) -> httpcore2.NetworkStream:
        """Do the TLS handshake; the returned stream then owns the connection."""
        with _told(TlsTimeout, TlsFailed):
            self._socket = ssl_context.wrap_socket(
                self._socket, server_hostname=server_hostname, do_handshake_on_connect=False
            )
            try:
                self._socket.settimeout(_use(self._socket))
                self._socket.do_handshake()
            except BaseException:
                self.close()
                raise
        return _Stream(self._socket)

    def get_extra_info(self, info: str) -> Any:
        """Return the pool's information: whether the server has ended an idle connection."""
        if info == "is_readable":
            look = select.poll()
            look.register(self._socket, select.POLLIN)
            return bool(look.poll(0))
        if info == "ssl_object" and isinstance(self._socket, ssl.SSLSocket):
            return self._socket
        return None


@contextmanager
def _told(late: type[Exception], failed: type[Exception]) -> Iterator[None]:
    """Raise socket errors as the pool's exceptions."""
    try:
        yield
    except TimeoutError as error:
        raise late(str(error)) from error
    except OSError as error:
        raise failed(str(error)) from error


def _look_up(found: Future[list[Address]], host: str, port: int) -> None:
    with suppress(InvalidStateError):  # given up meanwhile
        try:
            found.set_result(_resolved(host, port))
        except (OSError, UnicodeError) as error:
            found.set_exception(OSError(str(error)))


def _resolved(host: str, port: int, flags: int = 0) -> list[Address]:
    return list(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=flags))
