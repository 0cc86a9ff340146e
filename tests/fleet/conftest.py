"""Fixtures of the fleet, with Spark and without."""

from tests.fleet.boxes import box

__all__ = ["box"]
