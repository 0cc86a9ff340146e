"""``onceward serve``: take parcels in for all agents of a home, and deliver theirs."""

from __future__ import annotations

import signal
from contextlib import ExitStack
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Final

from onceward import Postbox
from onceward.cli.exit_codes import SIGNAL, NothingThere, Usage
from onceward.cli.listening import Listening
from onceward.cli.measuring import Measuring
from onceward.cli.output import document, note
from onceward.cli.serve import tell
from onceward.cli.signals import stops
from onceward.cli.target import Answer
from onceward.db.environment import env_or_project
from onceward.errors import StoreUnusable
from onceward.model.names import DIRECTORY

ANSWER = Answer()
LISTENING: Final = Listening()
MEASURING: Final = Measuring()


def serve(
    home: Path | None = None,
    /,
    *,
    listening: Listening = LISTENING,
    measuring: Measuring = MEASURING,
    answer: Answer = ANSWER,
) -> int:
    """
    Take parcels in for all agents of a home at a url, and deliver what they send.

    Handlers run elsewhere, by onceward work or in programs of your own, on the same files. An
    interrupt or terminate signal stops it gracefully: no new parcel is begun, those under way are
    answered (exit codes 130, 143). Agents that are created later need another start. Metrics have
    an address of their own, --metrics: at the url of parcels they would be open to every peer.

    Args:
        home: The home folder; default ONCEWARD_HOME, else here.

    """
    found = listening.listeners()
    if not found:
        msg = "where is it to listen? Give --listen https://HOST:PORT"
        raise Usage(msg)
    told: SimpleQueue[int] = SimpleQueue()
    with ExitStack() as stack:
        folder = home or Path(env_or_project("home") or ".")
        boxes = [stack.enter_context(box) for box in _opened(folder, found)]
        if not boxes:
            if folder.is_file():
                msg = f"{folder} is a file: give its folder, all agents of which are served"
                raise Usage(msg)
            cure = f"create one with onceward init NAME --home {folder}"
            msg = f"no agent's file is in {folder}: {cure}"
            raise NothingThere(msg)
        stack.enter_context(measuring.serving(boxes, [folder]))
        stack.enter_context(stops(told))
        names = ", ".join(box.agent for box in boxes)
        note(f"serving {names} at {found[0].url}; interrupt to stop")
        number = told.get()
        name = signal.Signals(number).name
        note(f"{name}, stopping")
    if answer.json:
        document({"agents": [box.agent for box in boxes], "url": found[0].url, "signal": name})
    return SIGNAL + number


def _opened(folder: Path, listeners: list[Any]) -> list[Postbox]:
    """Open the agents' files of a folder with their engines; name those that are none."""
    boxes: list[Postbox] = []
    try:
        for path in sorted(folder.glob("*.db")):
            if path.name == DIRECTORY:
                continue
            try:
                boxes.append(Postbox(path, listeners=listeners))
            except StoreUnusable as error:
                note(f"{path} is not served: {error}")
                continue
            boxes[-1].on("*", tell)
    except BaseException:
        for box in boxes:
            box.close()
        raise
    return boxes
