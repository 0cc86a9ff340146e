"""Verify the signed requests of a peer to a served agent, and sign their answers."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from http import HTTPStatus
from threading import Condition
from typing import Final

from starlette.responses import Response

from onceward.core.deliver.transport import Accept
from onceward.errors import MissingExtra, StoreClosed, UnknownKey, UnsafeKey
from onceward.file import forks
from onceward.file.known_homes import KnownHome
from onceward.message import wire
from onceward.message.clock import Clock
from onceward.message.parcel import Parcel
from onceward.message.wire import Notice, NoticeKind, decode_notice, encode_notice
from onceward.transports.network.homes import HomeKeys, HomePair, KeyClaim
from onceward.transports.network.http_denials import Denials
from onceward.transports.network.http_signing import WINDOW, Signed, signed_headers
from onceward.transports.network.identity import fingerprint_of
from onceward.transports.network.keys import Keys, Secret, fingerprint

NOT_TAKEN: Final = b"not taken\n"
"""Body of every answer to a request that was not verified, or is for another agent."""
NO_KEY: Final[tuple[Secret, ...]] = (bytes(32),)
"""Secret to compare the signature of a caller without a key with."""
NONCES_MAX: Final = 10_000
"""Maximum remembered nonces of one sender; above that only its stream detects repetitions."""


class Denied(Exception):
    """A refused request, with its answer."""

    def __init__(
        self, status: int, headers: dict[str, str] | None = None, answer: Response | None = None
    ) -> None:
        super().__init__(status)
        self.answer = answer or Response(NOT_TAKEN, status, headers)


class Nonces:
    """The nonces of verified requests, as long as their time is within the window."""

    def __init__(self) -> None:
        self._seen: dict[str, OrderedDict[str, int]] = {}
        self._lock = forks.new_lock()

    def add(self, signed: Signed, now: float) -> bool:
        """Remember a verified nonce; return whether it is new."""
        with self._lock:
            seen = self._seen.setdefault(signed.sender, OrderedDict())
            if signed.nonce in seen:
                return False
            seen[signed.nonce] = signed.timestamp
            while seen and (len(seen) > NONCES_MAX or _is_over(seen, now)):
                seen.popitem(last=False)
            return True


def _is_over(seen: OrderedDict[str, int], now: float) -> bool:
    return next(iter(seen.values())) < now - WINDOW


@dataclass(slots=True, eq=False)
class Served:
    """A served agent: its function, its home's keys, its clock."""

    name: str
    accept: Accept
    keys: Keys
    homes: HomeKeys
    clock: Clock
    denials: Denials
    heard: Callable[[str], None]
    users: int = 0
    closed: bool = False
    nonces: Nonces = field(default_factory=Nonces)
    changed: Condition = field(default_factory=Condition)

    def __enter__(self) -> None:
        """Begin a call of ``accept``; raise StoreClosed once it was closed."""
        with self.changed:
            if self.closed:
                raise StoreClosed(f"{self.name} is no longer served")
            self.users += 1

    def __exit__(self, *_: object) -> None:
        """End a call of ``accept``."""
        with self.changed:
            self.users -= 1
            self.changed.notify_all()

    def close(self) -> None:
        """Stop accepting, and wait for running calls."""
        with self.changed:
            self.closed = True
            self.changed.wait_for(lambda: not self.users)


class Caller:
    """The peer that signed a request to a served agent, or its home."""

    def __init__(self, served: Served, signed: Signed, *, of_home: bool = False) -> None:
        self._of_home = of_home
        self.served, self.name, self._signed = served, signed.sender, signed
        self._pair: HomePair | None = None
        self.home: KnownHome | None = None
        """The home that signed a request; None if the peer itself did."""

    def prove_head(self, verb: str) -> None:
        """
        Raise Denied unless it has a key here and signed the head recently, with a new nonce.

        A caller without a key costs the same steps, so that the time of an answer tells no names.
        """
        signed, secrets, denied = self._signed, NO_KEY, None
        try:
            secrets = self._secrets()
        except Denied as error:
            denied = error
        proved = signed.proves_head(secrets, self.served.name, verb)
        if denied is not None:
            raise denied
        if not proved:
            raise self._not_signed(secrets)
        if signed.claim is not None:
            self.home = self._known_home(signed.claim)
        now = self._now()
        off = now - signed.timestamp
        if abs(off) > WINDOW:
            why = "clock: the signature is outside the time window"
            raise self.refused(why, f" by {off} s")
        if not self.served.nonces.add(signed, now):
            raise self.refused(why="it is a repetition")

    def _known_home(self, claim: KeyClaim) -> KnownHome:
        """Return the home that signed; raise Denied unless it is known and serves the sender."""
        homes, mark = self.served.homes, fingerprint_of(claim.public)
        home = homes.proved(claim)
        if home is None:
            cure = f", {mark}: onceward homes add"
            raise self.refused("key: no known home has it", cure, known=False)
        if self._of_home:
            return home
        if self.served.keys.exists(self.name):
            cure = f": onceward keys remove {self.name} leaves it to its home"
            raise self.refused("key: it has one of its own, and its home signed", cure)
        if why := homes.may_use(home, self.name):
            raise self.refused(why)
        return home

    def prove(self, body: bytes) -> None:
        """Raise Denied unless it signed the body."""
        secrets = self._secrets()
        if not self._signed.proves(secrets, body):
            raise self._not_signed(secrets)

    def check_names(self, sent: Parcel | Notice) -> None:
        """Compare the names in a body with the header that chose the secret, and with the url."""
        if sent.sender != self.name:
            raise self.refused(why="name: its body has a different one")
        if sent.recipient != self.served.name:
            raise Denied(HTTPStatus.MISDIRECTED_REQUEST)

    def notice(self, body: bytes, kind: NoticeKind) -> Notice:
        """Return the notice that it sent; raise Denied if that is another one."""
        notice = decode_notice(body)
        self.check_names(notice)
        if notice.kind != kind:
            raise Denied(HTTPStatus.UNPROCESSABLE_ENTITY)
        return notice

    def answer(self, body: bytes, status: int = HTTPStatus.OK) -> Response:
        """Return a signed answer; raise Denied if there is no key any more."""
        own, nonce = self.served.name, self._signed.nonce
        headers = signed_headers(self._secrets(), own, nonce, self._now(), body)
        return Response(body, status, headers, wire.ANSWER_TYPE)

    def tell(
        self, kind: NoticeKind, status: int = HTTPStatus.OK, *, limit: int = 0, detail: str = ""
    ) -> Response:
        """Return a signed answer with a notice."""
        notice = Notice(
            kind=kind,
            sender=self.served.name,
            recipient=self.name,
            at=self.served.clock.now(),
            limit=limit,
            detail=detail,
        )
        return self.answer(encode_notice(notice), status)

    def _now(self) -> int:
        return self.served.clock.now() // 1000

    def _secrets(self) -> tuple[Secret, ...]:
        """Return the secrets of the pair; raise Denied if there is no usable one."""
        if self._signed.claim is not None:
            return (self._of_homes(self._signed.claim),)
        try:
            return self.served.keys.secrets(self.name)
        except UnsafeKey as error:
            raise self.refused(str(error)) from error
        except UnknownKey as error:
            why, cure = "name or key: there is no key for it", f": onceward keys add {self.name}"
            raise self.refused(why, cure, known=False) from error

    def _of_homes(self, claim: KeyClaim) -> HomePair:
        """Return the keys of this home and of the one that a request names."""
        if self._pair is None:
            try:
                self._pair = self.served.homes.claimed(claim)
            except (UnknownKey, MissingExtra) as error:
                raise self.refused(str(error), known=False) from error
        if self._pair is None:
            why = "key: it is for another home, or this one has no key"
            raise self.refused(why, ": compare onceward homes show", known=False)
        return self._pair

    def _not_signed(self, secrets: tuple[Secret, ...]) -> Denied:
        if self._signed.claim is not None:
            why = "key: it is not signed with the key that it names"
            return self.refused(why, known=False)
        ours = " or ".join(fingerprint(each) for each in secrets if isinstance(each, bytes))
        why = "key: it is not signed with the key that is here"
        return self.refused(why, f", {ours}: compare onceward keys ls")

    def refused(self, why: str, more: str = "", *, known: bool = True) -> Denied:
        """Log why it is refused, for the operator; return the answer, which does not tell."""
        served = self.served
        served.denials.tell(why, agent=served.name, peer=self.name, known=known, cure=more)
        return Denied(HTTPStatus.UNAUTHORIZED)
