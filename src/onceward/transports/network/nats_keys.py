"""Keep the key by which a NATS server identifies an agent; it gets only the public part."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Final

from onceward.errors import InvalidArgument, Unreachable
from onceward.message.names import agent_name
from onceward.transports.network.private_files import open_to_others, write_private

FOLDER: Final = "nats"
SEED_BYTES: Final = 32


def seed_path(home: Path, agent: str) -> Path:
    """Return the path of an agent's seed."""
    return home / FOLDER / f"{agent}.nk"


def create_seed(home: Path, agent: str) -> str:
    """
    Return the public key of an agent; create its seed if there is none.

    Raises:
        InvalidArgument: the name is invalid, there is no such home, other users may read the seed,
        or it is damaged.

    """
    path = seed_path(home, agent_name(agent))
    if not path.exists():
        with suppress(FileExistsError):  # another process was faster
            write_private(path, _new_seed(), replace=False)
    return _public_key(path)


def connect_options(home: Path, agent: str) -> dict[str, str]:
    """
    Return the options of a connection as *agent*; none if its home has no key.

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
    if open_to_others(path.stat()):
        raise Unreachable(f"other users may read {path}: chmod 600 {path}")
    return path.read_text(encoding="ascii", errors="replace").strip()


def _new_seed() -> str:
    import nkeys  # noqa: PLC0415 - an extra

    seed: bytes = nkeys.encode_seed(os.urandom(SEED_BYTES), nkeys.PREFIX_BYTE_USER)
    return seed.decode()


def _public_key(path: Path) -> str:
    import nkeys  # noqa: PLC0415 - an extra

    try:
        found: bytes = nkeys.from_seed(bytearray(_read(path).encode())).public_key
    except Unreachable as error:
        raise InvalidArgument(str(error)) from error
    except nkeys.NkeysError as error:
        msg = f"{path} contains no usable seed: {error or type(error).__name__}"
        raise InvalidArgument(msg) from error
    return found.decode()
