"""``onceward serve``: accept parcels for all agents of a home, and deliver theirs."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from contextlib import ExitStack
from itertools import count
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, Final, Self

from onceward import Postbox
from onceward.errors import StoreError, StoreFault
from onceward.events import Event
from onceward.file.file_checks import descriptors_left, files_limit
from onceward.message.names import DIRECTORY
from onceward.ops.cli.exit_codes import SIGNAL, NothingThere, Usage
from onceward.ops.cli.listener_mark import ListenerMark
from onceward.ops.cli.listening import LISTENING, Listening, http_homes, is_http
from onceward.ops.cli.logs import LOGGING, Logging, announce
from onceward.ops.cli.measuring import MEASURING, Measuring, Watch
from onceward.ops.cli.output import document
from onceward.ops.cli.serve import tell
from onceward.ops.cli.shipping import Shipping
from onceward.ops.cli.signals import stops
from onceward.ops.cli.target import ANSWER, Answer, home_folder

SHIPPING: Final = Shipping()
LOOK_EVERY: Final = 1.0
"""Seconds between two searches for new files."""
MARK_EVERY: Final = 10
"""Searches between two records of the state of the connections."""
ROOM: Final = 64
"""Descriptors kept for connections; an agent that would need them is not served."""
LATER: Final = 3
"""Descriptors that each agent needs at work in addition to those of its opening: a reader's."""


def serve(
    home: Path | None = None,
    /,
    *,
    listening: Listening = LISTENING,
    measuring: Measuring = MEASURING,
    shipping: Shipping = SHIPPING,
    logging: Logging = LOGGING,
    answer: Answer = ANSWER,
) -> int:
    """
    Accept parcels for all agents of a home at a URL, and deliver the messages that they send.

    Handlers run elsewhere on the same files: in onceward work or in your own programs. An interrupt
    or terminate signal stops it gracefully: no new parcel is started, running ones are answered
    (exit codes 130, 143). Agents that are created later are served within a second. Metrics have a
    separate address, --metrics: at the URL of parcels they would be open to every peer. With --ask,
    which also works without --listen, each agent that knows the peer asks it for parcels. With
    --ship-to the files are shipped as by onceward ship.

    Example: onceward serve /srv/home --listen https://0.0.0.0:8443 --certfile home.pem

    Args:
        home: The home folder; default ONCEWARD_HOME, else here.

    """
    folder, listeners = home_folder(home), listening.listeners()
    if not listeners and not listening.ask:
        raise Usage("no address to listen at: give --listen https://HOST:PORT")
    told: SimpleQueue[int] = SimpleQueue()
    with ExitStack() as stack:
        stack.enter_context(logging.written())
        stack.enter_context(shipping.running(folder))
        open_files = stack.enter_context(_HomeFiles(folder, listening, listeners))
        boxes = open_files.look()
        if not boxes:
            cure = f"create one with onceward init NAME --home {folder}"
            raise NothingThere(f"no agent's file is in {folder}: {cure}")
        _refuse_unknown(listening.ask or (), boxes)
        over_http: list[Any] = [*listeners] if is_http(listening.listen) else []
        watch = stack.enter_context(measuring.serving(boxes, [folder], listeners))
        stack.enter_context(stops(told))
        marks = [ListenerMark(folder, each) for each in over_http]
        for mark in marks:
            stack.callback(mark.remove)
        names = ", ".join(box.agent for box in boxes)
        announce(f"serving {names}{_where(listening, listeners)}; interrupt to stop")
        number = _next_signal(told, open_files, watch, marks)
        name = signal.Signals(number).name
        announce(f"{name}, stopping")
        agents = sorted(box.agent for box in open_files.boxes.values())
    if answer.json:
        url = listeners[0].url if listeners else None
        document({"agents": agents, "url": url, "signal": name})
    return SIGNAL + number


def _where(listening: Listening, listeners: list[Any]) -> str:
    at = "".join(f" at {each.url}" for each in listeners)
    return f"{at}, asking {', '.join(listening.ask)}" if listening.ask else at


def _refuse_unknown(peers: Sequence[str], boxes: list[Postbox]) -> None:
    """Raise NothingThere for a peer that no agent can ask."""
    if not peers:
        return
    known = {peer.name for box in boxes for peer in box.peers.list() if is_http(peer.url)}
    known |= {name for box in boxes for name in http_homes(box.file.path)}
    for peer in peers:
        if peer not in known:
            add = f"onceward peers add {peer} https://HOST:PORT --agent NAME"
            raise NothingThere(f"no agent of this home has an HTTP url for the peer {peer}: {add}")


def _next_signal(
    told: SimpleQueue[int], files: _HomeFiles, watch: Watch, marks: list[ListenerMark]
) -> int:
    """Wait for a signal; serve agents that are created meanwhile, and record the connections."""
    for look in count():
        if look % MARK_EVERY == 0:
            for mark in marks:
                mark.write()
        try:
            return told.get(timeout=LOOK_EVERY)
        except Empty:
            for box in files.look():
                watch(box)
                announce(f"also serving {box.agent}")
    raise AssertionError  # count() has no end


def _keep_room(path: Path, agents: int) -> None:
    """Raise StoreFault if one more file leaves none for connections and *agents* at work."""
    if not descriptors_left(ROOM + LATER * (agents + 1)):
        raise StoreFault(
            f"{path}: this process may have {files_limit()} files open, and the rest is for"
            f" {agents} agents and connections: raise its limit (ulimit -n)"
        )


class _HomeFiles:
    """The agents' files of a home, open with their engines."""

    def __init__(self, folder: Path, listening: Listening, listeners: list[Any]) -> None:
        self._folder, self._listening, self._listeners = folder, listening, listeners
        self.boxes: dict[Path, Postbox] = {}
        self._told: dict[Path, str] = {}
        """By path: the printed reason why a file is not served or the folder not searched."""

    def __enter__(self) -> Self:
        """Open no file yet."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close all files, even if one of them raises."""
        with ExitStack() as stack:
            for box in self.boxes.values():
                stack.callback(box.close)

    def look(self) -> list[Postbox]:
        """Open new files, and return them; close deleted ones."""
        try:
            names = os.listdir(self._folder)  # noqa: PTH208 - Path.glob hides errors: all would be gone
        except OSError as error:
            self._tell(self._folder, f"is not looked at: {error}")
            return []
        self._told.pop(self._folder, None)
        paths = {self._folder / name for name in names if name.endswith(".db")}
        paths.discard(self._folder / DIRECTORY)
        for path in self.boxes.keys() - paths:
            announce(f"{path} is gone: its agent is no longer served")
            self.boxes.pop(path).close()
        found = [self._opened(path) for path in sorted(paths - self.boxes.keys())]
        return [box for box in found if box is not None]

    def _opened(self, path: Path) -> Postbox | None:
        """Open a file; print once why it cannot be served, as while it is being created."""
        try:
            _keep_room(path, len(self.boxes))
            asking = self._listening.asking(path, all_of_them=False)
            box = Postbox(path, listeners=[*self._listeners, *asking])
        except StoreError as error:
            self._tell(path, f"is not served: {error}")
            return None
        box.on(Event, tell)
        self.boxes[path] = box
        return box

    def _tell(self, path: Path, why: str) -> None:
        """Print a reason for a path once."""
        if self._told.get(path) != why:
            announce(f"{path} {why}")
        self._told[path] = why
