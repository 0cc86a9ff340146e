"""Rates: how fast the totals of a file grow between two looks."""

from onceward import Postbox
from onceward.ops.observe.rates import Rates
from onceward.ops.observe.snapshots import read_snapshot


def test_a_rate_is_the_growth_between_two_looks(shop: Postbox) -> None:
    """There is none before the second look, and it is 0 where nothing happened."""
    rates, found = Rates(), list[float | None]()
    for count, at in ((1, 10.0), (6, 12.0), (0, 13.0)):
        shop.send_many([("shop", each) for each in range(count)])
        rates.note([read_snapshot(shop.file.path, 0)], at)
        found.append(rates.of(shop.file.path, "enqueued"))

    assert [None, 3.0, 0.0] == found


def test_a_file_that_was_unreadable_has_no_rate(shop: Postbox) -> None:
    """Neither when it fails, nor at the first look at which it is back."""
    rates, found = Rates(), list[float | None]()
    good = read_snapshot(shop.file.path, 0)
    bad = read_snapshot(shop.file.path.with_name("none.db"), 0)
    for at, each in enumerate((good, bad, good)):
        rates.note([each], float(at))
        found.append(rates.of(shop.file.path, "enqueued"))

    assert [None, None, None] == found
