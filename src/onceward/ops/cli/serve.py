"""Run the engines of postboxes in the foreground, for ``work`` and ``relay``."""

from __future__ import annotations

import gc
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from queue import SimpleQueue
from threading import Thread
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
MAX_ROUNDS: Final = 1_000
"""Rounds of several agents that answer each other without end."""
COLLECT_AFTER: Final = (10_000, 20, 20)
"""Thresholds of the cyclic garbage collector; Python's defaults cost a busy worker 5 to 8 %."""


def serve(boxes: Sequence[Postbox], answer: Answer) -> int:
    """Run the engines until a signal, then stop them gracefully; return 130 or 143."""
    told: SimpleQueue[int] = SimpleQueue()
    names, files = ", ".join(box.agent for box in boxes), [str(box.file.path) for box in boxes]
    for box in boxes:
        _tell_trouble(box)
    with stops(told), rare_collections():
        announce(f"{names}: running on {', '.join(files)}; interrupt to stop")
        number = first(told)
    name = signal.Signals(number).name
    announce(f"{names}: {name}, stopping")
    _close(boxes)
    if answer.json:
        _answer([_told(box, None, name) for box in boxes])
    return SIGNAL + number


def _close(boxes: Sequence[Postbox]) -> None:
    """Close all at the same time, because each waits for its handlers; raise the first error."""
    errors: SimpleQueue[BaseException] = SimpleQueue()

    def close(box: Postbox) -> None:
        try:
            box.close()
        except Exception as error:  # noqa: BLE001 - raised below
            errors.put(error)

    others = [Thread(target=close, args=(box,), daemon=True) for box in boxes[1:]]
    for each in others:
        each.start()
    close(boxes[0])
    for each in others:
        each.join()
    if not errors.empty():
        raise errors.get()


def once(boxes: Sequence[Postbox], answer: Answer) -> int:
    """Run the engines until nothing is due, and print how many parcels and messages moved."""
    for box in boxes:
        _tell_trouble(box)
    moved = dict.fromkeys(boxes, 0)
    with rare_collections():
        for _ in range(MAX_ROUNDS):
            rounds = {box: box.run_until_idle() for box in boxes}
            moved = {box: moved[box] + rounds[box] for box in boxes}
            if len(boxes) == 1 or not any(rounds.values()):
                break
    if answer.json:
        _answer([_told(box, moved[box], None) for box in boxes])
    else:
        for box in boxes:
            announce(f"{box.agent}: {moved[box]} moved")
    return DONE


def _answer(told: list[dict[str, Any]]) -> None:
    """Print the document of one agent, or one of several."""
    document(told[0] if len(told) == 1 else {"agents": told})


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
