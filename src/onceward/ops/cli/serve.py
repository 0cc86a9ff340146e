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
from onceward.message.events import Event
from onceward.ops.cli.exit_codes import DONE, SIGNAL
from onceward.ops.cli.logs import SECRETS
from onceward.ops.cli.output import document, note
from onceward.ops.cli.signals import first, stops
from onceward.ops.cli.target import Answer

FAILED: Final = {"dead", "failed", "rejected", "delivery_failed", "retry", "weak_receipt"}
PEERS: Final = {"breaker_opened", "breaker_closed", "stream_forked", "peer_rolled_back"}
TROUBLE: Final = frozenset(FAILED | PEERS)
"""Events that are printed; stats and ls show the rest."""
COLLECT_AFTER: Final = (10_000, 20, 20)
"""Thresholds of the cyclic garbage collector; Python's defaults cost a busy worker 5 to 8 %."""


def serve(box: Postbox, answer: Answer) -> int:
    """Run the engines until a signal, then stop them gracefully; return 130 or 143."""
    told: SimpleQueue[int] = SimpleQueue()
    _tell_trouble(box)
    with stops(told), rare_collections():
        note(f"{box.agent}: running on {box.file.path}; interrupt to stop")
        number = first(told)
    name = signal.Signals(number).name
    note(f"{box.agent}: {name}, stopping")
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
        note(f"{box.agent}: {moved} moved")
    return DONE


def _tell_trouble(box: Postbox) -> None:
    """Print events of trouble; other events are not built."""
    for name in sorted(TROUBLE):
        box.on(EVENTS[name], tell)


@contextmanager
def rare_collections() -> Iterator[None]:
    """For a block, run the cyclic collector rarely, and never on objects that exist now."""
    before = gc.get_threshold()
    gc.collect()
    gc.freeze()
    gc.set_threshold(*COLLECT_AFTER)
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()


def _told(box: Postbox, moved: int | None, name: str | None) -> dict[str, Any]:
    return {"agent": box.agent, "path": str(box.file.path), "moved": moved, "signal": name}


def tell(event: Event) -> None:
    """Write one line about an event of trouble; events have no bodies, and secrets are hidden."""
    # Why a handler is called again is in the log, where its exception has a traceback.
    left_out = {"at", "error"} if event.name == "retry" else {"at"}
    fields = " ".join(
        f"{name}={_shown(name, value)}"
        for name, value in asdict(event).items()
        if value not in (None, "") and name not in left_out
    )
    note(SECRETS.text(f"{event.name}: {fields}"))


def _shown(name: str, value: object) -> object:
    if name.endswith("_at") and isinstance(value, int):
        return iso(value)
    return f"{value:.3f}s" if isinstance(value, float) else value
