"""
Help tests of agents, programs and transports.

A clock that tests advance, transports that fail by script, agents that are
killed, the conformance suites of transports, listeners and stores, a judge.

Imports api, features, core, file and message.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from onceward.message.settings import Controls
    from onceward.testing.body_store_conformance import LargeBodyStoreConformance
    from onceward.testing.clock import ManualClock
    from onceward.testing.conformance import TransportConformance
    from onceward.testing.crash import POINTS, STEP_POINTS, Crash, Point, StepPoint
    from onceward.testing.faults import Fault, FaultyTransport
    from onceward.testing.handler_test import TrialContext
    from onceward.testing.harness import Harness
    from onceward.testing.history import Effect, Log, judge
    from onceward.testing.kills import Crew, crew
    from onceward.testing.listener_conformance import ListenerConformance
    from onceward.testing.transport_fixture import FarEnd

__all__ = [
    "POINTS",
    "STEP_POINTS",
    "Controls",
    "Crash",
    "Crew",
    "Effect",
    "FarEnd",
    "Fault",
    "FaultyTransport",
    "Harness",
    "LargeBodyStoreConformance",
    "ListenerConformance",
    "Log",
    "ManualClock",
    "Point",
    "StepPoint",
    "TransportConformance",
    "TrialContext",
    "crew",
    "judge",
]

_MODULES = {
    "POINTS": "crash",
    "STEP_POINTS": "crash",
    "Controls": "onceward.message.settings",
    "Crash": "crash",
    "Crew": "kills",
    "Effect": "history",
    "FarEnd": "transport_fixture",
    "Fault": "faults",
    "FaultyTransport": "faults",
    "Harness": "harness",
    "LargeBodyStoreConformance": "body_store_conformance",
    "ListenerConformance": "listener_conformance",
    "Log": "history",
    "ManualClock": "clock",
    "Point": "crash",
    "StepPoint": "crash",
    "TransportConformance": "conformance",
    "TrialContext": "handler_test",
    "crew": "kills",
    "judge": "history",
}


def __getattr__(name: str) -> Any:
    """Load an aid on first use: the pytest plugin is part of runs that use none."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = _MODULES[name]
    module = found if found.startswith("onceward.") else f"{__name__}.{found}"
    return getattr(import_module(module), name)
