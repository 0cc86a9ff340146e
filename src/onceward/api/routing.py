"""Find the transport that reaches a recipient."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import entry_points
from pathlib import Path

from onceward.db import file_checks, open_files
from onceward.db.database import Database
from onceward.errors import Unreachable
from onceward.model.names import AGENT
from onceward.model.parcel import Answer, Parcel
from onceward.model.settings import Settings
from onceward.runtime.receiver import Receiver
from onceward.store import peers
from onceward.store.directory.database import DirectoryHandle
from onceward.transports.base import Features, Transport
from onceward.transports.file import FileTransport
from onceward.transports.file_slots import Opened
from onceward.transports.memory import MemoryTransport

GROUP = "onceward.transports"


class TransportRouter:
    """
    The transports of one postbox and the peers that they reach.

    A peer is reached at its registered url, else by the file of its name in
    our own folder. Other packages add schemes by the entry point group
    ``onceward.transports``.
    """

    def __init__(
        self,
        db: Database,
        *,
        settings: Settings,
        transports: Mapping[str, Transport] | None,
        vfs: str | None,
    ) -> None:
        self._db, self._settings, self._vfs = db, settings, vfs
        self._transports: dict[str, Transport] = dict(transports or {})
        self._transports.setdefault("file", FileTransport(self._open_file))
        self._transports.setdefault("memory", MemoryTransport())

    def features(self) -> dict[str, Features]:
        """Return the features of each known scheme."""
        foreign = {
            point.name: Features(schemes=frozenset({point.name}))
            for point in entry_points(group=GROUP)
        }
        return foreign | {
            scheme: transport.features for scheme, transport in self._transports.items()
        }

    def is_known(self, name: str) -> bool:
        """Return whether messages for *name* can be routed."""
        rows = self._db.read(peers.URL, (name,))
        return bool(rows and rows[0][0] is not None) or self._beside(name) is not None

    def file_of(self, name: str) -> Path | None:
        """Return the file of that name in our own folder, None where there is none."""
        if AGENT.fullmatch(name) is None:  # a name from a parcel; it may hold a path
            return None
        path = self._db.path if name == self._db.agent else self._db.path.with_name(f"{name}.db")
        return path if path.exists() else None

    def _beside(self, name: str) -> str | None:
        path = self.file_of(name)
        return None if path is None else f"file:{path}"

    def route(self, name: str, url: str | None) -> tuple[Transport, str]:
        """Return the transport and the url for a peer; raises Unreachable where there is none."""
        found = url or self._beside(name)
        if found is None:
            msg = f"{name} has no known url: register it, or create {name}.db beside this file"
            raise Unreachable(msg)
        scheme = found.partition(":")[0]
        return self._transports.get(scheme) or self._load(scheme), found

    def _load(self, scheme: str) -> Transport:
        for point in entry_points(group=GROUP, name=scheme):
            try:
                made: Transport = point.load()()
            except Exception as error:
                msg = (
                    f"the transport for {scheme} cannot be loaded: {type(error).__name__}: {error}"
                )
                raise Unreachable(msg) from error
            self._transports[scheme] = made
            return made
        msg = f"no transport serves {scheme}: pass transports={{'{scheme}': …}} or install one"
        raise Unreachable(msg)

    def _open_file(self, path: Path, agent: str) -> Opened:
        patience = min(self._settings.busy_timeout, self._settings.deliver_timeout)
        wanted = Settings._inherit(busy_timeout=patience)
        # A file that is open in this process has a clock; one that we open gets ours.
        ours = (
            None
            if (file_checks.file_key(path), self._vfs or "") in open_files.files
            else self._db.clock
        )
        db = Database.open(
            path, agent=agent, settings=wanted, clock=ours, vfs=self._vfs, create=False
        )
        home = DirectoryHandle(db, wanted)
        own = Receiver(db, settings=self._settings, home=home).accept

        def accept(parcel: Parcel) -> Answer:
            return (db.receivers or (own,))[-1](parcel)

        def close() -> None:
            home.close()
            db.close()

        return accept, close

    def close(self) -> None:
        """Close every transport."""
        for transport in self._transports.values():
            transport.close()
