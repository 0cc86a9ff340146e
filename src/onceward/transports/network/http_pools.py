"""Keep one pool of connections in a process, for all transports with the same certificates."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Final, NamedTuple

import httpcore2

from onceward.core.run.shared import Shared
from onceward.errors import Unreachable
from onceward.file import forks
from onceward.message.settings import Settings
from onceward.transports.network.http_network import Connector

IDLE: Final = 20.0
"""Seconds for which an idle connection is kept; a listener keeps it longer."""
IDLE_MAX: Final = 128
"""Maximum idle connections of this process, for each use, scheme and set of certificates."""


class ConnectionPools:
    """
    The pools of connections that one transport uses, by the scheme of a url.

    Transports of one *use* share them: a connection for parcels may lead to a private address,
    which a webhook may not reach.
    """

    def __init__(self, settings: Settings, use: str = "parcels") -> None:
        self._settings, self._use = settings, use
        self._lock = forks.new_lock()
        self._used: dict[str, tuple[_Pool, httpcore2.ConnectionPool]] = {}

    def open(self, scheme: str) -> httpcore2.ConnectionPool:
        """Return the pool for a scheme; raise Unreachable if a certificate cannot be read."""
        settings = self._settings
        with self._lock:
            if (found := self._used.get(scheme)) is None:
                trust = _Trust(
                    settings.http_ca,
                    settings.http_certificate,
                    settings.http_certificate_key,
                )
                shared = _pool(self._use, scheme, trust)
                found = self._used[scheme] = (shared, shared.enter())
            return found[1]

    def close(self) -> None:
        """Leave the pools; the last transport that leaves one closes its connections."""
        with self._lock:
            used, self._used = self._used, {}
        for shared, _ in used.values():
            shared.leave()


class _Trust(NamedTuple):
    """The certificate files of this client, and of the authorities that it trusts."""

    authorities: Path | None
    certificate: Path | None
    key: Path | None


_Pool = Shared[httpcore2.ConnectionPool]
_pools: dict[tuple[str, str, _Trust], _Pool] = {}
_pools_lock: Final = forks.new_lock()
forks.in_child(_pools.clear)  # a connection of the parent carries its requests


def _pool(use: str, scheme: str, trust: _Trust) -> _Pool:
    """Return the connections of all transports of this process with the same use and files."""
    with _pools_lock:
        return _pools.setdefault(
            (use, scheme, trust),
            Shared(lambda: _new_pool(_tls(scheme, trust)), httpcore2.ConnectionPool.close),
        )


def _tls(scheme: str, trust: _Trust) -> ssl.SSLContext | None:
    """Return the TLS context; raise Unreachable if a file cannot be read."""
    if not trust.authorities and not trust.certificate:
        return _usual_authorities() if scheme == "https" else None
    what = f"http_ca {trust.authorities}"
    try:
        context = ssl.create_default_context(cafile=trust.authorities)
        if trust.certificate:
            what = f"http_certificate {trust.certificate} with its key"
            context.load_cert_chain(trust.certificate, trust.key)
    except OSError as error:
        raise Unreachable(f"certificate: the file of {what} cannot be used: {error}") from error
    return context


def _new_pool(tls: ssl.SSLContext | None) -> httpcore2.ConnectionPool:
    return httpcore2.ConnectionPool(
        tls,
        max_connections=None,
        max_keepalive_connections=IDLE_MAX,
        keepalive_expiry=IDLE,
        network_backend=Connector(),
    )


def _usual_authorities() -> ssl.SSLContext:
    """Return a TLS context that trusts the system's authorities."""
    import httpx2  # noqa: PLC0415 - 60 ms that plain http and own authorities save

    return httpx2.create_ssl_context(trust_env=False)
