"""Read the body of a message from its store, and compare its digest."""

from __future__ import annotations

from collections.abc import Iterator

from onceward.errors import BodyLost
from onceward.features.large_bodies import places, stores
from onceward.features.large_bodies.folder import FOLDER, Folder
from onceward.features.large_bodies.stores import ExplainedStore
from onceward.file import open_files
from onceward.message.frame import OUR_REFERENCE, Frame


def load(frame: Frame) -> str:
    """
    Return the JSON text of a body, from a home or a store that this process has open.

    Raises:
        BodyLost: the body is missing or changed.
        StoreFault: it could not be read now.

    """
    reference = frame.dataref or ""
    name = places.place(frame.sender, frame.recipient, frame.id, reference)
    if name is None:
        raise BodyLost(f"the body is at {reference}, which is not in a home: send it again")
    for store in _stores():
        data = store.get(name)
        if data is not None:
            return _checked(data, name, reference)
    raise BodyLost(
        f"the body of {frame.id} is missing: restore {FOLDER}/{name} in the home, "
        "or set large_body_store as its sender does"
    )


def _stores() -> Iterator[ExplainedStore]:
    """Yield the folders of the homes of open files, and then other stores."""
    folders = {folder.path: folder for folder in map(Folder, list(open_files.files.values()))}
    yield from (ExplainedStore(folders[path]) for path in sorted(folders))
    yield from map(ExplainedStore, list(stores.opened))


def _checked(data: bytes, name: str, reference: str) -> str:
    """Return a body as text; raise BodyLost unless it has the digest of its reference."""
    if places.digest(data) != reference.removeprefix(OUR_REFERENCE):
        raise BodyLost(f"the body {name} has changed since it was sent: restore it")
    return data.decode()
