"""
The threads that now validate with pydantic.

A part of a validator initializes itself in its first use. A child that is forked meanwhile would
wait for the thread that does so, and that it lacks.
"""

from __future__ import annotations

from typing import Final

validating: Final = list[int]()
"""The identifier of each such thread, once for each call that it is in."""
