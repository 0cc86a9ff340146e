"""Simulate agents on one thread: clock, network and accidents follow from a seed."""

from onceward.testing.simulation.fault_plan import Weather
from onceward.testing.simulation.people import people
from onceward.testing.simulation.scenario import interrupt, step
from onceward.testing.simulation.world import Simulation

__all__ = ["Simulation", "Weather", "interrupt", "people", "step"]
