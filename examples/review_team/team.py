"""What the team shares: the words it speaks, how patient it is, and how it is told to stop."""

import os

from onceward import Msg, Settings

PATIENCE = Settings(lease=2.0, deliver_timeout=2.0)
"""Colleagues are killed here all the time: what a dead process held is free again after seconds, not after a minute."""


class Review(Msg, type="review.wanted"):
    """Please review one file."""

    task: int
    path: str


class Reviewed(Msg, type="review.done"):
    """One file is reviewed; the findings themselves stay in the worker's file."""

    task: int
    findings: int


def until_input_ends() -> None:
    """Return when standard input ends: whoever started us closed it, or is dead."""
    while os.read(0, 4096):
        pass
