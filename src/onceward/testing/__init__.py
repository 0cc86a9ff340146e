"""Test aids: a clock that you turn, a transport that fails by script, and an agent in a box that can be killed."""

from onceward.testing.clock import ManualClock
from onceward.testing.crash import Crash, Point
from onceward.testing.faults import Fault, FaultyTransport
from onceward.testing.harness import Harness
from onceward.testing.trial import TrialContext

__all__ = ["Crash", "Fault", "FaultyTransport", "Harness", "ManualClock", "Point", "TrialContext"]
