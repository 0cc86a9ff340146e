"""
Keep the secrets that a home shares with its peers, to sign and verify.

A secret belongs to one pair of agents' homes. It is in ``keys/PEER`` beside the agents' files,
readable by its owner only, and never in a database, because databases are copied. Each line is a
secret of Standard Webhooks: ``whsec_`` and base64. All lines sign and verify, so during a rotation
the new secret, first, and the old one, second, are both valid until the peer has both.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
import secrets as randomness
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple, Protocol

from onceward.errors import InvalidArgument, UnknownKey, UnsafeKey
from onceward.file.file_checks import sync
from onceward.message.clock import Millis
from onceward.message.names import agent_name
from onceward.transports.network.private_files import (
    FILE_MAX,
    Stamp,
    exposed,
    stamp,
    write_private,
)

FOLDER: Final = "keys"
"""Folder of a home that holds its keys."""
PREFIX: Final = "whsec_"
SHORTEST: Final = 24
LONGEST: Final = 64
"""Bytes of a secret, as required by Standard Webhooks."""
SECRETS: Final = 2
"""Maximum secrets of a peer: the current one and, during a rotation, the previous one."""
SIGNATURES_MAX: Final = 8
"""Maximum signatures that a verifier compares."""


@dataclass(frozen=True, slots=True)
class KeyInfo:
    """The key of a peer, without its secrets."""

    peer: str
    created_at: Millis
    """When its newest secret was written."""
    mode_ok: bool
    """Whether only its owner can read it; otherwise it is not used."""
    count: int
    """Number of secrets in it: two during a rotation, 0 if it cannot be read."""
    fingerprint: str
    """Fingerprint of eight characters of each secret, which does not reveal it; newest first."""


class _Read(NamedTuple):
    stamp: Stamp
    secrets: tuple[bytes, ...]


class Keys:
    """The keys of a home; a changed file is read again at the next use."""

    def __init__(self, home: Path) -> None:
        self.folder = home / FOLDER
        self._read: dict[str, _Read] = {}

    def secrets(self, peer: str) -> tuple[bytes, ...]:
        """
        Return the secrets shared with *peer*, the newest first.

        Raises:
            UnknownKey: there is none: ``onceward keys new`` or ``keys add`` creates it.
            UnsafeKey: others can read or replace it, or it contains something else.

        """
        path = self._path(peer)
        try:
            now = stamp(path.stat())
            known = self._read.get(peer)
            if known is not None and known.stamp == now:
                return known.secrets
            self._read[peer] = found = _read(path, peer)
        except OSError as error:
            self._read.pop(peer, None)
            raise _no_key(peer, self.folder, error) from error
        return found.secrets

    def exists(self, peer: str) -> bool:
        """Return whether there is a key for *peer*, usable or not."""
        return self._path(peer).exists()

    def has(self, peer: str) -> bool:
        """Return whether there is a usable key for *peer*."""
        try:
            return bool(self.secrets(peer))
        except UnknownKey:
            return False

    def create(self, peer: str) -> str:
        """
        Create a secret for *peer* and return it, to give to the peer's operator.

        Raises:
            InvalidArgument: there is already a key, rotate or remove it; or there is no such home.

        """
        secret = new_secret()
        try:
            write_private(self._path(peer), f"{secret}\n", replace=False)
        except FileExistsError as error:
            cure = f"onceward keys rotate {peer}, or first keys remove {peer}"
            raise InvalidArgument(f"there is already a key for {peer}: {cure}") from error
        return secret

    def add(self, peer: str, secret: str) -> None:
        """
        Put a secret first, as the newest; keep the former newest one as the previous.

        Adding the newest again changes nothing.

        Raises:
            InvalidArgument: it is not a secret, or there is no such home.
            UnsafeKey: the existing file is not usable.

        """
        decode_secret(secret)
        lines = self._lines(peer)
        self._write(peer, [secret.strip(), *(line for line in lines if line != secret.strip())])

    def rotate(self, peer: str) -> str:
        """
        Put a new secret first and return it; the previous one stays valid until it is retired.

        Raises:
            UnknownKey: there is no key to rotate.

        """
        self.secrets(peer)
        secret = new_secret()
        self.add(peer, secret)
        return secret

    def retire(self, peer: str) -> None:
        """Delete the secret from before the last rotation; raise UnknownKey if there is no key."""
        self.secrets(peer)
        self._write(peer, self._lines(peer)[:1])

    def remove(self, peer: str) -> None:
        """Delete the key of *peer*, which can then neither send nor receive; raises UnknownKey."""
        path = self._path(peer)
        try:
            path.unlink()
        except FileNotFoundError as error:
            raise _no_key(peer, self.folder, error) from error
        sync(self.folder)

    def list(self) -> list[KeyInfo]:
        """Return the keys by peer."""
        try:
            names = sorted(os.listdir(self.folder))  # noqa: PTH208 - only names are needed
        except FileNotFoundError:
            return []
        return [self._info(name) for name in names if not name.startswith(".")]

    def _info(self, name: str) -> KeyInfo:
        found, secrets = (self.folder / name).stat(), tuple[bytes, ...]()
        with suppress(UnknownKey, InvalidArgument):
            secrets = self.secrets(name)
        return KeyInfo(
            name,
            found.st_mtime_ns // 1_000_000,
            not exposed(found, self.folder),
            len(secrets),
            " ".join(map(fingerprint, secrets)),
        )

    def _path(self, peer: str) -> Path:
        return self.folder / agent_name(peer)

    def _lines(self, peer: str) -> Sequence[str]:
        """Return the secrets of a peer as they are written; none if there is no file."""
        try:
            self.secrets(peer)
        except UnsafeKey:
            raise
        except UnknownKey:
            return ()
        return _words(self._path(peer).read_text(encoding="ascii"))

    def _write(self, peer: str, lines: Sequence[str]) -> None:
        text = "".join(f"{line}\n" for line in lines[:SECRETS])
        write_private(self._path(peer), text, replace=True)


# -- secrets and signatures ----------------------------------------------------------------------


def new_secret() -> str:
    """Return a secret of 32 random bytes as text."""
    return PREFIX + base64.b64encode(randomness.token_bytes(32)).decode()


def decode_secret(text: str) -> bytes:
    """Return the bytes of a secret; raise InvalidArgument without repeating the text."""
    word = text.strip()
    try:
        found = base64.b64decode(word.removeprefix(PREFIX), validate=True)
    except ValueError:
        found = b""
    if not word.startswith(PREFIX) or not SHORTEST <= len(found) <= LONGEST:
        msg = f"this is not a secret: one is {PREFIX} and base64 of {SHORTEST} to {LONGEST} bytes"
        raise InvalidArgument(msg)
    return found


def fingerprint(secret: bytes) -> str:
    """Return eight characters by which two operators can compare a secret without revealing it."""
    return hashlib.sha256(b"onceward key " + secret).hexdigest()[:8]


class PairOfKeys(Protocol):
    """The key pairs of two homes, in place of a secret that both know."""

    def sign(self, text: bytes) -> str:
        """Return our signature of *text*."""
        ...

    def verify(self, text: bytes, signature: str) -> bool:
        """Return whether *signature* is the other home's of *text*."""
        ...

    def headers(self) -> dict[str, str]:
        """Return the headers that name the keys of what we sign."""
        ...


Secret = bytes | PairOfKeys
"""A secret of two agents, or the keys of their homes."""


def sign(secret: Secret, id: str, timestamp: int, body: bytes) -> str:
    """Return the signature of a message as in Standard Webhooks: version, comma and base64."""
    text = _signed_text(id, timestamp, body)
    if not isinstance(secret, bytes):
        return secret.sign(text)
    return "v1," + base64.b64encode(hmac.digest(secret, text, "sha256")).decode()


def sign_all(secrets: Iterable[Secret], id: str, timestamp: int, body: bytes) -> str:
    """Return the signatures by each secret, with spaces between them."""
    return " ".join(sign(secret, id, timestamp, body) for secret in secrets)


def verify(secrets: Sequence[Secret], id: str, timestamp: int, body: bytes, signature: str) -> bool:
    """Return whether one of *secrets* made one of the signatures in *signature*."""
    given = [_decoded(word) for word in signature.split(" ")[:SIGNATURES_MAX]]
    text, proved = _signed_text(id, timestamp, body), False
    for secret in secrets:
        if not isinstance(secret, bytes):
            proved |= secret.verify(text, signature)
            continue
        mac = hmac.digest(secret, text, "sha256")
        for each in given:
            proved |= hmac.compare_digest(mac, each)
    return proved


def _signed_text(id: str, timestamp: int, body: bytes) -> bytes:
    return f"{id}.{timestamp}.".encode() + body


def _decoded(word: str) -> bytes:
    """Return the bytes of one signature; none for an unknown version."""
    version, _, text = word.partition(",")
    try:
        return base64.b64decode(text.encode("ascii"), validate=True) if version == "v1" else b""
    except ValueError:
        return b""


# -- files -----------------------------------------------------------------------------------------


def _read(path: Path, peer: str) -> _Read:
    with path.open("rb") as file:
        found = os.fstat(file.fileno())
        text = file.read(FILE_MAX)
    if exposed(found, path.parent):
        msg = (
            f"others can read or replace {path}, so it is not used:"
            f" chmod 700 {path.parent} && chmod 600 {path}, and rotate it"
        )
        raise UnsafeKey(msg, peer=peer)
    try:
        secrets = tuple(map(decode_secret, _words(text.decode("ascii"))))
    except ValueError as error:
        msg = f"{path} holds a line that is not a secret: remove it, and add the key again"
        raise UnsafeKey(msg, peer=peer) from error
    if not secrets:
        raise UnsafeKey(f"{path} holds no secret: remove it, and add the key again", peer=peer)
    return _Read(stamp(found), secrets[:SECRETS])


def _words(text: str) -> list[str]:
    return text.split()


def _no_key(peer: str, folder: Path, error: OSError) -> UnknownKey:
    if isinstance(error, FileNotFoundError):
        why = f"there is no key for {peer} in {folder}"
        return UnknownKey(f"{why}: onceward keys new {peer}, or keys add {peer}", peer=peer)
    return UnknownKey(f"the key for {peer} cannot be read: {error}", peer=peer)
