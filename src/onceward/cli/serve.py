"""Run a postbox's engines in the foreground, for ``work`` and ``relay``."""

from __future__ import annotations

import signal
from dataclasses import asdict
from queue import SimpleQueue
from typing import Any, Final

from onceward import Postbox
from onceward.cli.exit_codes import DONE, SIGNAL
from onceward.cli.output import document, note
from onceward.cli.signals import stops
from onceward.cli.target import Answer
from onceward.model.clock import iso
from onceward.model.events import Event

FAILED: Final = {"dead", "failed", "rejected", "delivery_failed", "retry", "weak_receipt"}
PEERS: Final = {"breaker_opened", "breaker_closed", "stream_forked", "peer_rolled_back"}
TROUBLE: Final = frozenset(FAILED | PEERS)
"""Events that are printed; stats and ls show the others."""


def serve(box: Postbox, answer: Answer) -> int:
    """Run the engines until a signal, then stop them gracefully; return 130 or 143."""
    told: SimpleQueue[int] = SimpleQueue()
    box.on("*", tell)
    with stops(told):
        note(f"{box.agent}: running on {box.path}; interrupt to stop")
        number = told.get()
    name = signal.Signals(number).name
    note(f"{box.agent}: {name}, stopping")
    box.close()
    if answer.json:
        document(_told(box, None, name))
    return SIGNAL + number


def once(box: Postbox, answer: Answer) -> int:
    """Run the engines until nothing is due, and print how many parcels and messages moved."""
    box.on("*", tell)
    moved = box.run_until_idle()
    if answer.json:
        document(_told(box, moved, None))
    else:
        note(f"{box.agent}: {moved} moved")
    return DONE


def _told(box: Postbox, moved: int | None, name: str | None) -> dict[str, Any]:
    return {"agent": box.agent, "path": str(box.path), "moved": moved, "signal": name}


def tell(event: Event) -> None:
    """Write one line about an event of trouble; events have no bodies."""
    if event.name in TROUBLE:
        fields = " ".join(
            f"{name}={iso(value) if name.endswith('_at') else value}"
            for name, value in asdict(event).items()
            if value not in (None, "") and name != "at"
        )
        note(f"{event.name}: {fields}")
