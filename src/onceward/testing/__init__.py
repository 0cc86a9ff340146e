"""Test aids: a clock that you turn, a transport that fails by script, and an agent in a box that can be killed."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from onceward.testing.clock import ManualClock
    from onceward.testing.crash import Crash, Point
    from onceward.testing.faults import Fault, FaultyTransport
    from onceward.testing.harness import Harness
    from onceward.testing.trial import TrialContext

__all__ = ["Crash", "Fault", "FaultyTransport", "Harness", "ManualClock", "Point", "TrialContext"]

_HOMES = {
    "Crash": "crash",
    "Fault": "faults",
    "FaultyTransport": "faults",
    "Harness": "harness",
    "ManualClock": "clock",
    "Point": "crash",
    "TrialContext": "trial",
}


def __getattr__(name: str) -> Any:
    """Load an aid when it is asked for: the pytest plugin lives here too, and takes part in runs that want none."""
    if name not in _HOMES:
        msg = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(msg)
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
