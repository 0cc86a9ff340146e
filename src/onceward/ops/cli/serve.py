"""Run a postbox's engines in the foreground, for ``work`` and ``relay``."""

from __future__ import annotations

import gc
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from queue import SimpleQueue
from typing import Any, Final

from onceward import Postbox
from onceward.events import EVENTS
from onceward.message.clock import iso
from onceward.message.events import Event, Failed, Retried
from onceward.message.log import log
from onceward.ops.cli.exit_codes import DONE, SIGNAL
from onceward.ops.cli.logs import announce, is_written
from onceward.ops.cli.output import document
from onceward.ops.cli.signals import first, stops
from onceward.ops.cli.target import Answer

FAILED: Final = {
    "dead_lettered",
    "failed",
    "rejected",
    "delivery_failed",
    "retried",
    "weak_receipt",
}
PEERS: Final = {"breaker_opened", "breaker_closed", "stream_forked", "peer_rolled_back"}
TROUBLE: Final = frozenset(FAILED | PEERS | {"wal_deleted"})
"""Events that are logged; stats and ls show the rest."""
ENDS: Final = {"dead_lettered", "failed", "rejected"}
ACT: Final = frozenset(ENDS | {"stream_forked", "peer_rolled_back", "wal_deleted"})
"""Those that need an action."""
COLLECT_AFTER: Final = (10_000, 20, 20)
"""Thresholds of the cyclic garbage collector; Python's defaults cost a busy worker 5 to 8 %."""


def serve(box: Postbox, answer: Answer) -> int:
    """Run the engines until a signal, then stop them gracefully; return 130 or 143."""
    told: SimpleQueue[int] = SimpleQueue()
    _tell_trouble(box)
    with stops(told), rare_collections():
        announce(f"{box.agent}: running on {box.file.path}; interrupt to stop")
        number = first(told)
    name = signal.Signals(number).name
    announce(f"{box.agent}: {name}, stopping")
    box.close()
    if answer.json:
        document(_told(box, None, name))
    return SIGNAL + number


def once(box: Postbox, answer: Answer) -> int:
    """Run the engines until nothing is due, and print how many parcels and messages moved."""
    _tell_trouble(box)
    with rare_collections():
        moved = box.run_until_idle()
    if answer.json:
        document(_told(box, moved, None))
    else:
        announce(f"{box.agent}: {moved} moved")
    return DONE


def _tell_trouble(box: Postbox) -> None:
    """Log events of trouble; other events are not built."""
    for name in sorted(TROUBLE):
        box.on(EVENTS[name], tell)


@contextmanager
def rare_collections() -> Iterator[None]:
    """
    For a block, run the cyclic collector rarely, and never on objects that exist now.

    They stay frozen after it: ``gc.unfreeze`` would let the end of the process, or the program that
    runs a command within its own, look at each of them again.
    """
    before = gc.get_threshold()
    gc.collect()
    gc.freeze()
    gc.set_threshold(*COLLECT_AFTER)
    try:
        yield
    finally:
        gc.set_threshold(*before)


def _told(box: Postbox, moved: int | None, name: str | None) -> dict[str, Any]:
    return {"agent": box.agent, "path": str(box.file.path), "moved": moved, "signal": name}


def tell(event: Event) -> None:
    """Log one line about an event of trouble that has none yet; events have no bodies."""
    match event:
        case Retried() if is_written(event.message_id, event.attempt):
            return  # with the traceback of its handler
        case Failed() if event.peer == event.agent:
            return  # the dead letter has its line
    fields = {
        name: _shown(name, value)
        for name, value in asdict(event).items()
        if value not in (None, "") and name != "at"
    }
    log.write("error" if event.name in ACT else "warning", event.name, fields)


def _shown(name: str, value: object) -> object:
    return iso(value) if name.endswith("_at") and isinstance(value, int) else value
