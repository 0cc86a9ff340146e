"""Store the bodies of sent messages, before the messages are committed."""

from __future__ import annotations

from functools import partial

from onceward.core.contract import Opening
from onceward.core.rows import peers
from onceward.core.rows.outbox import OutgoingMessage
from onceward.errors import BodyLost, TooLarge
from onceward.features.large_bodies import places, stores
from onceward.file.database import Database
from onceward.file.directory import OpenAgentFiles
from onceward.message.body import Payload
from onceward.message.frame import OUR_REFERENCE, Frame
from onceward.message.options import FrameHeaders
from onceward.message.settings import Settings
from onceward.message.vocabulary import CANCEL, PROGRESS


class SentBodies:
    """The bodies that one agent sends."""

    def __init__(
        self, db: Database, settings: Settings, files: OpenAgentFiles, store: stores.ExplainedStore
    ) -> None:
        self._db, self._files, self._store = db, files, store
        self._from, self._in_message = settings.large_body or 0, settings.max_body
        self.max_size = settings.max_large_body

    def keep(self, payload: Payload, size: int, headers: FrameHeaders, message_id: str) -> str:
        """
        Store a body durably; return its reference, "" if the message must carry the body.

        Raises:
            TooLarge: the recipient is not beside this file, and a message cannot carry it.
            DiskFull, StoreFault, StoreUnusable: it was not stored.

        """
        why = self._why_carried(size, headers)
        if why:
            if size > self._in_message:
                limit = f"body of {size} bytes exceeds max_body {self._in_message}"
                raise TooLarge(f"{limit}, and cannot be stored outside its message: {why}")
            return ""
        data = payload.text.encode()
        reference = OUR_REFERENCE + places.digest(data)
        name = places.place(self._db.agent, headers.recipient, message_id, reference)
        assert name is not None  # noqa: S101 - the names of a send are checked
        self._store.put(name, data)
        return reference

    def rename(self, message: OutgoingMessage, message_id: str) -> None:
        """Store the body of a message for another id, too."""
        reference = Frame.parse(message.text).dataref
        if reference is None:
            return
        named = partial(places.place, self._db.agent, message.recipient, reference=reference)
        old, new = named(message.id), named(message_id)
        assert old is not None and new is not None  # noqa: S101, PT018 - checked by the send
        data = self._store.get(old)
        if data is None:
            raise BodyLost(f"the body {old} is missing: send it again")
        self._store.put(new, data)

    def _why_carried(self, size: int, headers: FrameHeaders) -> str:
        """Return why a message must carry its body; "" if the body can be stored outside it."""
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


def bodies_of(opening: Opening) -> SentBodies:
    """Return the bodies that an opening sends."""
    deps = opening.deps
    return SentBodies(deps.db, deps.settings, opening.files, opening.once(stores.store_of))
