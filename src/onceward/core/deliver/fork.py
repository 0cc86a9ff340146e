"""Find out which file was restored when a peer's position does not continue our stream."""

from __future__ import annotations

from onceward.core.rows.peers import Fork, PeerLease
from onceward.message.parcel import Answer, generation_of


def judge_fork(held: PeerLease, answer: Answer) -> Fork:
    """
    Find out from a peer's position which file was restored or replaced.

    Before the settled position, or in an epoch older than ours, it is the peer's. After it, or in
    an epoch that is not older than ours and not ours, a copy of this file has pushed, or this file
    was restored. Then the peer may have been restored, too: before that epoch began.
    """
    epoch, number = answer.epoch, answer.number
    stands = held.ordinal_of(epoch, number)
    settled = held.ordinal - 1 if held.number else held.base_parcel
    own = bool(epoch) and (stands >= settled if stands else generation_of(epoch) >= held.generation)
    had = stands
    if own:
        base = None if epoch == held.epoch else answer.base_position
        had = settled if base is None else _had_before(held, *base)
    in_doubt = own or bool(epoch and not stands)
    return Fork(epoch, number, own, in_doubt, lacks_after=None if own and had >= settled else had)


def _had_before(held: PeerLease, epoch: str, number: int) -> int:
    """
    Return the last parcel of this file that a peer had at the base of a newer epoch.

    It is 0 if that epoch builds on one that this file does not know, either: then the peer was put
    back more than once, and what it had in between is not known. It drops what it has by the ids.
    """
    generation = generation_of(epoch)
    if generation > held.generation:
        return 0
    return held.ordinal_of(epoch, number) or generation << 32
