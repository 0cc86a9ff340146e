"""Refuse requests that the reader of these pages did not make: host, token, forged forms."""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import secrets
from collections.abc import Iterable
from http.cookies import CookieError, SimpleCookie
from typing import Final
from urllib.parse import parse_qsl, urlencode, urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

LOOPBACK: Final = frozenset({"localhost", "127.0.0.1", "::1"})
COOKIE: Final = "onceward-inspect"
FORM: Final = "onceward-form"
"""Cookie that a form must belong to."""
STATIC: Final = "/static/"
OPEN: Final = ("/live", "/ready")
"""Addresses for probes, which tell nothing."""
POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self';"
    " font-src 'self'; frame-src 'self'; form-action 'self'; base-uri 'none';"
    " frame-ancestors 'self'"
)
HEADERS: Final = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}


def is_loopback(host: str) -> bool:
    """Return whether an address to listen at is reached from this machine only."""
    if host in LOOPBACK:
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class Guard:
    """ASGI middleware: check the host and the token, and add the headers of every answer."""

    def __init__(self, app: ASGIApp, *, hosts: Iterable[str], token: str | None) -> None:
        self._app = app
        self._hosts = frozenset(host.lower() for host in hosts)
        self._token = token
        self._cookie = proof(token or "")
        self._name = cookie_name(token or "")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer, or refuse."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                if scope["path"].startswith(STATIC):
                    headers["cache-control"] = "no-cache"  # the same file is not sent again
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        refusal = self._refusal(scope)
        await (refusal or self._app)(scope, receive, send_guarded)

    def _refusal(self, scope: Scope) -> Response | None:
        """Return the answer to a request that may not pass."""
        headers = Headers(scope=scope)
        if _host(headers.get("host", "")) not in self._hosts:
            return PlainTextResponse("no page is served under this host name", 421)
        if self._token is None or scope["path"] in OPEN:
            return None
        if hmac.compare_digest(cookie(headers, self._name), self._cookie):
            return None
        kind, _, given = headers.get("authorization", "").partition(" ")
        if kind.lower() == "bearer" and self._is_token(given):
            return None
        return self._first_use(scope)

    def _first_use(self, scope: Scope) -> Response:
        """Take the token out of the address and leave a cookie, or refuse."""
        query = parse_qsl(scope["query_string"].decode("latin-1"))
        if scope["method"] != "GET" or not any(
            name == "token" and self._is_token(value) for name, value in query
        ):
            return PlainTextResponse("a token is needed: open the address that was printed", 401)
        rest = urlencode([pair for pair in query if pair[0] != "token"])
        path = "/" + scope["path"].lstrip("/")  # two slashes would be another host
        answer = RedirectResponse(f"{path}?{rest}" if rest else path, 303)
        # Lax, so that an address in a chat or a mail opens; forms have a cookie of their own.
        answer.set_cookie(self._name, self._cookie, httponly=True, samesite="lax")
        return answer

    def _is_token(self, given: str) -> bool:
        return hmac.compare_digest(given.encode(), (self._token or "").encode())


def proof(token: str) -> str:
    """Return what proves that a reader had the token, without telling it."""
    return hmac.new(token.encode(), COOKIE.encode(), hashlib.sha256).hexdigest()


def cookie_name(token: str) -> str:
    """Return the name of the cookie: inspectors at other ports of one host have others."""
    return f"{COOKIE}-{hashlib.sha256(proof(token).encode()).hexdigest()[:8]}"


def cookie(headers: Headers, name: str) -> str:
    """Return a cookie of a request, empty where it has none."""
    try:
        found = SimpleCookie(headers.get("cookie", "")).get(name)
    except CookieError:
        return ""
    return found.value if found and found.value.isascii() else ""


def _host(header: str) -> str:
    """Return the name in a Host header, without its port; empty where more is in it."""
    try:
        found = urlsplit(f"//{header}")
    except ValueError:
        return ""
    return (found.hostname or "").lower() if found.netloc == header and "@" not in header else ""


def form_mark(request: Request) -> str:
    """Return the cookie that the forms of this reader belong to, a new one where there is none."""
    return request.cookies.get(FORM) or secrets.token_urlsafe(24)


def form_token(secret: bytes, mark: str) -> str:
    """Return what a form carries, so that no other page can send it."""
    return hmac.new(secret, mark.encode(), hashlib.sha256).hexdigest()


def is_own_form(request: Request, secret: bytes, given: str) -> bool:
    """Return whether a form came from a page of ours."""
    site = request.headers.get("sec-fetch-site", "same-origin")
    origin = request.headers.get("origin")
    own = origin is None or urlsplit(origin).netloc == request.headers.get("host")
    mark = request.cookies.get(FORM, "")
    return (
        site == "same-origin"
        and own
        and bool(mark)
        and hmac.compare_digest(form_token(secret, mark).encode(), given.encode())
    )
