"""Call a url of a third party with each message, signed as in Standard Webhooks."""

from __future__ import annotations

import base64
import ipaddress
from collections.abc import Iterable
from contextlib import suppress
from http import HTTPStatus
from typing import Final, NoReturn
from urllib.parse import quote, urlsplit

from pydantic_core import to_json

from onceward.core.deliver.transport import Features, TransportContext
from onceward.errors import DeliveryError, InvalidArgument, Refused, UnknownKey, Unreachable
from onceward.message.clock import Millis, monotonic
from onceward.message.error_text import storable
from onceward.message.frame import Frame
from onceward.message.names import quoted
from onceward.message.parcel import Answer, Parcel, Receipt, refuse_damaged
from onceward.transports.network.http_failures import in_words
from onceward.transports.network.http_network import ERRORS, Address, Network
from onceward.transports.network.http_pools import ConnectionPools
from onceward.transports.network.http_reading import all_headers, retry_after
from onceward.transports.network.http_signing import ID, SIGNATURE, TIMESTAMP
from onceward.transports.network.http_urls import split_url
from onceward.transports.network.keys import Keys, sign_all
from onceward.transports.network.peer_busy import PeerBusy

SCHEME: Final = "webhook:"
ANSWER_MAX: Final = 64 << 10
"""Maximum bytes of an answer; its beginning is kept as the reason of a failure."""
REASON_MAX: Final = 200
PLAIN: Final = "".join(chr(code) for code in range(0x21, 0x7F) if chr(code) not in '"%')
"""Characters of a header of CloudEvents that are not percent-encoded."""
BUSY: Final = frozenset({HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE})


class WebhookTransport:
    """
    Deliver each message as one POST to a third party's url; a 2xx answer ends it as processed.

    The body is the message's body, the headers are those of Standard Webhooks and of CloudEvents'
    binary mode. ``webhook-id`` is the message's id: the other side detects repetitions by it, for a
    message may be posted twice. Other answers are failed attempts of the message, whose lane
    waits; 410 refuses it for good. Redirects are not followed, proxies of the environment are
    ignored, and private addresses are refused unless ``webhook_private_hosts`` names the host.
    """

    features = Features(schemes=frozenset({SCHEME[:-1]}), streams=False)

    def __init__(self, context: TransportContext) -> None:
        settings = context.settings
        self._context, self._settings = context, settings
        self._keys, self._pools = Keys(context.folder), ConnectionPools(settings, "webhooks")
        self._network = PublicNetwork(settings.webhook_private_hosts)

    def check(self, url: str) -> None:
        """Raise InvalidArgument unless *url* is ``webhook:`` and an https url."""
        _target(url, self._settings.http_plain_hosts)

    def deliver(self, url: str, parcel: Parcel) -> Answer:
        """
        Post the messages in turn and return their receipts; those not posted have none.

        Raises:
            Unreachable: the first post got no answer, or there is no key to sign with.
            Refused: the url is gone (410).

        """
        refuse_damaged(parcel)
        target = _target(url, self._settings.http_plain_hosts)
        receipts, failed = list[Receipt](), set[tuple[str, int]]()
        begin_until = monotonic() + self._settings.deliver_timeout / 2
        for frame in (Frame.parse(each.text) for each in parcel.frames):
            lane = frame.lane, frame.priority
            if lane in failed:
                continue
            if receipts and monotonic() > begin_until:
                break
            try:
                receipts.append(self._post(target, frame))
            except PeerBusy as error:
                if receipts:
                    break
                return Answer(verdict="busy", retry_after=round(1000 * error.after))
            except DeliveryError:
                if receipts:
                    break  # this message is the first of the next parcel, and fails its push
                raise
            if receipts[-1].state == "busy":
                failed.add(lane)
        return Answer(verdict="accepted", receipts=tuple(receipts))

    def _post(self, target: str, frame: Frame) -> Receipt:
        """Post one message and return its receipt."""
        place = urlsplit(target)
        body = _body(frame)
        headers = [("host", place.netloc), *self._headers(frame, body).items()]
        try:
            with (
                self._network.exchange(self._settings.deliver_timeout / 2),
                self._pools.open(place.scheme).stream(
                    "POST", target, headers=headers, content=body
                ) as response,
            ):
                said = _beginning(response.iter_stream())
        except (*ERRORS, OSError) as error:
            words = in_words(error, place.scheme, self._settings.http_ca)
            raise Unreachable(words) from error
        wait = retry_after(all_headers(response.headers), self._now())
        if response.status in BUSY and wait:
            longest = self._settings.delivery_retry.longest
            raise PeerBusy(f"status {response.status}", min(wait / 1000, longest))
        return _receipt(frame.id, response.status, said)

    def _headers(self, frame: Frame, body: bytes) -> dict[str, str]:
        try:
            secrets = self._keys.secrets(frame.recipient)
        except UnknownKey as error:
            raise Unreachable(str(error)) from error
        timestamp = self._now() // 1000
        return {
            "content-type": frame.datacontenttype,
            "accept-encoding": "identity",
            "user-agent": "onceward",
            ID: frame.id,
            TIMESTAMP: str(timestamp),
            SIGNATURE: sign_all(secrets, frame.id, timestamp, body),
            **_attributes(frame),
        }

    def _now(self) -> Millis:
        return self._context.clock.now()

    def close(self) -> None:
        """Cancel running posts and close the connections; safe to call twice."""
        if self._network.close():
            self._pools.close()


class PublicNetwork(Network):
    """Exchanges with public addresses only, and with those of allowed hosts."""

    def __init__(self, allowed: tuple[str, ...]) -> None:
        super().__init__()
        self._allowed = frozenset(allowed)

    def addresses(self, host: str, port: int) -> list[Address]:
        """Return the addresses that are public, at the moment of the connection."""
        found = super().addresses(host, port)
        if host in self._allowed:
            return found
        if public := [each for each in found if is_public(each[-1][0])]:
            return public
        raise Unreachable(
            f"{quoted(host)} has a private address: the setting webhook_private_hosts allows it"
        )


def is_public(address: str) -> bool:
    """Return whether an address is one of the public network."""
    found = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(found, ipaddress.IPv6Address):
        inner = found.ipv4_mapped or found.sixtofour
        if inner is not None:
            return is_public(str(inner))
        if found in TRANSLATED:
            return is_public(str(ipaddress.IPv4Address(int(found) & 0xFFFFFFFF)))
    return found.is_global and not found.is_multicast


TRANSLATED: Final = ipaddress.IPv6Network("64:ff9b::/96")
"""Addresses behind which a translator reaches the IPv4 address in their last bits (RFC 6052)."""


def _target(url: str, plain_hosts: tuple[str, ...]) -> str:
    """Return the https url to post to; raise InvalidArgument if it is another one."""
    target = url.removeprefix(SCHEME)
    found = split_url(target, secret=True)
    if target == url or found.fragment or found.username is not None:
        _refuse("write webhook: and an https url without a user name and a fragment")
    if found.scheme == "http" and found.hostname not in plain_hosts:
        _refuse("it needs https, unless http_plain_hosts names its host")
    return target


def _refuse(why: str) -> NoReturn:
    """Refuse a url without repeating it: many contain a secret."""
    raise InvalidArgument(f"this url cannot be that of a webhook: {why}")


def _body(frame: Frame) -> bytes:
    if frame.data_base64 is not None:
        return base64.b64decode(frame.data_base64)
    return to_json(frame.data)


def _attributes(frame: Frame) -> dict[str, str]:
    """Return the message's attributes as CloudEvents' headers."""
    plain: dict[str, str | int | bool | None] = {
        "id": frame.id,
        "source": frame.source,
        "specversion": frame.specversion,
        "type": frame.type,
        "time": frame.time.isoformat() if frame.time else None,
        "correlationid": frame.correlationid,
        **frame.headers,
    }
    return {
        f"ce-{name}": quote(value if isinstance(value, str) else to_json(value), safe=PLAIN)
        for name, value in plain.items()
        if value is not None
    }


def _beginning(parts: Iterable[bytes]) -> bytes:
    """Read the text of an answer, whose status is known: without it the status still counts."""
    said = bytearray()
    with suppress(*ERRORS):
        for part in parts:
            said += part
            if len(said) > ANSWER_MAX:
                break
    return bytes(said)


def _receipt(message_id: str, status: int, said: bytes) -> Receipt:
    if 200 <= status < 300:  # noqa: PLR2004 - success, as HTTP defines it
        return Receipt(message_id, "processed")
    text = said.decode(errors="replace").strip()[:REASON_MAX]
    reason = storable(f"status {status}: {text or 'without a text'}")
    if status == HTTPStatus.GONE:
        raise Refused(reason)
    if 300 <= status < 400:  # noqa: PLR2004
        reason = f"status {status}: redirects are not followed: register the url that is meant"
    return Receipt(message_id, "busy", reason)
