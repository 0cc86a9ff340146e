"""
Disks that fail: every operation that two agents ask of their disk fails once, in every way in which it can.

``sweep(errands(), …)`` returns a ``Sweep``. Each failure is judged twice: as the
process ends it, and as if the process had been killed on the spot.
"""

from onceward.testing.iofaults.sweep import Sweep, sweep

__all__ = ["Sweep", "sweep"]
