"""
One bit is wrong, in a file, in a WAL or on the way: no handler is given what was never sent.

The seed is fixed and printed; ``ONCEWARD_SEED`` chooses another.
"""

import random
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any
from unittest.mock import ANY, patch

import pytest
from tests.proof.bit_flips.flips import Bench, flip
from tests.proof.bit_flips.watched import Noisy, flipped
from tests.proof.power_cut.part import arena
from tests.proof.seed import proof_seed, size

BITS = size(2_000, 150)
SEED = proof_seed()

pytestmark = pytest.mark.timeout(1200)  # more than a hang; how long it takes depends on the machine


def test_no_handler_is_given_a_wrong_message(aloud: Callable[[object], None]) -> None:
    """Whichever bit flips, handlers see what was sent, and errors are ours."""
    found = flip(SEED, bits=BITS)
    aloud(found)

    assert () == found.violations
    assert BITS == found.count
    assert found.noticed > BITS // 20


def test_one_bit_is_one_bit() -> None:
    """A flip changes one bit, the same one for the same seed."""
    data = bytes(range(200))
    spoilt = flipped(data, random.Random(3))

    assert 1 == sum((one ^ other).bit_count() for one, other in zip(data, spoilt, strict=True))
    assert spoilt == flipped(data, random.Random(3))


BLIND = patch("onceward.core.rows.lanes.digest", lambda _: ANY)
"""A reader that does not look at digests."""


@pytest.mark.parametrize(
    ("reader", "handed_out"), [(nullcontext(), False), (BLIND, True)], ids=("sound", "blind")
)
def test_the_digest_is_what_saves_handlers(
    reader: AbstractContextManager[Any], handed_out: bool
) -> None:
    """
    Bodies in which a letter has become its neighbour reach no handler.

    Without the digests they are, and it is seen.
    """
    with arena() as folder, reader:
        bench = Bench(7, folder)
        spoilt = {
            name: data.replace(b'"pad":"x', b'"pad":"y') for name, data in bench.images[1].items()
        }
        wrong = bench.live(spoilt, Noisy(random.Random(1), 0))

    assert handed_out == any(words.startswith("WRONG message") for words in wrong)
    assert handed_out or not wrong
