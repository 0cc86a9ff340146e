"""Define the error of a peer that has no capacity for a poll."""

from __future__ import annotations

from onceward.errors import Unreachable


class PeerBusy(Unreachable):
    """The peer has no capacity for a poll now; poll again *after* that many seconds."""

    def __init__(self, msg: str, after: float) -> None:
        super().__init__(msg)
        self.after = after
