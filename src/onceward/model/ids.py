"""Message ids: UUIDv7 text, unique everywhere and sorted by the time they were minted."""

from __future__ import annotations

import secrets
from collections.abc import Callable

import uuid_utils

IdSource = Callable[[], str]
"""Mints one new message id at each call."""


def new_id() -> str:
    """Mint a UUIDv7; later calls in one process sort after earlier ones."""
    return str(uuid_utils.uuid7())


def new_token() -> str:
    """Mint 128 random bits as hex text, for epochs, owners and file identities."""
    return secrets.token_hex(16)
