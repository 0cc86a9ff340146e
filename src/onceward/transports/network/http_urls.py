"""Check the urls of peers that are reached over HTTP."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NoReturn
from urllib.parse import SplitResult, urlsplit

from onceward.errors import InvalidArgument
from onceward.message.hosts import is_loopback
from onceward.message.names import quoted


def check_url(url: str, *, plain_hosts: Iterable[str] = ()) -> None:
    """
    Check the url of a home, without an agent's name and without connecting.

    Raises:
        InvalidArgument: it is invalid, or plain http to another machine that is not in
        *plain_hosts*; the error says what is wrong.

    """
    found = split_url(url)
    host = found.hostname or ""
    if found.username is not None or found.password is not None:
        _refuse(url, "it contains a user name: add keys with onceward keys add", secret=True)
    if found.query or found.fragment or "?" in url or "#" in url:
        _refuse(url, "it has a query or a fragment")
    if not host or not host.isascii() or "%" in host:
        _refuse(url, "its host is missing or not ASCII")
    if "/v1/agents" in found.path or ".." in found.path.split("/") or "//" in found.path:
        _refuse(url, "give the address of the home only, such as https://example.org:8443")
    if found.scheme == "http" and not is_loopback(host) and host not in set(plain_hosts):
        _refuse(url, "other machines need https, unless http_plain_hosts names them")


def split_url(url: str, *, secret: bool = False) -> SplitResult:
    """Return the parts of an http url; raise InvalidArgument, which hides a *secret* one."""
    try:
        found = urlsplit(url)
        port = found.port
    except ValueError as error:
        _refuse(url, str(error), secret=secret)
    if found.scheme not in {"http", "https"} or port == 0:
        _refuse(url, "it must begin with https:// and a host", secret=secret)
    if not url.isascii() or not url.isprintable() or " " in url or "\\" in url:
        _refuse(
            url, "it contains a space or another character that a url cannot have", secret=secret
        )
    if not found.netloc:
        _refuse(url, "it must begin with https:// and a host", secret=secret)
    return found


def _refuse(url: str, why: str, *, secret: bool = False) -> NoReturn:
    shown = "this url" if secret else quoted(url)
    raise InvalidArgument(f"{shown} cannot be the url of a peer: {why}")
