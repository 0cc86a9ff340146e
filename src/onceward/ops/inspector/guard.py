"""Refuse requests with a wrong host, without a token, or from forged forms."""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Iterable
from http.cookies import CookieError, SimpleCookie
from typing import Final
from urllib.parse import parse_qsl, urlencode, urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from onceward.ops.inspector.visit import VISIT, Reader, Visit, prefix_of
from onceward.serving import Guard, is_token, route_path

COOKIE: Final = "onceward-inspect"
FORM: Final = "onceward-form"
"""Cookie to which a form must belong."""
STATIC: Final = "/static/"
OPEN: Final = ("/live", "/ready")
"""Addresses for probes, which reveal nothing."""
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


class PageGuard(Guard):
    """It also accepts the token from an address once, sets a cookie, and adds headers."""

    def __init__(self, app: ASGIApp, *, hosts: Iterable[str], token: str | None) -> None:
        super().__init__(app, hosts=hosts, token=token, open_paths=OPEN)
        self._given = token or ""
        self._cookie, self._name = proof(self._given), cookie_name(self._given)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer or refuse a request."""
        if scope["type"] != "http":
            await super().__call__(scope, receive, send)
            return
        visit = VISIT.set(Visit(prefix_of(scope), Reader("", write=True)))
        try:
            await super().__call__(scope, receive, with_headers(scope, send))
        finally:
            VISIT.reset(visit)

    def without_token(self, scope: Scope) -> Response | None:
        """Accept the token from the address and set a cookie, or refuse."""
        if is_token(cookie(Headers(scope=scope), self._name), self._cookie):
            return None
        query = parse_qsl(scope["query_string"].decode("latin-1"))
        if scope["method"] != "GET" or not any(
            name == "token" and is_token(value, self._given) for name, value in query
        ):
            return PlainTextResponse("a token is needed: open the address that was printed", 401)
        rest = urlencode([pair for pair in query if pair[0] != "token"])
        path = "/" + scope["path"].lstrip("/")  # two slashes would mean another host
        answer = RedirectResponse(f"{path}?{rest}" if rest else path, 303)
        # Lax, so that an address in a chat or a mail opens; forms have their own cookie.
        answer.set_cookie(self._name, self._cookie, httponly=True, samesite="lax")
        return answer


def with_headers(scope: Scope, send: Send) -> Send:
    """Return a *send* that adds the headers of a page to its answer."""
    static = route_path(scope).startswith(STATIC)  # before the routes change the scope

    async def send_guarded(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            if static:
                headers["cache-control"] = "no-cache"  # an unchanged file is not sent again
            for name, value in HEADERS.items():
                headers.setdefault(name, value)
        await send(message)

    return send_guarded


def proof(token: str) -> str:
    """Return a proof that a reader had the token, without revealing it."""
    return hmac.new(token.encode(), COOKIE.encode(), hashlib.sha256).hexdigest()


def cookie_name(token: str) -> str:
    """Return the name of the cookie, different for each port of a host."""
    return f"{COOKIE}-{hashlib.sha256(proof(token).encode()).hexdigest()[:8]}"


def cookie(headers: Headers, name: str) -> str:
    """Return a cookie of a request; empty if it has none."""
    try:
        found = SimpleCookie(headers.get("cookie", "")).get(name)
    except CookieError:
        return ""
    return found.value if found and found.value.isascii() else ""


def form_mark(request: Request) -> str:
    """Return the cookie for this reader's forms; a new one if there is none."""
    return request.cookies.get(FORM) or secrets.token_urlsafe(24)


def form_token(secret: bytes, mark: str) -> str:
    """Return the secret value of a form, so that no other page can send it."""
    return hmac.new(secret, mark.encode(), hashlib.sha256).hexdigest()


def is_own_form(request: Request, secret: bytes, given: str) -> bool:
    """Return whether a form came from a page of ours."""
    mark = request.cookies.get(FORM, "")
    own_token = bool(mark) and is_token(given, form_token(secret, mark))
    return own_token and _from_here(request)


def _from_here(request: Request) -> bool:
    """Return whether a page of this host sent a request, as the browser says."""
    site, origin = request.headers.get("sec-fetch-site"), request.headers.get("origin")
    if site is not None:  # a proxy may have changed the host, to which the origin would be compared
        return site == "same-origin"
    return origin is None or urlsplit(origin).netloc == request.headers.get("host")
