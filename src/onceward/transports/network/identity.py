"""
Keep the key pair of a home, by which other homes recognise all of its agents.

It is an Ed25519 key in ``identity/home.key`` beside the agents' files, readable by its owner only.
Others store its fingerprint. A rotation replaces the key; the old one signs the new one before it
is deleted, and this chain travels with each signature.
"""

from __future__ import annotations

import base64
import fcntl
import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from onceward.errors import InvalidArgument, UnknownKey, UnsafeKey
from onceward.message.clock import Millis, SystemClock
from onceward.message.extras import needs
from onceward.message.names import IDENTITY
from onceward.transports.network.private_files import (
    FILE_MAX,
    Stamp,
    exposed,
    stamp,
    write_private,
)

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

PREFIX: Final = "SHA256:"
"""Begins a fingerprint, which is written as those of SSH."""
KEY_BYTES: Final = 32
SIGNATURE_BYTES: Final = 64
ROTATIONS_MAX: Final = 8
"""Maximum former keys that a home remembers: a neighbour that missed more must be added again."""
Link = tuple[bytes, bytes]
"""A former public key, and its signature of the next one."""


@dataclass(frozen=True, slots=True)
class OwnKey:
    """The key pair of a home, and its former keys."""

    private: Ed25519PrivateKey
    public: bytes
    created_at: Millis
    former: tuple[Link, ...]
    """The newest first; each signs the key before it."""

    @property
    def fingerprint(self) -> str:
        """The fingerprint of its public key."""
        return fingerprint_of(self.public)

    def known_as(self, fingerprint: str) -> bool:
        """Return whether the home has, or had, the key of a fingerprint."""
        return fingerprint in map(fingerprint_of, (self.public, *(old for old, _ in self.former)))

    def sign(self, text: bytes) -> bytes:
        """Return the signature of *text*."""
        return self.private.sign(text)

    def chain(self) -> str:
        """Return the former keys and their signatures as text for a header."""
        return ",".join(f"{encoded(old)}:{encoded(sig)}" for old, sig in self.former)


def fingerprint_of(public: bytes) -> str:
    """Return the fingerprint of a public key, which people can compare."""
    digest = base64.b64encode(hashlib.sha256(b"onceward home " + public).digest()).decode()
    return PREFIX + digest.rstrip("=")


def check_fingerprint(text: str) -> str:
    """Return *text*; raise InvalidArgument unless it is a fingerprint."""
    body = text.removeprefix(PREFIX)
    if text == body or decoded(f"{body}=", KEY_BYTES) is None:
        msg = f"a fingerprint is {PREFIX} and 43 characters: onceward homes show prints it there"
        raise InvalidArgument(msg)
    return text


def encoded(data: bytes) -> str:
    """Return bytes as base64."""
    return base64.b64encode(data).decode()


def decoded(text: str, length: int) -> bytes | None:
    """Return the bytes of base64 if they are so many, else None."""
    try:
        found = base64.b64decode(text.encode("ascii"), validate=True)
    except ValueError:
        return None
    return found if len(found) == length else None


def verified(public: bytes, signature: bytes, text: bytes) -> bool:
    """Return whether the owner of *public* signed *text*."""
    keys, invalid = _library()
    try:
        keys.Ed25519PublicKey.from_public_bytes(public).verify(signature, text)
    except invalid:
        return False
    return True


def former_of(public: bytes, chain: str) -> list[bytes]:
    """Return the former keys of a home whose signatures, as text of a header, lead to *public*."""
    found, newer = list[bytes](), public
    for word in chain.split(",")[:ROTATIONS_MAX] if chain else ():
        old, _, sig = word.partition(":")
        key, signature = decoded(old, KEY_BYTES), decoded(sig, SIGNATURE_BYTES)
        if (
            key is None
            or signature is None
            or not verified(key, signature, _succession(key, newer))
        ):
            break
        found.append(key)
        newer = key
    return found


def _succession(old: bytes, new: bytes) -> bytes:
    return f"onceward-home-rotation {fingerprint_of(old)} {fingerprint_of(new)}".encode()


class IdentityFile:
    """The key of one home on its disk; a changed file is read again at the next use."""

    def __init__(self, home: Path) -> None:
        self.path = home / IDENTITY
        self._read: tuple[Stamp, OwnKey] | None = None

    def load(self) -> OwnKey | None:
        """
        Return the key; None if the home has none yet.

        Raises:
            UnsafeKey: others can read or replace it, or it is damaged.
            MissingExtra: the library for it is not installed.

        """
        try:
            now = stamp(self.path.stat())
            if self._read is None or self._read[0] != now:
                self._read = _read(self.path)
        except FileNotFoundError:
            self._read = None
            return None
        except OSError as error:
            raise UnknownKey(f"the key of this home cannot be read: {error}") from error
        return self._read[1]

    def create(self) -> OwnKey:
        """
        Return the key, created if the home has none; of two processes one creates it.

        Raises:
            InvalidArgument: there is no such home.
            UnsafeKey, MissingExtra: as for ``load``.

        """
        found = self.load()
        if found is None:
            with suppress(FileExistsError):  # another process was faster
                write_private(self.path, _line(_new_key()), replace=False)
            found = self.load()
            assert found is not None  # noqa: S101 - it is never removed
        return found

    def rotate(self) -> OwnKey:
        """
        Replace the key by a new one that the old one has signed; a crash leaves either.

        Raises:
            UnknownKey: there is none: ``onceward homes show`` creates it.

        """
        with _alone(self.path.parent):
            old = self.load()
            if old is None:
                raise UnknownKey("this home has no key to rotate: onceward homes show creates one")
            new = _new_key()
            public = _public(new)
            former = ((old.public, old.sign(_succession(old.public, public))), *old.former)
            lines = [f"former {encoded(key)} {encoded(sig)}\n" for key, sig in former]
            write_private(self.path, _line(new) + "".join(lines[:ROTATIONS_MAX]), replace=True)
            found = self.load()
            assert found is not None  # noqa: S101 - it was written
            return found


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Hold a folder's lock: of two rotations at once, neighbours may have learned the lost one."""
    try:
        handle = os.open(folder, os.O_RDONLY)
    except FileNotFoundError:
        yield
        return
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _library() -> tuple[Any, type[Exception]]:
    with needs("homes", "the key of a home"):
        from cryptography.exceptions import InvalidSignature  # noqa: PLC0415 - an extra
        from cryptography.hazmat.primitives.asymmetric import ed25519  # noqa: PLC0415
    return ed25519, InvalidSignature


def _new_key() -> Ed25519PrivateKey:
    made: Ed25519PrivateKey = _library()[0].Ed25519PrivateKey.generate()
    return made


def _public(key: Ed25519PrivateKey) -> bytes:
    return key.public_key().public_bytes_raw()


def _line(key: Ed25519PrivateKey) -> str:
    return f"ed25519 {encoded(key.private_bytes_raw())} {SystemClock().now()}\n"


def _read(path: Path) -> tuple[Stamp, OwnKey]:
    with path.open("rb") as file:
        found = os.fstat(file.fileno())
        text = file.read(FILE_MAX)
    if exposed(found, path.parent):
        raise UnsafeKey(
            f"others can read or replace {path}, so it is not used: chmod 700 {path.parent} && "
            f"chmod 600 {path}, and onceward homes rotate"
        )
    try:
        first, *others = text.decode("ascii").splitlines()
        return stamp(found), _parsed(first.split(), [line.split() for line in others])
    except ValueError as error:
        msg = f"{path} is not the key of a home: restore it, or remove it and be added again"
        raise UnsafeKey(msg) from error


def _parsed(first: list[str], others: list[list[str]]) -> OwnKey:
    kind, seed, created_at = first
    private = decoded(seed, KEY_BYTES)
    if kind != "ed25519" or private is None:
        raise ValueError
    key = _library()[0].Ed25519PrivateKey.from_private_bytes(private)
    former = list[Link]()
    for word, old, sig in others:
        found = decoded(old, KEY_BYTES), decoded(sig, SIGNATURE_BYTES)
        if word != "former" or found[0] is None or found[1] is None:
            raise ValueError
        former.append((found[0], found[1]))
    return OwnKey(key, _public(key), int(created_at), tuple(former))
