"""Running a postbox's engines in the foreground: what ``work`` and ``relay`` have in common."""

from __future__ import annotations

import signal
from dataclasses import asdict
from queue import SimpleQueue
from typing import Final

from onceward import Postbox
from onceward.cli.exit_codes import DONE, SIGNAL
from onceward.cli.output import document, note
from onceward.cli.signals import stops
from onceward.cli.target import Answer
from onceward.model.clock import iso
from onceward.model.events import Event

TROUBLE: Final = frozenset(
    {
        "dead",
        "failed",
        "rejected",
        "delivery_failed",
        "retry",
        "weak_receipt",
        "breaker_opened",
        "breaker_closed",
        "stream_forked",
        "peer_rolled_back",
    }
)
"""Events that a person wants to read; the others are seen in stats and ls."""


def serve(box: Postbox, answer: Answer) -> int:
    """Let the engines run until a signal, then stop them gracefully; return 130 or 143."""
    told: SimpleQueue[int] = SimpleQueue()
    box.on("*", tell)
    with stops(told):
        note(f"{box.agent}: running on {box.path}; interrupt to stop")
        number = told.get()
    note(f"{box.agent}: {signal.Signals(number).name}, stopping")
    box.close()
    if answer.json:
        document(
            {
                "agent": box.agent,
                "path": str(box.path),
                "moved": None,
                "signal": signal.Signals(number).name,
            }
        )
    return SIGNAL + number


def once(box: Postbox, answer: Answer) -> int:
    """Run the engines until nothing is due, and say how many parcels and messages moved."""
    box.on("*", tell)
    moved = box.run_until_idle()
    if answer.json:
        document({"agent": box.agent, "path": str(box.path), "moved": moved, "signal": None})
    else:
        note(f"{box.agent}: {moved} moved")
    return DONE


def tell(event: Event) -> None:
    """Write one line about what went wrong; bodies are not part of events."""
    if event.name in TROUBLE:
        told = {
            name: value
            for name, value in asdict(event).items()
            if value not in (None, "") and name != "at"
        }
        fields = " ".join(
            f"{name}={iso(value) if name.endswith('_at') else value}"
            for name, value in told.items()
        )
        note(f"{event.name}: {fields}")
