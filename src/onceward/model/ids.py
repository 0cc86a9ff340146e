"""Mint message ids: UUIDv7 text, unique everywhere and sorted by time."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from itertools import repeat, starmap
from typing import Final

import uuid_utils

IdSource = Callable[[], str]
"""Mints one new message id at each call."""


new_id: Final[IdSource] = map(str, starmap(uuid_utils.uuid7, repeat(()))).__next__
"""Mint a UUIDv7, sorting after earlier ones of this process; in C, because every send calls it."""


def new_token() -> str:
    """Mint 128 random bits as hex text, for epochs, owners and file identities."""
    return secrets.token_hex(16)
