"""Define the error of a peer that asks to come back later."""

from __future__ import annotations

from onceward.errors import Unreachable


class PeerBusy(Unreachable):
    """The peer has no capacity now; ask again *after* that many seconds."""

    def __init__(self, msg: str, after: float) -> None:
        super().__init__(msg)
        self.after = after
