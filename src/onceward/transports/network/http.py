"""Push parcels to agents on other machines over HTTP, signed both ways."""

from __future__ import annotations

import random
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from typing import Final
from urllib.parse import urlsplit

from onceward.core.deliver.transport import Features, TransportContext
from onceward.errors import (
    DeliveryError,
    InvalidParcel,
    MissingExtra,
    ParcelTooLarge,
    Refused,
    StoreError,
    UnknownKey,
    Unreachable,
    UnsupportedVersion,
)
from onceward.message import wire
from onceward.message.clock import Millis
from onceward.message.names import quoted
from onceward.message.parcel import Answer, Parcel, in_version
from onceward.message.protocol import Speaks, Spoken
from onceward.message.wire import NOTICE_MAX, Notice, decode_notice, encode_notice
from onceward.transports.network.homes import (
    LIST_MAX,
    OF_AGENTS,
    OF_HOME,
    HomeKeys,
    HomePair,
)
from onceward.transports.network.http_failures import in_words
from onceward.transports.network.http_network import ERRORS, Network
from onceward.transports.network.http_pools import ConnectionPools
from onceward.transports.network.http_reading import all_headers, read_body, retry_after
from onceward.transports.network.http_signing import (
    WINDOW,
    Signed,
    head_signature,
    new_nonce,
    signed_headers,
)
from onceward.transports.network.http_telling import Telling
from onceward.transports.network.http_urls import check_url
from onceward.transports.network.keys import Keys, Secret, fingerprint
from onceward.transports.network.peer_busy import PeerBusy

PARCEL_MAX: Final = 8 << 20
"""Maximum bytes of a pushed parcel, and a listener's default limit."""
AGAIN: Final = 0.05
"""Seconds before a poll is repeated that arrived while the previous one was being read."""
BUSY: Final = frozenset({HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE})
MEANINGS: Final[dict[int, str]] = {
    401: "it refused our name, key or clock: see onceward peers ping",
    404: "there is no onceward at this url: write the home's url, without an agent's name",
    413: "it refused the size of this parcel, without a signature",
    415: "a proxy on the way changes bodies",
    421: "it does not serve an agent with this name",
    429: "it is accepting another parcel of ours, or is overloaded: try again",
    503: "it is starting, stopping or busy: try again",
    422: "it cannot read the parcel: the versions differ, or it was damaged on the way",
}


@dataclass(frozen=True, slots=True)
class Reply:
    """The unverified answer to one request."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class HttpTransport:
    """
    Deliver parcels by POST to the home at a url; the recipient's name is added to it.

    Only an answer that is signed, with the pair's secret or the key of the home at the url, and
    names this request settles messages; any other answer means that the peer was not reached.
    Requests follow no redirects and ignore proxies of the environment.
    """

    features = Features(schemes=frozenset({"http", "https"}), max_bytes=PARCEL_MAX, network=True)

    def __init__(self, context: TransportContext) -> None:
        self._context, self._settings = context, context.settings
        self._keys = Keys(context.folder)
        self.homes = HomeKeys(context.folder, settings=context.settings, clock=context.clock)
        self._network, self._pools = Network(), ConnectionPools(context.settings)
        self._spoken = Spoken()
        self.telling = Telling(self.homes, self.ask_agents)

    def check(self, url: str) -> None:
        """Raise InvalidArgument unless *url* may be a home's, without connecting."""
        check_url(url, plain_hosts=self._settings.http_plain_hosts)

    def deliver(self, url: str, parcel: Parcel) -> Answer:
        """
        Push the parcel and return the signed answer.

        Raises:
            Unreachable: there was no signed answer within ``deliver_timeout``.
            Refused: the peer's signed answer says that it will never accept the parcel.
            ParcelTooLarge: the peer's signed answer says that it accepts only smaller ones.
            UnsupportedVersion: one side must be upgraded before.

        """
        parcel = in_version(parcel, self._spoken.version(parcel.recipient))
        body = wire.encode_parcel(parcel)
        asked = SignedRequest(parcel.sender, parcel.recipient, "parcels", wire.CONTENT_TYPE, body)
        reply = self._known(url, asked, limit=wire.answer_bytes(parcel))
        if reply.status in BUSY and (wait := retry_after(reply.headers, self._now())):
            return Answer(verdict="busy", retry_after=self._spread(wait))
        self._prove(asked, reply)
        try:
            if reply.status == HTTPStatus.OK:
                answer = wire.decode_answer(reply.body, parcel)
                self._spoken.hear(parcel.recipient, None, newest=answer.newest)
                return answer
            notice = decode_notice(reply.body)
        except UnsupportedVersion:
            raise
        except InvalidParcel as error:
            raise Unreachable(f"the peer's answer cannot be read: {error}") from error
        self._spoken.hear(parcel.recipient, notice.speaks)
        raise _told(notice, asked)

    def ping(self, url: str, peer: str) -> Millis:
        """
        Ping the agent *peer*, and return how far its clock is ahead by the signed answer.

        Raises:
            Unreachable: says what is wrong, as far as the sender can find out.
            UnsupportedVersion: one side must be upgraded before.

        """
        notice = Notice(kind="ping", sender=self._context.agent, recipient=peer, at=self._now())
        asked = SignedRequest(
            self._context.agent, peer, "ping", wire.ANSWER_TYPE, encode_notice(notice)
        )
        reply = self._known(url, asked, limit=NOTICE_MAX)
        if reply.status == HTTPStatus.UNAUTHORIZED:
            raise Unreachable(_why_not_known(reply.headers, self._now(), asked))
        self._prove(asked, reply)
        try:
            told = decode_notice(reply.body)
        except UnsupportedVersion:
            raise
        except InvalidParcel as error:
            raise Unreachable(f"the peer's answer cannot be read: {error}") from error
        if (told.kind, told.sender, told.recipient) != ("pong", peer, self._context.agent):
            if isinstance(meant := _told(told, asked), UnsupportedVersion):
                raise meant
            msg = f"the peer answered {told.kind} of {quoted(told.sender)} instead of pong"
            raise Unreachable(msg)
        self._spoken.hear(peer, told.speaks)
        return told.at - (notice.at + self._now()) // 2

    def collect(self, url: str, name: str, peer: str, question: bytes) -> bytes:
        """
        Return the verified answer to a poll by *name* for a parcel from *peer*.

        Raises:
            PeerBusy: the previous poll is still being read, or the peer holds no more polls.
            Unreachable: there was no signed answer.

        """
        return self._collect(url, SignedRequest(name, peer, "collect", wire.ANSWER_TYPE, question))

    def collect_of_home(self, url: str, question: bytes) -> bytes:
        """Return the verified answer to a poll for parcels of all agents; raises as ``collect``."""
        asked = SignedRequest(OF_HOME, OF_HOME, "collect", wire.ANSWER_TYPE, question)
        asked.of_home = True
        return self._collect(url, asked)

    def has_key(self, peer: str) -> bool:
        """Return whether there is a key for an agent, usable or not."""
        return self._keys.exists(peer)

    def _collect(self, url: str, asked: SignedRequest) -> bytes:
        reply = self._known(url, asked, limit=PARCEL_MAX)
        if reply.status in BUSY:
            raise PeerBusy(MEANINGS[reply.status], self._ask_after(reply))
        self._prove(asked, reply)
        if reply.status != HTTPStatus.OK:
            raise Unreachable(f"status {reply.status} to a poll for parcels")
        return reply.body

    def _known(self, url: str, asked: SignedRequest, *, limit: int) -> Reply:
        """Make a request; if the home at the url refuses it, tell it our agents and repeat it."""
        reply = self.request(url, asked, limit=limit)
        refused = reply.status == HTTPStatus.UNAUTHORIZED
        if refused and asked.pair is not None and self.telling.tell(url):
            asked.nonce = new_nonce()
            return self.request(url, asked, limit=limit)
        return reply

    def ask_agents(self, url: str, told: bytes) -> tuple[bytes, Millis]:
        """
        Tell our agents to the home at *url*; return its own, and how far its clock is ahead.

        Raises:
            Unreachable: it is not known here, or its answer is not signed; says what to check.

        """
        asked = SignedRequest(OF_HOME, OF_HOME, OF_AGENTS, "application/json", told)
        reply = self.request(url, asked, limit=LIST_MAX)
        if reply.status == HTTPStatus.UNAUTHORIZED:
            raise Unreachable(_why_not_known(reply.headers, self._now(), asked))
        self._prove(asked, reply)
        signed = Signed.read(reply.headers)
        return reply.body, 1000 * signed.timestamp - self._now() if signed else 0

    def request(self, url: str, asked: SignedRequest, *, limit: int) -> Reply:
        """Make one request under one deadline; read at most *limit* bytes of its answer."""
        try:
            asked.sign(self._secrets(url, asked), self._now() // 1000)
        except (UnknownKey, MissingExtra, StoreError) as error:
            raise Unreachable(str(error)) from error
        target = f"{url.rstrip('/')}/v1/{asked.path}"
        return self.exchange("POST", target, asked.headers, asked.body, limit=limit)

    def _secrets(self, url: str, asked: SignedRequest) -> tuple[Secret, ...]:
        """Return the secrets shared with an agent, else the keys of our home and of its home."""
        if not asked.of_home and self._keys.exists(asked.recipient):
            return self._keys.secrets(asked.recipient)
        if (pair := self.homes.asking(url)) is not None:
            return (pair,)
        if not asked.of_home:
            return self._keys.secrets(asked.recipient)  # which says that there is none
        raise UnknownKey(f"no home is known at {url}: onceward homes add {url}")

    def exchange(
        self,
        method: str,
        target: str,
        headers: Mapping[str, str],
        content: bytes,
        *,
        limit: int,
    ) -> Reply:
        """Make one request, signed or not; raise Unreachable without a complete answer."""
        place = urlsplit(target)
        listed = [("host", place.netloc), *headers.items()]
        try:
            with (
                self._network.exchange(self._settings.deliver_timeout),
                self._pools.open(place.scheme).stream(
                    method, target, headers=listed, content=content
                ) as response,
            ):
                body = read_body(response.iter_stream(), max(limit, NOTICE_MAX))
        except (*ERRORS, OSError) as error:
            words = in_words(error, place.scheme, self._settings.http_ca)
            raise Unreachable(words) from error
        return Reply(response.status, all_headers(response.headers), body)

    def _prove(self, asked: SignedRequest, reply: Reply) -> None:
        """Raise Unreachable unless the reply is signed and names the request's nonce."""
        signed = Signed.read(reply.headers)
        if (
            signed is not None
            and (signed.nonce, signed.sender) == (asked.nonce, asked.recipient)
            and self._proves(asked, signed, reply.body)
        ):
            return
        meaning = MEANINGS.get(reply.status, "nothing proves that the peer sent this")
        raise Unreachable(f"status {reply.status} without a signature: {meaning}")

    def _proves(self, asked: SignedRequest, signed: Signed, body: bytes) -> bool:
        """Return whether the peer, or its home, signed an answer; follow a rotation of its key."""
        if asked.pair is None:
            return signed.proves(asked.secrets, body)
        pair = self.homes.answered(asked.pair, signed.claim)
        if pair is None or not signed.proves((pair,), body):
            return False
        with suppress(StoreError):  # the next answer tells it again
            self.homes.learn(asked.pair.theirs, pair.theirs)
        return True

    def _now(self) -> Millis:
        return self._context.clock.now()

    def _ask_after(self, reply: Reply) -> float:
        """Return the seconds before repeating a poll for which the peer had no capacity."""
        if reply.status == HTTPStatus.TOO_MANY_REQUESTS:
            return AGAIN
        wait = retry_after(reply.headers, self._now()) or 1000
        return self._spread(wait) / 1000

    def _spread(self, wait: Millis) -> Millis:
        """Return up to twice a pause, so that refused senders do not come back in one moment."""
        return min(wait + _dice.randint(0, wait), self._longest_pause())

    def _longest_pause(self) -> Millis:
        """Return how long a busy peer delays us; the answer is not verified."""
        return round(1000 * self._settings.delivery_retry.longest)

    def speaks(self, peer: str) -> Speaks | None:
        """Return what a peer said to this process that it speaks."""
        return self._spoken.said(peer)

    def close(self) -> None:
        """Cancel running pushes and close the connections; safe to call twice."""
        if self._network.close():
            self._pools.close()
        self.homes.close()


_dice: Final = random.SystemRandom()


class SignedRequest:
    """One request: its body, and its headers once it is signed."""

    def __init__(self, sender: str, recipient: str, verb: str, media: str, body: bytes) -> None:
        self.sender, self.recipient, self.verb = sender, recipient, verb
        self.media, self.body = media, body
        self.of_home = verb == OF_AGENTS
        """Whether it is of a home for a home, in place of agents."""
        self.nonce = new_nonce()
        self.secrets: tuple[Secret, ...] = ()
        self.headers: dict[str, str] = {}

    @property
    def path(self) -> str:
        """Where it goes, below the version."""
        return f"home/{self.verb}" if self.of_home else f"agents/{self.recipient}/{self.verb}"

    @property
    def pair(self) -> HomePair | None:
        """The keys of both homes, if these sign."""
        found = self.secrets[0] if self.secrets else None
        return found if isinstance(found, HomePair) else None

    def sign(self, secrets: tuple[Secret, ...], timestamp: int) -> None:
        """Sign the body with every secret of the pair."""
        self.secrets = secrets
        self.headers = {
            "content-type": self.media,
            "accept-encoding": "identity",
            "user-agent": "onceward",
            **signed_headers(secrets, self.sender, self.nonce, timestamp, self.body),
            **head_signature(
                secrets, (self.sender, self.recipient, self.verb), self.nonce, timestamp
            ),
        }


def _told(notice: Notice, asked: SignedRequest) -> DeliveryError:
    """Return the peer's signed notice as an error."""
    ours = (notice.sender, notice.recipient) == (asked.recipient, asked.sender)
    if ours and notice.kind == "too_large" and 0 < notice.limit < len(asked.body):
        return ParcelTooLarge(
            notice.detail or "the peer accepts only smaller parcels", limit=notice.limit
        )
    if ours and notice.kind == "refused":
        return Refused(notice.detail or "refused without a reason")
    if ours and notice.kind == "unread":
        return UnsupportedVersion(f"the peer did not read it: {notice.detail}")
    return Unreachable(f"the peer answered {notice.kind}, which does not fit a parcel")


def _why_not_known(headers: Mapping[str, str], now: Millis, asked: SignedRequest) -> str:
    """Return why a home refuses us: the clock (from an unverified header), else name or key."""
    try:
        theirs = round(parsedate_to_datetime(headers.get("date", "")).timestamp() * 1000)
    except (ValueError, TypeError, OverflowError):
        theirs = now
    if abs(theirs - now) > 1000 * WINDOW:
        off = f"{abs(theirs - now) // 1000} s {'behind' if now < theirs else 'ahead of'}"
        return f"clock: ours is {off} the peer's: set the one that is wrong"
    name, peer = asked.sender, asked.recipient
    if asked.pair is not None:
        ours = asked.pair.own.fingerprint
        if asked.of_home:
            return f"key: that home does not know this one: there, onceward homes add with {ours}"
        return (
            f"key or name: that home does not serve agent {peer}, does not know this home, or has "
            f"another agent {name}: there, onceward homes ls must list {ours}, otherwise run "
            f"onceward homes add; the log of the process that serves {peer} names the cause"
        )
    ours = " ".join(fingerprint(each) for each in asked.secrets if isinstance(each, bytes))
    return (
        f"key or name: that home does not serve agent {peer}, or has no key or another key for "
        f"{name}: there, onceward keys ls must list {name} with {ours}, otherwise run onceward "
        f"keys add {name}; the log of the process that serves {peer} names the cause"
    )
