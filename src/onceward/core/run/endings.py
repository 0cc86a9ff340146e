"""End messages of an inbox from outside, with what features must let go of before."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from onceward.core.end import received
from onceward.core.run.event_emitter import EventEmitter
from onceward.file.transaction import StoreTransaction

LetGo = Callable[[StoreTransaction, list[int]], Sequence[str]]
"""Lets go of messages that end; returns the ids of requests whose replies are awaited no more."""


class CancelledMessages(NamedTuple):
    """The messages that a cancellation has ended."""

    seqs: set[int]
    """The messages that waited or were handled, by their sequences."""
    unawaited: Sequence[str]
    """Ids of requests whose replies are awaited no more."""


class Endings:
    """Ends messages of one inbox from outside, in the caller's transaction."""

    def __init__(self, emitter: EventEmitter, let_go: Sequence[LetGo]) -> None:
        self.emitter, self._let_go = emitter, let_go

    def cancel(self, tx: StoreTransaction, seqs: Sequence[int], reason: str) -> CancelledMessages:
        """
        Cancel the waiting and running ones of the messages.

        Each lease on one of them ends, so that its handler's writes roll back.
        """
        unawaited = [each for let_go in self._let_go for each in let_go(tx, list(seqs))]
        ended = received.end_unclaimed(tx, seqs, "cancelled", reason)
        if ended:
            self.emitter.cancelled(tx, [(i, s, reason) for _, s, i in ended])
        return CancelledMessages({seq for seq, _, _ in ended}, unawaited)
