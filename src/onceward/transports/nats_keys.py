"""Keep the key by which a NATS server knows an agent; the server is told the public part only."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from onceward.errors import InvalidArgument, Unreachable
from onceward.model.names import agent_name

FOLDER: Final = "nats"
SEED_BYTES: Final = 32
PRIVATE: Final = 0o600
OTHERS: Final = 0o077
"""Bits of a file's mode that concern other users."""


def seed_path(home: Path, agent: str) -> Path:
    """Return the path of an agent's seed."""
    return home / FOLDER / f"{agent}.nk"


def create_seed(home: Path, agent: str) -> str:
    """
    Return the public key of an agent; its seed is made if there is none.

    Raises:
        InvalidArgument: the name is none, other users may read the seed, or it is damaged.

    """
    path = seed_path(home, agent_name(agent))
    if not path.exists():
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        made = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, PRIVATE)
        with os.fdopen(made, "wb") as file:
            file.write(_new_seed())
    return _public_key(path)


def connect_options(home: Path, agent: str) -> dict[str, str]:
    """
    Return the options of a connection as *agent*; none where its home holds no key.

    Raises:
        Unreachable: other users may read the key.

    """
    seed, creds = seed_path(home, agent), home / FOLDER / f"{agent}.creds"
    if seed.exists():
        return {"nkeys_seed_str": _read(seed)}
    if creds.exists():
        _read(creds)
        return {"user_credentials": str(creds)}
    return {}


def _read(path: Path) -> str:
    if os.name != "nt" and path.stat().st_mode & OTHERS:
        msg = f"other users may read {path}: chmod 600 {path}"
        raise Unreachable(msg)
    return path.read_text(encoding="ascii").strip()


def _new_seed() -> bytes:
    import nkeys  # noqa: PLC0415 - an extra

    seed: bytes = nkeys.encode_seed(os.urandom(SEED_BYTES), nkeys.PREFIX_BYTE_USER)
    return seed


def _public_key(path: Path) -> str:
    import nkeys  # noqa: PLC0415 - an extra

    try:
        found: bytes = nkeys.from_seed(bytearray(_read(path).encode())).public_key
    except Unreachable as error:
        raise InvalidArgument(str(error)) from error
    except nkeys.NkeysError as error:
        msg = f"{path} holds no usable seed: {error or type(error).__name__}"
        raise InvalidArgument(msg) from error
    return found.decode()
