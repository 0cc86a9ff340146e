"""Verify the signatures of third parties' webhooks, and read their ids and events."""

from __future__ import annotations

import base64
import hmac
import json
import re
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol

from onceward.errors import InvalidArgument, OncewardError
from onceward.message.times import Span, seconds

TOLERANCE: Final = 300.0
"""Maximum difference of the sender's clock and ours in seconds."""
SIGNATURES_MAX: Final = 8
"""Maximum signatures of one request that are compared."""
SECONDS: Final = re.compile(r"[0-9]{1,12}")
PREFIX: Final = "whsec_"
STANDARD: Final = ("webhook-", "svix-")
"""Prefixes of the headers of Standard Webhooks, and of the service that they come from."""


class NotVerified(OncewardError):
    """A request does not prove that the third party sent it; nothing was stored."""


class NotJson(OncewardError):
    """A verified request has a body that is not JSON; nothing was stored."""


class Webhook(NamedTuple):
    """A verified webhook: its provider's id, its event, and its body."""

    id: str
    event: str
    body: Any


class Verifier(Protocol):
    """Reads a request of one provider; raises NotVerified unless the provider signed its body."""

    def __call__(self, headers: Mapping[str, str], body: bytes) -> Webhook:
        """Return what was delivered. Names of *headers* are in lower case."""
        ...


class StandardWebhooks:
    """
    Verify webhooks as Standard Webhooks describes them; ``svix-`` headers are read, too.

    *secrets* are ``whsec_`` and base64: one, or several during a rotation. The event is the field
    ``type`` of the body. (https://www.standardwebhooks.com)
    """

    def __init__(self, secrets: str | Sequence[str], *, tolerance: Span = TOLERANCE) -> None:
        self._secrets = [_decoded(each) for each in _several(secrets)]
        self._tolerance = seconds("tolerance", tolerance)

    def __call__(self, headers: Mapping[str, str], body: bytes) -> Webhook:
        """Return the delivery; raise NotVerified."""
        message_id, at, signature = (
            next(filter(None, (headers.get(f"{prefix}{name}") for prefix in STANDARD)), "")
            for name in ("id", "timestamp", "signature")
        )
        timestamp = _recent(at, self._tolerance)
        text = f"{message_id}.{timestamp}.".encode() + body
        given = [word.removeprefix("v1,") for word in signature.split(" ")]
        if not message_id or not _signed(self._secrets, text, given, _base64):
            raise NotVerified("the signature is not that of the id, the time and the body")
        found = _json(body)
        return Webhook(message_id, _field(found, "type"), found)


class GitHub:
    """
    Verify webhooks of GitHub, which send JSON: ``x-hub-signature-256`` is a HMAC of the body.

    The id is ``x-github-delivery``, the event ``x-github-event``: GitHub signs neither. A
    redelivery has the id of the first delivery.
    """

    def __init__(self, secrets: str | Sequence[str]) -> None:
        self._secrets = [each.encode() for each in _several(secrets)]

    def __call__(self, headers: Mapping[str, str], body: bytes) -> Webhook:
        """Return the delivery; raise NotVerified."""
        kind, _, given = headers.get("x-hub-signature-256", "").partition("=")
        if kind != "sha256" or not _signed(self._secrets, body, [given], bytes.hex):
            raise NotVerified("x-hub-signature-256 is not that of the body")
        message_id = headers.get("x-github-delivery", "")
        if not message_id:
            raise NotVerified("x-github-delivery is missing")
        return Webhook(message_id, headers.get("x-github-event", ""), _json(body))


class Stripe:
    """
    Verify webhooks of Stripe: ``stripe-signature`` is a HMAC of a time and the body.

    *secrets* are the endpoint's (``whsec_…``, used as text). Id and event are the fields ``id`` and
    ``type`` of the body.
    """

    def __init__(self, secrets: str | Sequence[str], *, tolerance: Span = TOLERANCE) -> None:
        self._secrets = [each.encode() for each in _several(secrets)]
        self._tolerance = seconds("tolerance", tolerance)

    def __call__(self, headers: Mapping[str, str], body: bytes) -> Webhook:
        """Return the delivery; raise NotVerified."""
        parts = [part.strip().partition("=") for part in _listed(headers, "stripe-signature")]
        at = next((value for name, _, value in parts if name == "t"), "")
        given = [value for name, _, value in parts if name == "v1"]
        timestamp = _recent(at, self._tolerance)
        if not _signed(self._secrets, f"{timestamp}.".encode() + body, given, bytes.hex):
            raise NotVerified("stripe-signature is not that of its time and the body")
        found = _json(body)
        message_id = _field(found, "id")
        if not message_id:
            raise NotVerified("the body has no id")
        return Webhook(message_id, _field(found, "type"), found)


def _several(secrets: str | Sequence[str]) -> list[str]:
    """Return one or several secrets as a list; an empty one would verify each request."""
    found = [secrets] if isinstance(secrets, str) else list(secrets)
    if not found or not all(isinstance(each, str) and each for each in found):
        raise InvalidArgument("a verifier needs a secret, or a list of secrets, none of them empty")
    return found


def _signed(
    secrets: Sequence[bytes], text: bytes, given: Sequence[str], written: Callable[[bytes], str]
) -> bool:
    """Return whether one of *given* is the HMAC-SHA256 of *text* by a secret, as it is written."""
    proved = False
    for secret in secrets:
        ours = written(hmac.digest(secret, text, "sha256")).encode()
        for each in given[:SIGNATURES_MAX]:
            proved |= hmac.compare_digest(ours, each.encode())
    return proved


def _base64(mac: bytes) -> str:
    return base64.b64encode(mac).decode()


def _decoded(secret: str) -> bytes:
    """Return the bytes of a secret; raise InvalidArgument without repeating it."""
    try:
        found = base64.b64decode(secret.strip().removeprefix(PREFIX), validate=True)
    except ValueError:
        found = b""
    if not found:
        raise InvalidArgument(f"this is not a secret: one is {PREFIX} and base64")
    return found


def _recent(text: str, tolerance: float) -> int:
    if not SECONDS.fullmatch(text):
        raise NotVerified("the time of the signature is missing")
    if abs(time.time() - int(text)) > tolerance:
        raise NotVerified(f"the time of the signature is off by more than {tolerance:g} s")
    return int(text)


def _json(body: bytes) -> Any:
    try:
        return json.loads(body)
    except (ValueError, RecursionError) as error:
        raise NotJson(f"the body is not JSON: {error}") from error


def _field(found: Any, name: str) -> str:
    value = found.get(name) if isinstance(found, dict) else None
    return value if isinstance(value, str) else ""


def _listed(headers: Mapping[str, str], name: str) -> list[str]:
    return headers.get(name, "").split(",")
