"""
Store the bodies of sent messages, before the messages are committed.

A body is written to a draft, made durable, and then gets its name. A crash leaves a draft, or a
file of a message that was never committed: ``sweeping`` removes both.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable
from errno import EDQUOT, ENOSPC
from functools import partial
from pathlib import Path
from typing import NoReturn

from onceward.core.contract import Opening
from onceward.core.rows import peers
from onceward.core.rows.outbox import OutgoingMessage
from onceward.errors import DiskFull, StoreFault, TooLarge
from onceward.features.large_bodies import places
from onceward.file import file_checks
from onceward.file.database import Database
from onceward.file.directory import OpenAgentFiles
from onceward.message.body import Payload
from onceward.message.frame import OUR_REFERENCE, Frame, FrameHeaders
from onceward.message.settings import Settings
from onceward.message.vocabulary import CANCEL, PROGRESS


class HomeBodies:
    """The bodies that one agent sends, in the home of its file."""

    def __init__(self, db: Database, settings: Settings, files: OpenAgentFiles) -> None:
        self._db, self._files = db, files
        self._from, self._in_message = settings.large_body or 0, settings.max_body
        self.max_size = settings.max_large_body
        self._folder = places.bodies_of(Path(db.path))
        self._made: set[Path] = set()

    def keep(self, payload: Payload, size: int, headers: FrameHeaders, message_id: str) -> str:
        """
        Store a body durably; return its reference, "" if the message must carry the body.

        Raises:
            TooLarge: the recipient is not beside this file, and a message cannot carry it.
            DiskFull, StoreFault: it was not stored.

        """
        why = self._why_carried(size, headers)
        if why:
            if size > self._in_message:
                limit = f"body of {size} bytes exceeds max_body {self._in_message}"
                raise TooLarge(f"{limit}, and cannot be a file of its own: {why}")
            return ""
        data = payload.text.encode()
        reference = OUR_REFERENCE + places.digest(data)
        at = places.place(self._db.agent, headers.recipient, message_id, reference)
        assert at is not None  # noqa: S101 - the names of a send are checked
        self._store(at, partial(self._write, data))
        return reference

    def rename(self, message: OutgoingMessage, message_id: str) -> None:
        """Store the body of a message for another id, too."""
        reference = Frame.parse(message.text).dataref
        if reference is None:
            return
        named = partial(places.place, self._db.agent, message.recipient, reference=reference)
        old, new = named(message.id), named(message_id)
        assert old is not None and new is not None  # noqa: S101, PT018 - checked by the send
        self._store(new, partial(os.link, self._folder / old))

    def _why_carried(self, size: int, headers: FrameHeaders) -> str:
        """Return why a message must carry its body; "" if the body can be a file."""
        if size < self._from:
            return f"large_body is {self._from}"
        if headers.channel or headers.mailbox or headers.kind in {PROGRESS, CANCEL}:
            return "messages of channels and mailboxes, progress and cancellations carry theirs"
        if not self._is_here(headers.recipient):
            return (
                f"the file of {headers.recipient} is not beside this one; "
                "raise max_body on both sides, or send a reference to a store that both reach"
            )
        return ""

    def _is_here(self, recipient: str) -> bool:
        """Return whether a recipient's file is beside ours, and messages reach it there."""
        return (
            peers.url_of(self._db.read, recipient) is None
            and self._files.path(recipient) is not None
        )

    def _store(self, at: Path, write: Callable[[Path], None]) -> None:
        """Let a function write a draft; make it durable under its name."""
        draft = self._folder / self._db.agent / places.DRAFTS / secrets.token_hex(8)
        final = self._folder / at
        try:
            self._make(draft.parent)
            self._make(final.parent)
            write(draft)
            draft.replace(final)
            self._sync(final.parent)
        except OSError as error:
            draft.unlink(missing_ok=True)
            _raise(final, error)

    def _write(self, data: bytes, draft: Path) -> None:
        """Write a body that the readers of the agent's file may read."""
        mode = self._mode()
        with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
            file.write(data)
        at = self._db.now() / 1000
        os.utime(draft, (at, at))
        self._sync(draft)

    def _mode(self) -> int:
        """Return the mode of the agent's file without its x bits."""
        return Path(self._db.path).stat().st_mode & 0o666

    def _make(self, folder: Path) -> None:
        """Create a folder with those around it, durably; look once for each."""
        if folder in self._made:
            return
        mode = self._mode()
        for each in (self._folder, self._folder / self._db.agent, folder):
            each.mkdir(mode | (mode & 0o444) >> 2, exist_ok=True)
            self._sync(each.parent)  # it may be new, and made by a process that was killed since
        self._made.add(folder)

    def _sync(self, path: Path) -> None:
        if self._db.durability == "safe":
            file_checks.sync(path)


def _raise(path: Path, error: OSError) -> NoReturn:
    kind = DiskFull if error.errno in {ENOSPC, EDQUOT} else StoreFault
    raise kind(f"the body {path} cannot be written: {error.strerror}") from error


def store_of(opening: Opening) -> HomeBodies:
    """Return the bodies that an opening sends."""
    return HomeBodies(opening.deps.db, opening.deps.settings, opening.files)
