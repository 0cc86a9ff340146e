"""Where mailboxes are made and found: the home's directory says whose each is, its owner's file holds its messages."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final, TypeVar

from onceward.api.mailbox import Mailbox
from onceward.api.session import Session
from onceward.errors import InvalidArgument, NoMailbox
from onceward.model.clock import Millis
from onceward.model.settings import DAY
from onceward.runtime.channel_tasks import ChannelTasks
from onceward.runtime.deps import RuntimeDeps
from onceward.runtime.mailbox_reader import MailboxReader
from onceward.runtime.open_agents import OpenAgentFiles
from onceward.store.directory import mailboxes
from onceward.store.directory.database import DirectoryHandle
from onceward.store.directory.mailboxes import MailboxInfo
from onceward.store.mailboxes import MailboxRef

T = TypeVar("T")
TTL_MAX: Final = 1e9


class Mailboxes:
    """
    The mailboxes of the home.

    A public mailbox has a name, and everybody may find it. A private one has
    an id that cannot be guessed: whoever has it may send and read, nobody
    else can tell that it is there. Both end by their time to live; there is
    no other end.
    """

    def __init__(
        self,
        home: DirectoryHandle,
        deps: RuntimeDeps,
        session: Session,
        files: OpenAgentFiles,
        errands: ChannelTasks,
    ) -> None:
        self._tasks = errands
        self._db, self._home, self._deps, self._session, self._files = (
            deps.db,
            home,
            deps,
            session,
            files,
        )

    def ensure(
        self,
        name: str | None = None,
        *,
        ttl: float | None = DAY,
        public: bool = False,
        description: str = "",
    ) -> Mailbox:
        """
        Return a mailbox, made in our file if there was none.

        With *public* it bears *name*: lower-case letters and digits in dotted
        segments. Without a name a private one is made; its ``id`` is the only
        way to it. The first creation fixes *ttl* (seconds; None is for ever)
        for good: a later call returns what is there, whoever made it.

        Raises:
            NoMailbox: *name* is the id of a private mailbox that is not there.
            InvalidArgument: the name or the time to live breaks its rule.

        """
        if name is not None and not public:
            return self.open(name)
        secret, wanted = self._wanted(name, ttl, public=public, description=description)
        made, created = self._told(wanted, lambda: mailboxes.ensure(self._home.directory, wanted))
        return self._mailbox(made, secret, created=created)

    def create(
        self,
        name: str | None = None,
        *,
        ttl: float | None = DAY,
        public: bool = False,
        description: str = "",
    ) -> Mailbox:
        """
        Make a mailbox in our file; as ``ensure``, but only if there was none.

        Raises:
            DuplicateMailbox: one of that name is there; nothing was changed.

        """
        if name is not None and not public:
            msg = "the id of a private mailbox is minted: leave the name out, or say public=True"
            raise InvalidArgument(msg)
        secret, wanted = self._wanted(name, ttl, public=public, description=description)
        made = self._told(wanted, lambda: mailboxes.create(self._home.directory, wanted))
        return self._mailbox(made, secret, created=True)

    def _told(self, wanted: MailboxInfo, work: Callable[[], T]) -> T:
        """Change the directory; the home hears of public mailboxes, of their beginning now and of their end when it comes."""
        if wanted.public:
            self._tasks.begin()
        made = work()
        if wanted.public:
            self._tasks.run()
        return made

    def open(self, name: str) -> Mailbox:
        """Return a mailbox by its public name or its private id; raises NoMailbox, which does not tell one absence from another."""
        if not self._home.known:
            raise NoMailbox
        return self._mailbox(mailboxes.find(self._home.directory, name), name, created=False)

    def list(self) -> list[MailboxInfo]:
        """Return the public mailboxes by name; private ones are never listed."""
        return mailboxes.listed(self._home.directory) if self._home.known else []

    def _wanted(
        self, name: str | None, ttl: float | None, *, public: bool, description: str
    ) -> tuple[str, MailboxInfo]:
        secret = mailboxes.public_name(name or "") if public else mailboxes.new_secret()
        stored = secret if public else mailboxes.secret_name(secret)
        about = mailboxes.description(description)
        return secret, MailboxInfo(public, stored, self._db.agent, _millis(ttl), 0, None, about)

    def _mailbox(self, address: MailboxInfo, name: str, *, created: bool) -> Mailbox:
        ours = address.owner == self._db.agent
        db = self._files.file(address.owner)
        if db is None:
            raise NoMailbox
        reader = MailboxReader(db, MailboxRef(mailbox=address.key, expires_at=address.expires_at))
        deps = replace(self._deps, db=db)
        return Mailbox(address, reader, deps, self._session, id=name, created=created, ours=ours)

    def sweep(self, limit: int) -> int:
        """Forget mailboxes of the home that have expired; return how many of at most *limit*."""
        return mailboxes.sweep(self._home.directory, limit) if self._home.known else 0


def _millis(ttl: float | None) -> Millis | None:
    if ttl is None:
        return None
    if not isinstance(ttl, int | float) or isinstance(ttl, bool) or not 0.001 <= ttl <= TTL_MAX:  # noqa: PLR2004 - a millisecond
        msg = f"ttl {ttl!r} must be seconds, at least a millisecond, or None for ever"
        raise InvalidArgument(msg)
    return round(ttl * 1000)
