"""Failures of one kind, type and error are one group, in one file and over many."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.inspector.homes import lively

from onceward.file.read_only import opened
from onceward.ops.views.failures import failures, fingerprint, letters_like, pattern
from onceward.testing import ManualClock

NOW = 1_767_232_800_000


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make the lively home once."""
    folder = tmp_path_factory.mktemp("failures") / "home"
    lively(folder, ManualClock())
    return folder


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        ("HTTP 503 after 1.25 s", "HTTP # after # s"),
        ("no row 0197f0c2-7d1e-7000-8000-2f4bfa82f9cc", "no row #"),
        ("<Job object at 0x7f3A2c>", "<Job object at #>"),
        ("a decade of faces", "a decade of faces"),
        ("KeyError: 'id'", "KeyError: 'id'"),
        ("at 12:30:01 to 192.0.2.7:8080", "at # to #"),
    ],
)
def test_numbers_and_ids_do_not_tell_errors_apart(error: str, expected: str) -> None:
    """Words stay: they are what differs between two kinds of failure."""
    assert expected == pattern(error)


def test_a_fingerprint_is_of_kind_type_and_pattern() -> None:
    """The same error of another type, or as another kind, is another group."""
    mark = fingerprint("dead letter", "job", "HTTP 503")

    assert mark == fingerprint("dead letter", "job", "HTTP 502")
    assert mark != fingerprint("retry", "job", "HTTP 503")
    assert mark != fingerprint("dead letter", "mail", "HTTP 503")
    assert mark != fingerprint("dead letter", "job", "HTTP 503 from the bank")


def test_dead_letters_of_one_error_are_one_failure(home: Path) -> None:
    """With their count, the moments of the first and the last, and one of them as a sample."""
    with opened(home / "billing.db") as billing:
        dead = next(each for each in failures(billing, NOW) if each.kind == "dead letter")
        ids = letters_like(billing, dead.fingerprint)

    assert (3, "invoice.created") == (dead.count, dead.type)
    assert "rejected: negative amount" == dead.error
    assert dead.first_at is not None
    assert dead.last_at is not None
    assert dead.first_at <= dead.last_at
    assert (3, ids[-1]) == (len(ids), dead.sample)


def test_what_is_tried_again_fails_too(home: Path) -> None:
    """A lane that was tried, a peer with an open breaker, and a schedule that cannot send."""
    with opened(home / "billing.db") as billing, opened(home / "shop.db") as shop:
        lanes = [each for each in failures(billing, NOW) if each.kind == "retry"]
        others = {each.kind: each for each in failures(shop, NOW) if each.kind != "dead letter"}

    assert [("refund.wanted", "the bank answered 503 Service Unavailable", 1)] == [
        (each.type, each.error, each.count) for each in lanes
    ]
    assert ("warehouse", 6, "warehouse: Unreachable: connection refused") == (
        others["peer"].sample,
        others["peer"].count,
        others["peer"].error,
    )
    assert "stocktaking" == others["schedule"].sample


def test_an_unknown_fingerprint_has_no_letters(home: Path) -> None:
    """As one whose last letter was replayed meanwhile."""
    with opened(home / "billing.db") as billing:
        assert () == letters_like(billing, "0" * 12)
