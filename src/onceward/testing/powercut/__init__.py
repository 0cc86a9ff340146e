"""
Explore power cuts: record a program once, rebuild the disk as a cut after any operation left it.

``explore(town, states=…)`` returns a ``Verdict``. A program of one's own
has the two methods of ``scene.Program``.
"""

from onceward.testing.powercut.explorer import Verdict, explore, explore_days
from onceward.testing.powercut.scene import Program, Scene

__all__ = ["Program", "Scene", "Verdict", "explore", "explore_days"]
