"""Carry parcels between files in tests, with the test as the network."""

from __future__ import annotations

from typing import Final

from onceward.api.features import ARRIVES, judging
from onceward.api.postbox import Postbox
from onceward.core.accept.accept import Receiver
from onceward.core.deliver.transport import Accept, Features
from onceward.errors import Unreachable
from onceward.message.parcel import Answer, Parcel
from onceward.message.settings import Settings
from onceward.testing.crash import Life

SCHEME: Final = "test"


def acceptor(postbox: Postbox, settings: Settings) -> Accept:
    """Return what takes parcels in for an open postbox."""
    return Receiver(
        postbox._db,
        settings=settings,
        hooks=postbox._hooks,
        features=ARRIVES,
        inspect=judging(postbox._home, postbox.agent),
    ).accept


class Wire:
    """Carry parcels straight to the receivers of one test; a crashing sender dies on the way."""

    features = Features(schemes=frozenset({SCHEME}))

    def __init__(self, acceptors: dict[str, Accept], life: Life | None = None) -> None:
        self._acceptors, self._life = acceptors, life

    def deliver(self, url: str, parcel: Parcel) -> Answer:
        """Call the recipient's receiver; raise Unreachable if there is none."""
        accept = self._acceptors.get(url.removeprefix(f"{SCHEME}:"))
        if accept is None:
            raise Unreachable(f"no receiver at {url} in this test")
        if self._life is None:
            return accept(parcel)
        self._life.reach("before-push")
        answer = accept(parcel)
        self._life.reach("after-push")
        return answer

    def close(self) -> None:
        """Do nothing: there is nothing to release."""
