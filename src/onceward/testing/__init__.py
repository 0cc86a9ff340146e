"""Test aids: a manual clock, faulty transports, crash points, kills, simulated worlds, a judge."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from onceward.testing.clock import ManualClock
    from onceward.testing.crash import Crash, Point
    from onceward.testing.faults import Fault, FaultyTransport
    from onceward.testing.handler_test import TrialContext
    from onceward.testing.harness import Harness
    from onceward.testing.history import Effect, Log, judge
    from onceward.testing.kills import Crew, crew
    from onceward.testing.simulation import Simulation, interrupt, people, step

__all__ = [
    "Crash",
    "Crew",
    "Effect",
    "Fault",
    "FaultyTransport",
    "Harness",
    "Log",
    "ManualClock",
    "Point",
    "Simulation",
    "TrialContext",
    "crew",
    "interrupt",
    "judge",
    "people",
    "step",
]

_HOMES = {
    "Crash": "crash",
    "Crew": "kills",
    "Effect": "history",
    "Fault": "faults",
    "FaultyTransport": "faults",
    "Harness": "harness",
    "Log": "history",
    "ManualClock": "clock",
    "Point": "crash",
    "Simulation": "simulation",
    "TrialContext": "handler_test",
    "crew": "kills",
    "interrupt": "simulation",
    "judge": "history",
    "people": "simulation",
    "step": "simulation",
}


def __getattr__(name: str) -> Any:
    """Import an aid when it is asked for: the pytest plugin must not load the others."""
    if name not in _HOMES:
        msg = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(msg)
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
