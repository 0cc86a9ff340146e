"""Define what the team shares: message types, settings, and the signal to stop."""

import os

from onceward import Msg, Settings

PATIENCE = Settings(lease=2.0, deliver_timeout=2.0)
"""Processes are killed here all the time: their leases end after seconds, not after a minute."""


class Review(Msg, type="review.wanted"):
    """Please review one file."""

    task: int
    path: str


class Reviewed(Msg, type="review.done"):
    """One file is reviewed; the findings themselves stay in the worker's file."""

    task: int
    findings: int


def until_input_ends() -> None:
    """Return when standard input ends: the parent process closed it, or is dead."""
    while os.read(0, 4096):
        pass
