"""
Choose the store of an agent's large bodies: its home's folder, a bucket, or a store of the user.

A store that is not the folder of a home has one owner for each agent's name: the file that wrote
``NAME/.owner`` first. Maintenance removes bodies of messages that its file does not know, so two
homes in one folder of a bucket would remove each other's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from errno import EDQUOT, ENOSPC
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from onceward.core.contract import Opening
from onceward.errors import DiskFull, OncewardError, StoreFault, StoreUnusable
from onceward.features.large_bodies.folder import Folder
from onceward.file.database import Database
from onceward.message.error_text import error_text

if TYPE_CHECKING:
    from onceward.features.large_bodies.bucket import Bucket
    from onceward.message.body import LargeBodyStore

OWNER: Final = ".owner"
FULL: Final = {ENOSPC, EDQUOT}
opened: Final = list["LargeBodyStore"]()
"""Stores of the postboxes that this process has open, where its handlers look for bodies."""


class ExplainedStore:
    """A store whose errors are those of onceward."""

    def __init__(self, store: LargeBodyStore, check: Callable[[], None] = lambda: None) -> None:
        self._store, self._check = store, check

    def put(self, name: str, data: bytes) -> None:
        """Store a body durably."""
        with _explained(f"the body {name} cannot be stored"):
            self._check()
            self._store.put(name, data)

    def get(self, name: str) -> bytes | None:
        """Return a body; None if it is missing."""
        with _explained(f"the body {name} cannot be read"), suppress(FileNotFoundError):
            return self._store.get(name)
        return None

    def delete(self, name: str) -> None:
        """Delete a body, if it is there."""
        with _explained(f"the body {name} cannot be deleted"):
            self._store.delete(name)

    def names(self, agent: str) -> Iterable[tuple[str, datetime]]:
        """Yield the names of what an agent has sent, and when each was stored."""
        with _explained(f"the bodies of {agent} cannot be listed"):
            self._check()
            yield from self._store.names(agent)


class Owned:
    """The check that a store has bodies of no other file of an agent's name."""

    def __init__(self, store: LargeBodyStore, db: Database) -> None:
        self._store, self._db, self._done = store, db, False

    def __call__(self) -> None:
        """Enter this file as the owner if there is none; raise StoreUnusable for another's."""
        if self._done:
            return
        name, mine = f"{self._db.agent}/{OWNER}", self._db.file_id.encode()
        if self._owner(name) is None:
            self._store.put(name, mine)
        if self._owner(name) != mine:
            raise StoreUnusable(
                f"the large_body_store has bodies of another file of {self._db.agent}: "
                f"give each home a folder of its own, or delete {name} if that file is gone"
            )
        self._done = True

    def _owner(self, name: str) -> bytes | None:
        with suppress(FileNotFoundError):
            return self._store.get(name)
        return None


@contextmanager
def _explained(what: str) -> Iterator[None]:
    """Raise errors of a store as those of onceward."""
    try:
        yield
    except OncewardError:
        raise
    except Exception as error:
        full = isinstance(error, OSError) and error.errno in FULL
        kind = DiskFull if full else StoreFault
        raise kind(f"{what}: {error_text(error)}") from error


@lru_cache(maxsize=8)
def bucket_at(uri: str) -> Bucket:
    """Return the bucket of a URI, the same one for all files of this process."""
    from onceward.features.large_bodies.bucket import Bucket  # noqa: PLC0415 - it needs an extra

    return Bucket(uri)


def store_of(opening: Opening) -> ExplainedStore:
    """Return the store of the bodies that an opening's agent sends."""
    db = opening.deps.db
    store = _chosen(opening)
    return ExplainedStore(Folder(db)) if store is None else ExplainedStore(store, Owned(store, db))


def use(opening: Opening) -> None:
    """Let handlers of this process read the bodies of an opening's store, while it is open."""
    if (store := _chosen(opening)) is not None:
        opened.append(store)
        opening.closing.callback(_forget, store)


def _chosen(opening: Opening) -> LargeBodyStore | None:
    chosen = opening.deps.settings.large_body_store
    return bucket_at(chosen) if isinstance(chosen, str) else chosen


def _forget(store: LargeBodyStore) -> None:
    """Remove one of a store's entries: other openings have their own."""
    for index, each in enumerate(opened):
        if each is store:
            del opened[index]
            return
