"""
Single bits that change, in files, in the WAL, and in parcels on their way.

``flip(…)`` returns a ``Flips``. Whatever bit it is: no handler is given a message
that was not sent to it like this, and no error is a stranger's.
"""

from onceward.testing.bitflips.flips import Flips, flip

__all__ = ["Flips", "flip"]
