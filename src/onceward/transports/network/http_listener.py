"""Serve the endpoint of this process over HTTP or HTTPS, on its own thread."""

from __future__ import annotations

import ssl
from typing import Final
from urllib.parse import urlsplit

import uvicorn

from onceward.core.deliver.transport import Accept, TransportContext
from onceward.core.run.shared import Shared
from onceward.errors import InvalidArgument
from onceward.message.hosts import is_loopback, url_of
from onceward.message.times import seconds
from onceward.serving import BACKLOG, ServerThread, bound, configured
from onceward.transports.network.http_connections import Connections, ConnectionStats
from onceward.transports.network.http_endpoint import Binding, HttpEndpoint, HttpLimits
from onceward.transports.network.http_guard import HEAD_MAX, GuardedLoop, guarded

KEEP_ALIVE: Final = 30
"""Seconds for which an idle connection is kept; longer than a client keeps one."""
STOP_WITHIN: Final = 5
"""Seconds that closing waits for running requests."""


class HttpListener:
    """
    Serve agents at *url*; give it to each of their postboxes as a listener.

    The first postbox starts the server, the last one to close stops it. *certfile* and *keyfile*
    are for https, *client_ca* names the authorities that must have signed clients' certificates.
    Plain http is for this machine; *behind_proxy* allows it elsewhere, behind a proxy that speaks
    https.
    """

    def __init__(
        self,
        url: str,
        *,
        certfile: str = "",
        keyfile: str = "",
        client_ca: str = "",
        behind_proxy: bool = False,
        limits: HttpLimits | None = None,
    ) -> None:
        self._scheme, self._host, self._port = _place(url, certfile, behind_proxy=behind_proxy)
        self._tls = (certfile, keyfile or certfile, client_ca)
        self.endpoint = HttpEndpoint(limits)
        self._connections: Connections | None = None
        self._shared = Shared(self._start, ServerThread.close)

    @property
    def url(self) -> str:
        """Return the url that it listens at, with the port that the system chose for 0."""
        return url_of(self._host, self._port, scheme=self._scheme)

    def __call__(self, context: TransportContext) -> SharedBinding:
        """Return the listener of one postbox."""
        return SharedBinding(self, self.endpoint(context))

    def connections(self) -> ConnectionStats | None:
        """Return the numbers of its connections; None before it starts."""
        return None if self._connections is None else self._connections.stats()

    def start(self) -> None:
        """
        Bind the address and serve, if this is the first user.

        Raises:
            InvalidArgument: the address cannot be bound, or a certificate cannot be read.

        """
        self._shared.enter()

    def _start(self) -> ServerThread:
        self._check_files()
        config = self._config()
        config.load()
        try:
            listening = bound(self._host, self._port)
        except OSError as error:
            raise InvalidArgument(f"cannot listen at {self.url}: {error}") from error
        served = ServerThread(config, listening, "onceward-http-server", loop=GuardedLoop)
        self._port = served.port
        return served

    def _check_files(self) -> None:
        """Raise InvalidArgument with the name of the unusable file."""
        certfile, keyfile, client_ca = self._tls
        if not certfile:
            return
        context, what = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ""
        try:
            what = f"the certificate {certfile} with the key {keyfile}"
            context.load_cert_chain(certfile, keyfile)
            if client_ca:
                what = f"the authorities in {client_ca}"
                context.load_verify_locations(client_ca)
        except OSError as error:
            msg = f"cannot listen at {self.url}: {what} cannot be used: {error}"
            raise InvalidArgument(msg) from error

    def _config(self) -> uvicorn.Config:
        (certfile, keyfile, client_ca), limits = self._tls, self.endpoint.limits
        counted = Connections(
            limits.connections, limits.questions, limits.connections_of_an_address
        )
        self._connections, self.endpoint.full = counted, lambda: counted.stats().full
        return configured(
            self.endpoint.app,
            http=guarded(
                header_timeout=seconds("header_timeout", limits.header_timeout),
                answer_timeout=seconds("body_timeout", limits.body_timeout),
                connections=counted,
            ),
            ws="none",
            lifespan="off",
            limit_concurrency=None,
            timeout_keep_alive=KEEP_ALIVE,
            timeout_graceful_shutdown=STOP_WITHIN,
            backlog=BACKLOG,
            h11_max_incomplete_event_size=HEAD_MAX,
            ssl_certfile=certfile or None,
            ssl_keyfile=keyfile or None,
            ssl_ca_certs=client_ca or None,
            ssl_cert_reqs=ssl.CERT_REQUIRED if client_ca else ssl.CERT_NONE,
        )

    def stop(self) -> None:
        """Stop serving, if this is the last user; wait for running requests."""
        self._shared.leave()


class SharedBinding:
    """The listener of one postbox at a server that several may share."""

    def __init__(self, server: HttpListener, binding: Binding) -> None:
        self._server, self._binding = server, binding
        self._listening = False

    @property
    def url(self) -> str:
        """Return the url that the server listens at."""
        return self._server.url

    def listen(self, name: str, accept: Accept) -> None:
        """Pass parcels for *name* to *accept*; raise InvalidArgument."""
        if not self._listening:
            self._server.start()
            self._listening = True
        self._binding.listen(name, accept)

    def close(self) -> None:
        """Take nothing more; wait for what is being accepted. Safe to call twice."""
        self._binding.close()
        if self._listening:
            self._listening = False
            self._server.stop()


def _place(url: str, certfile: str, *, behind_proxy: bool) -> tuple[str, str, int]:
    """Return scheme, host and port of *url*; raise InvalidArgument if it cannot be served."""
    try:
        found = urlsplit(url)
        host, port = found.hostname or "", found.port
    except ValueError as error:
        raise InvalidArgument(f"cannot listen at {url!r}: {error}") from error
    why = ""
    if found.scheme not in {"http", "https"} or not host or found.path.strip("/"):
        why = "give scheme, host and port only, such as https://0.0.0.0:8443"
    elif found.scheme == "https" and not certfile:
        why = "https needs a certificate: certfile and keyfile"
    elif found.scheme == "http" and not is_loopback(host) and not behind_proxy:
        why = (
            "plain http is for this machine only: listen with https, or set behind_proxy=True if "
            "a proxy in front speaks https"
        )
    elif found.scheme == "http" and certfile:
        why = "http uses no certificate: write https, or omit the certificate"
    if why:
        raise InvalidArgument(f"cannot listen at {url!r}: {why}")
    return found.scheme, host, (443 if found.scheme == "https" else 80) if port is None else port
