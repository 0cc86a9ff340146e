"""Say that a peer has no place for a question just now."""

from __future__ import annotations

from onceward.errors import Unreachable


class PeerBusy(Unreachable):
    """The peer has no place for a question just now: it is asked again *after* so many seconds."""

    def __init__(self, msg: str, after: float) -> None:
        super().__init__(msg)
        self.after = after
