"""Define the default body of a scheduled message."""

from __future__ import annotations

from onceward.message.body import Msg
from onceward.message.clock import Millis


class Tick(Msg, type="onceward.tick"):
    """A date of a schedule: the schedule's name, and the date in milliseconds since 1970."""

    schedule: str
    at: Millis
