"""Read the body of a message from its file, and compare its digest."""

from __future__ import annotations

from pathlib import Path

from onceward.errors import BodyLost, StoreFault
from onceward.features.large_bodies import places
from onceward.file import open_files
from onceward.message.frame import OUR_REFERENCE, Frame


def load(frame: Frame) -> str:
    """
    Return the JSON text of a body, from a home of which this process has a file open.

    Raises:
        BodyLost: the body is missing or changed.
        StoreFault: its file could not be read now.

    """
    reference = frame.dataref or ""
    at = places.place(frame.sender, frame.recipient, frame.id, reference)
    if at is None:
        raise BodyLost(f"the body is at {reference}, which is not in a home: send it again")
    homes = {places.bodies_of(Path(each.path)) for each in list(open_files.files.values())}
    for path in sorted(home / at for home in homes):
        data = _read(path)
        if data is not None:
            return _checked(data, path, reference)
    raise BodyLost(f"the body of {frame.id} is missing: restore {places.FOLDER}/{at} in the home")


def _read(path: Path) -> bytes | None:
    """Return the content of a file; None if there is none."""
    try:
        return path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise StoreFault(f"the body {path} cannot be read: {error.strerror}") from error


def _checked(data: bytes, path: Path, reference: str) -> str:
    """Return a body as text; raise BodyLost unless it has the digest of its reference."""
    if places.digest(data) != reference.removeprefix(OUR_REFERENCE):
        raise BodyLost(f"the body {path} has changed since it was sent: restore that file")
    return data.decode()
