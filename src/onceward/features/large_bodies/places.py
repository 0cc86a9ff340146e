"""
Name the files of bodies: ``bodies/SENDER/RECIPIENT/ID.DIGEST`` in the home.

A file belongs to one message. Its digest is in the message, too, as an RFC 6920 name.
"""

from __future__ import annotations

import re
from base64 import urlsafe_b64encode
from hashlib import sha256
from pathlib import Path
from typing import Final

from onceward.file.directory import directory_path
from onceward.message.frame import OUR_REFERENCE
from onceward.message.names import AGENT

FOLDER: Final = "bodies"
DRAFTS: Final = ".drafts"
"""Folder beside those of recipients, for files that are being written."""
ID: Final = re.compile(r"[A-Za-z0-9._:-]{1,128}")
DIGEST: Final = re.compile(r"[A-Za-z0-9_-]{43}")


def bodies_of(file: Path) -> Path:
    """Return the folder of the bodies of the home to which an agent's file belongs."""
    return directory_path(file).with_name(FOLDER)


def digest(data: bytes) -> str:
    """Return the digest of a body, as its reference and the name of its file have it."""
    return urlsafe_b64encode(sha256(data).digest()).decode().rstrip("=")


def place(sender: str, recipient: str, message_id: str, reference: str) -> Path | None:
    """Return the path of a body in the folder of bodies; None if one of the names is unfit."""
    found = reference.removeprefix(OUR_REFERENCE)
    fits = (
        AGENT.fullmatch(sender)
        and AGENT.fullmatch(recipient)
        and ID.fullmatch(message_id)
        and DIGEST.fullmatch(found)
    )
    return Path(sender, recipient, f"{message_id}.{found}") if fits else None


def message_of(name: str) -> str:
    """Return the id of the message to which a file of that name belongs."""
    return name.rpartition(".")[0]
