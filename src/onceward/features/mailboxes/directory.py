"""Store the mailboxes of a home: owner and expiry; for a private one only its id's hash."""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterable
from dataclasses import asdict, replace
from hashlib import sha256
from typing import Final

from pydantic_core import to_json

from onceward.core.accept.policy import ParsedFrame
from onceward.errors import DuplicateMailbox, InvalidArgument, UnknownMailbox
from onceward.file.directory import DirectoryDatabase, DirectoryHandle
from onceward.file.sql_parts import columns
from onceward.file.transaction import StoreTransaction
from onceward.message.clock import iso
from onceward.message.error_text import Hint
from onceward.message.mailbox import MailboxInfo
from onceward.message.names import quoted
from onceward.message.vocabulary import reason_text

NAME: Final = re.compile(r"[a-z0-9]+(?:\.[a-z0-9]+)*")
NAME_MAX: Final = 128
COLUMNS: Final = columns(MailboxInfo)
FIND: Final = f"""
SELECT {COLUMNS}
  FROM mailboxes
 WHERE public = ? AND name = ? AND (expires_at IS NULL OR expires_at > ?)
"""
PUBLIC: Final = f"""
SELECT {COLUMNS}
  FROM mailboxes
 WHERE public = 1 AND (expires_at IS NULL OR expires_at > ?)
 ORDER BY name
"""
OVER: Final = """
DELETE FROM mailboxes
 WHERE public = ? AND name = ? AND expires_at <= ?
RETURNING public, name, owner
"""
ENSURE: Final = f"""
INSERT INTO mailboxes (public, name, owner, ttl, created_at, expires_at, description,
                       newest_per_key)
VALUES (:public, :name, :owner, :ttl, :created_at, :expires_at, :description, :newest_per_key)
ON CONFLICT (public, name) DO NOTHING
RETURNING {COLUMNS}
"""
SWEEP: Final = """
DELETE FROM mailboxes
 WHERE number IN (SELECT number
                    FROM mailboxes
                   WHERE expires_at <= ? AND expires_at IS NOT NULL LIMIT ?)
RETURNING public, name, owner
"""
DUE: Final = "SELECT 1 FROM mailboxes WHERE expires_at <= ? AND expires_at IS NOT NULL LIMIT 1"
NOTICE: Final = "INSERT INTO system_notices (agent, topic, body, at) VALUES (?, ?, ?, ?)"
CREATED: Final = "_system.mailbox.created"
ENDED: Final = "_system.mailbox.expired"


def new_secret() -> str:
    """Mint the id of a private mailbox: 122 random bits, the only access to it."""
    return str(uuid.uuid4())


def public_name(name: str) -> str:
    """Return *name* if it is valid for a public mailbox; raise InvalidArgument otherwise."""
    if not isinstance(name, str) or len(name) > NAME_MAX or NAME.fullmatch(name) is None:
        raise InvalidArgument(
            f"a public mailbox has a name of 1 to {NAME_MAX} lower-case letters and digits"
            f" in dotted segments, not {quoted(name, 20)}"
        )
    return name


def _entry(name: str) -> tuple[int, str]:
    """Return the (public, name) under which the directory stores a name or a private id."""
    if not isinstance(name, str):
        raise UnknownMailbox
    if NAME.fullmatch(name) is not None:
        return 1, name
    return 0, sha256(name.encode(errors="replace")).hexdigest()


def find(directory: DirectoryDatabase, name: str) -> MailboxInfo:
    """
    Return a mailbox by its public name or its private id.

    Raises:
        UnknownMailbox: there is none; the error does not say whether there ever was one.

    """
    return _find(directory.read(FIND, (*_entry(name), directory.now())))


def _find(rows: list[tuple[object, ...]]) -> MailboxInfo:
    if not rows:
        raise UnknownMailbox
    return MailboxInfo(*rows[0])  # type: ignore[arg-type]  # columns of FIND


def unknown(directory: DirectoryDatabase, keys: Iterable[str], owner: str) -> set[str]:
    """Return the keys of frames that belong to no mailbox of *owner*."""
    missing: set[str] = set()
    for key in keys:
        named = (0, key[1:]) if key.startswith("~") else (1, key)
        rows = directory.read(FIND, (*named, directory.now()))
        if not rows or rows[0][2] != owner:
            missing.add(key)
    return missing


def listed(directory: DirectoryDatabase) -> list[MailboxInfo]:
    """Return the public mailboxes by name."""
    return [_find([row]) for row in directory.read(PUBLIC, (directory.now(),))]


def ensure(directory: DirectoryDatabase, wanted: MailboxInfo) -> tuple[MailboxInfo, bool]:
    """
    Return the mailbox, created if there was none, and whether this call created it.

    Its time to live is that of the first call. An expired one no longer exists, so a new one is
    created.
    """
    return directory.write(lambda tx: _ensure(tx, wanted))


def create(directory: DirectoryDatabase, wanted: MailboxInfo) -> MailboxInfo:
    """Create a mailbox; raise DuplicateMailbox if one of that name exists."""
    made, created = ensure(directory, wanted)
    if not created:
        ends = "without an end" if made.expires_at is None else f"until {iso(made.expires_at)}"
        msg = f"the mailbox {made.name} already exists, {ends}: {Hint.USE_MAILBOX}"
        raise DuplicateMailbox(msg)
    return made


def _ensure(tx: StoreTransaction, wanted: MailboxInfo) -> tuple[MailboxInfo, bool]:
    _tell_ended(tx, tx.rows(OVER, (wanted.public, wanted.name, tx.now)))
    expires_at = None if wanted.ttl is None else tx.now + wanted.ttl
    fresh = replace(wanted, created_at=tx.now, expires_at=expires_at)
    made = tx.rows(ENSURE, asdict(fresh))
    if made and wanted.public:
        body = {
            "mailbox": wanted.name,
            "owner": wanted.owner,
            "ttl": wanted.ttl,
            "expires_at": expires_at,
            "description": wanted.description,
        }
        tx.run(NOTICE, (wanted.owner, CREATED, to_json(body).decode(), tx.now))
    return _find(made or tx.rows(FIND, (wanted.public, wanted.name, tx.now))), bool(made)


def sweep(directory: DirectoryDatabase, limit: int) -> int:
    """Delete expired mailboxes, which can no longer be found; return how many."""
    now = directory.now()
    if not directory.read(DUE, (now,)):
        return 0

    def work(tx: StoreTransaction) -> int:
        gone = tx.rows(SWEEP, (tx.now, limit))
        _tell_ended(tx, gone)
        return len(gone)

    return directory.write(work)


def _tell_ended(tx: StoreTransaction, gone: list[tuple[object, ...]]) -> None:
    for public, name, owner in gone:
        if public:
            tx.run(
                NOTICE, (owner, ENDED, to_json({"mailbox": name, "owner": owner}).decode(), tx.now)
            )


def secret_name(secret: str) -> str:
    """Return the hash under which a private id is stored."""
    return _entry(secret)[1]


NO_MAILBOX: Final = reason_text(
    "no_mailbox", "the recipient has no such mailbox, or no longer has it"
)


def inspect(home: DirectoryHandle, agent: str, frames: list[ParsedFrame]) -> list[ParsedFrame]:
    """Return the frames; refuse those for a mailbox that *agent* does not have."""
    keys = {each.frame.mailbox for each in frames if each.frame and each.frame.mailbox}
    if home.known:
        keys = unknown(home.directory, keys, agent)
    return [
        each._replace(problem=NO_MAILBOX)
        if each.frame is not None and each.frame.mailbox in keys
        else each
        for each in frames
    ]
