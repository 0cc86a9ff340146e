"""Fixtures of the fleet, with Spark and without."""

from tests.fleet.boxes import box, mail

__all__ = ["box", "mail"]
