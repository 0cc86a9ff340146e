"""Recognise host names and addresses of this machine, and write addresses."""

from __future__ import annotations

import ipaddress
from typing import Final
from urllib.parse import urlsplit

from onceward.errors import InvalidArgument

HERE: Final = "127.0.0.1"
LOOPBACK: Final = frozenset({"localhost", HERE, "::1"})
"""Names under which a browser or a scraper on this machine reaches a program on it."""


def is_loopback(host: str) -> bool:
    """Return whether a host name or address is reached only from this machine."""
    if host in LOOPBACK:
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def host_of(header: str) -> str:
    """Return the name in a Host header, without its port; empty if it holds anything else."""
    try:
        found = urlsplit(f"//{header}")
    except ValueError:
        return ""
    return (found.hostname or "") if found.netloc == header and "@" not in header else ""


def place(address: str) -> tuple[str, int]:
    """
    Return host and port of ``HOST:PORT``, or of ``PORT`` on this machine.

    Raises:
        InvalidArgument: it is neither.

    """
    try:
        found = urlsplit(f"//{f'{HERE}:' if address.isdecimal() else ''}{address}")
        host, port = found.hostname or "", found.port
    except ValueError:
        host, port = "", None
    if not host or port is None or found.path:
        msg = f"{address!r} is not an address: write HOST:PORT or PORT, such as {HERE}:9464"
        raise InvalidArgument(msg)
    return host, port


def url_of(host: str, port: int, path: str = "", *, scheme: str = "http") -> str:
    """Return a url; an IPv6 address is in brackets."""
    return f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}{path}"
