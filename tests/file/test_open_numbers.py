"""Which descriptors are open: one poll finds what a listing finds, or the listing is made."""

import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from onceward.file import descriptors
from onceward.file.descriptors import _OpenNumbers

COUNTS = Path("/proc/self/fd").exists() and Path("/proc/self/fd").stat().st_size > 0


@pytest.fixture
def held() -> Iterator[list[int]]:
    """Descriptors with gaps between them."""
    numbers = [os.open(os.devnull, os.O_RDONLY) for _ in range(60)]
    for number in numbers[::3]:
        os.close(number)
    kept = [number for at, number in enumerate(numbers) if at % 3]
    yield kept
    for number in kept:
        os.close(number)


def truth() -> set[int]:
    """Return the open descriptors, each asked for."""
    found = set[int]()
    for number in range(descriptors.HIGHEST):
        try:
            fcntl.fcntl(number, fcntl.F_GETFD)
        except OSError:
            continue
        found.add(number)
    return found


def forbid_listing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a listing find nothing."""
    monkeypatch.setattr(os, "listdir", lambda _: [])


@pytest.mark.skipif(not COUNTS, reason="this system does not count open descriptors")
def test_one_poll_finds_all(held: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """After one listing no number is missed, also once one is free again."""
    numbers = _OpenNumbers()
    numbers.now()
    forbid_listing(monkeypatch)

    assert truth() == numbers.now() > set(held)
    os.close(held.pop(0))
    assert truth() == numbers.now() > set(held)


def test_a_number_above_the_polled_ones_is_found(
    held: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first look lists it, the next one polls it."""
    numbers, high = _OpenNumbers(), fcntl.fcntl(held[0], fcntl.F_DUPFD, 700)
    held.append(high)

    assert high in numbers.now()
    if COUNTS:
        forbid_listing(monkeypatch)
    assert high in numbers.now()


def test_numbers_beyond_the_bound_are_listed(
    held: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process with thousands of descriptors does not poll them all."""
    monkeypatch.setattr(descriptors, "HIGHEST", held[3])
    numbers = _OpenNumbers()

    assert set(held) < numbers.now()
    assert held[3] == numbers._upto


def test_a_system_that_does_not_count_lists(
    held: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before Linux 6.2, and elsewhere, the size of that folder is 0, or it does not exist."""
    monkeypatch.setattr(descriptors, "COUNTED", os.devnull)

    assert set(held) < _OpenNumbers().now()
    monkeypatch.setattr(descriptors, "COUNTED", f"{os.devnull}/absent")
    assert set(held) < _OpenNumbers().now()
