"""Generate message ids: UUIDv7 text, globally unique and sorted by time."""

from __future__ import annotations

import random
import re
import secrets
from collections.abc import Callable
from hashlib import sha256
from itertools import repeat, starmap
from typing import Final

import uuid_utils

from onceward.message.clock import Clock, Millis

OWN_ID: Final = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")
"""Ids that sort by time; dedup records of other ids are never pruned."""
KEYED: Final = "00000000-0000-7"
"""Start of the ids of messages with a key, which sort before all others."""
AHEAD: Final[Millis] = 60_000
"""How far the clock of a message's sender may be ahead."""
IdSource = Callable[[], str]
"""Return a new message id on each call."""


new_id: Final[IdSource] = map(str, starmap(uuid_utils.uuid7, repeat(()))).__next__
"""Return a UUIDv7 that sorts after earlier ones of this process; in C, as every send calls it."""


def clock_ids(clock: Clock, rng: random.Random) -> IdSource:
    """Return a source of UUIDv7s with a given clock: time, a counter, and random bits."""
    last, count = 0, 0

    def mint() -> str:
        nonlocal last, count
        at = clock.now()
        count = count + 1 if at == last else 0
        last = at
        spill, low = divmod(count, 1 << 12)
        tail = f"{rng.getrandbits(48):012x}"
        return f"{time_prefix(at)}-7{low:03x}-{0x8000 | spill & 0x3FFF:04x}-{tail}"

    return mint


def time_prefix(at: Millis) -> str:
    """Return the prefix of UUIDv7s of a moment, which sorts before those of later moments."""
    stamp = f"{at:012x}"
    return f"{stamp[:8]}-{stamp[8:]}"


def moment_of(message_id: str) -> Millis:
    """Return the moment in an id that sorts by time, or in its prefix; 0 for none."""
    return int(message_id[:8] + message_id[9:13], 16) if message_id else 0


class RepeatableIds:
    """
    Ids of the messages that a handler sends: the same each time that it handles the same message.

    So a recipient drops what a handler sends again, as after its file was restored from a backup.
    An id depends on *of*, the handler and what it handles, on the recipient and the type, and on
    how many such messages came before. It is a UUIDv7 that sorts after *after*, the id of what is
    handled, as a number of 60 bits: moment, then order.
    """

    __slots__ = ("_after", "_counts", "_of")

    def __init__(self, after: int, *of: str) -> None:
        self._after, self._of = after, of
        self._counts: dict[tuple[str, str], int] = {}

    def __call__(self, to: str, kind: str, number: int | None = None) -> str:
        """Return the id of the next message of a type to a recipient, or of that *number*."""
        if number is None:
            place = to, kind
            number = self._counts[place] = self._counts.get(place, -1) + 1
        order = f"{self._after + 1 + number:015x}"
        tail = sha256(repr((*self._of, to, kind, number)).encode(errors="surrogatepass"))
        drawn = tail.hexdigest()
        return f"{order[:8]}-{order[8:12]}-7{order[12:]}-8{drawn[:3]}-{drawn[3:15]}"

    def within(self, *place: str) -> RepeatableIds:
        """Return the ids of a part of the handler, such as a step, which may not run again."""
        return RepeatableIds(self._after, *self._of, *place)


def new_token() -> str:
    """Return 128 random bits as hex text, for epochs, owners and file identities."""
    return secrets.token_hex(16)
