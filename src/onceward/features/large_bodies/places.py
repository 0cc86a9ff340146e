"""
Name stored bodies: ``SENDER/RECIPIENT/ID.DIGEST``.

A stored body belongs to one message. Its digest is in the message, too, as an RFC 6920 name.
"""

from __future__ import annotations

import re
from base64 import urlsafe_b64encode
from hashlib import sha256
from typing import Final

from onceward.message.frame import OUR_REFERENCE
from onceward.message.names import AGENT

DRAFTS: Final = ".drafts"
"""Folder beside those of recipients, for files that are being written."""
ID: Final = re.compile(r"[A-Za-z0-9._:-]{1,128}")
DIGEST: Final = re.compile(r"[A-Za-z0-9_-]{43}")


def digest(data: bytes) -> str:
    """Return the digest of a body, as its reference and its name have it."""
    return urlsafe_b64encode(sha256(data).digest()).decode().rstrip("=")


def place(sender: str, recipient: str, message_id: str, reference: str) -> str | None:
    """Return the name of a body in a store; None if a part of it is unfit."""
    found = reference.removeprefix(OUR_REFERENCE)
    fits = (
        AGENT.fullmatch(sender)
        and AGENT.fullmatch(recipient)
        and ID.fullmatch(message_id)
        and DIGEST.fullmatch(found)
    )
    return f"{sender}/{recipient}/{message_id}.{found}" if fits else None


def recipient_of(name: str) -> str:
    """Return the recipient of the message to which a body of that name belongs."""
    return name.partition("/")[2].rpartition("/")[0]


def message_of(name: str) -> str | None:
    """Return the id of the message to which a body of that name belongs; None for other names."""
    message_id, _, found = name.rpartition("/")[2].rpartition(".")
    return message_id if DIGEST.fullmatch(found) else None
