"""Take webhooks over HTTP: verify each, and send it once as a message."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from typing import Any, Final

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from onceward import AsyncPostbox, Postbox
from onceward.errors import Conflict, InvalidArgument, InvalidMessage, OncewardError
from onceward.integrations.webhooks.verify import NotJson, NotVerified, Verifier, Webhook
from onceward.message.log import log
from onceward.message.names import agent_name
from onceward.message.options import SendOptions
from onceward.message.times import Span, seconds

LONGEST: Final = 256
"""Maximum characters of a key, a type and an ordering key."""
RETRY_AFTER: Final = {"retry-after": "10"}

OrderingKey = Callable[[Any], str | None]
"""Returns the ordering key for a body; None gives the webhook a lane of its own."""


@dataclass(frozen=True, slots=True)
class _Provider:
    name: str
    verify: Verifier
    to: str
    ordering_key: OrderingKey | None


class WebhookEndpoint:
    """
    The webhooks that an app takes for a postbox; ``app`` is the ASGI app to mount.

    ``POST /NAME`` verifies a request and sends its body as one message. It answers 200 after the
    commit, with the message's id; a repetition with the same id of its provider gets the same
    answer and sends nothing, as long as the message is kept (the setting ``retention``). The
    postbox stays the caller's to close.
    """

    def __init__(
        self, box: Postbox | AsyncPostbox, *, max_body: int = 1 << 20, timeout: Span = 30.0
    ) -> None:
        """Take bodies of at most *max_body* bytes that arrive within *timeout*."""
        self._box, self._max_body = box, max_body
        self._timeout = seconds("timeout", timeout)
        self._providers: dict[str, _Provider] = {}
        self.app = Starlette(routes=[Route("/{name}", self._take, methods=["POST"])])
        self.app.router.redirect_slashes = False

    def add(
        self,
        name: str,
        verify: Verifier,
        *,
        to: str | None = None,
        ordering_key: OrderingKey | None = None,
    ) -> None:
        """
        Take the webhooks of a provider under ``/NAME``.

        A message has the type ``NAME.EVENT`` and goes to the agent *to*, by default to the
        postbox's own. Each has a lane of its own, unless *ordering_key* returns one for its body.

        Raises:
            InvalidArgument: *name* is taken or not a name, or *to* is not an agent's name.

        """
        if agent_name(name) in self._providers:
            raise InvalidArgument(f"the name {name} is taken by another provider: choose another")
        to = agent_name(self._box.agent if to is None else to)
        self._providers[name] = _Provider(name, verify, to, ordering_key)

    async def _take(self, request: Request) -> JSONResponse:
        provider = self._providers.get(request.path_params["name"])
        if provider is None:
            return _refused(HTTPStatus.NOT_FOUND, "no provider has this name")
        try:
            body = await self._body(request)
        except ClientDisconnect:
            return _refused(HTTPStatus.BAD_REQUEST, "the body ended early")
        except TimeoutError:
            return _refused(HTTPStatus.REQUEST_TIMEOUT, "the body did not arrive in time")
        if body is None:
            msg = f"the body has more than {self._max_body} bytes"
            return _refused(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, msg)
        headers = {name.lower(): value for name, value in request.headers.items()}
        try:
            found = provider.verify(headers, body)
        except NotVerified as error:
            log.warning("webhook not verified", provider=provider.name, why=str(error))
            return _refused(HTTPStatus.UNAUTHORIZED, "the signature was not verified")
        except NotJson as error:
            return _refused(HTTPStatus.BAD_REQUEST, str(error))
        return await self._answer(provider, found)

    async def _body(self, request: Request) -> bytes | None:
        """Return the body; None if it is too large."""
        body = bytearray()
        async with asyncio.timeout(self._timeout):
            async for part in request.stream():
                body += part
                if len(body) > self._max_body:
                    return None
        return bytes(body)

    async def _answer(self, provider: _Provider, found: Webhook) -> JSONResponse:
        try:
            message_id = await self._send(provider, found)
        except Conflict as error:  # the same delivery, in which a field has changed since
            message_id = error.message_id or ""
        except InvalidMessage as error:
            return _refused(HTTPStatus.BAD_REQUEST, str(error))
        except OncewardError as error:  # the provider repeats it
            log.error("webhook not stored", provider=provider.name, why=str(error))
            return _refused(HTTPStatus.SERVICE_UNAVAILABLE, "the message was not stored")
        return JSONResponse({"id": message_id})

    async def _send(self, provider: _Provider, found: Webhook) -> str:
        """Send the message of a delivery, and return its id."""
        name = provider.name
        key = _short(f"webhook:{name}:{found.id}")
        lane = provider.ordering_key(found.body) if provider.ordering_key else None
        options: SendOptions = {
            "type": f"{name}.{found.event}" if found.event else name,
            "key": key,
            "ordering_key": key if lane is None else lane,
        }
        if isinstance(box := self._box, AsyncPostbox):
            return await box.send(provider.to, found.body, **options)
        return await run_in_threadpool(partial(box.send, provider.to, found.body, **options))


def _short(key: str) -> str:
    """Return a key, or its beginning and a digest if it is longer than a key may be."""
    if len(key) <= LONGEST and key.isprintable():
        return key
    digest = hashlib.sha256(key.encode(errors="surrogatepass")).hexdigest()
    return f"{key.partition(':')[0]}:{digest}"


def _refused(status: HTTPStatus, why: str) -> JSONResponse:
    headers = RETRY_AFTER if status == HTTPStatus.SERVICE_UNAVAILABLE else None
    return JSONResponse({"error": why}, status, headers)
