"""No verb of a file waits for what another file, or another session, holds."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from threading import RLock

import pytest
from tests.proof.liveness import judge
from tests.proof.liveness.holds import HOLDS
from tests.proof.liveness.verbs import CALLS, NOT_CALLED, public

from onceward.core.deliver.carriers import Carriers, Delivery, Share
from onceward.file import open_files


def test_every_public_verb_is_called_or_says_why_not() -> None:
    """A verb that is added is measured, or has a reason."""
    assert public() == set(CALLS) | set(NOT_CALLED)
    assert set() == set(CALLS) & set(NOT_CALLED)


@pytest.mark.parametrize("held", HOLDS)
def test_nothing_waits_for_what_is_held(
    held: str, tmp_path: Path, aloud: Callable[[object], None]
) -> None:
    """Each verb returns within half a second, while the thing is held for as long as it takes."""
    told = judge.judged(held, tmp_path)
    slowest, verb = told.slowest
    aloud(f"{held}: {told.verbs} verbs, the slowest {verb} with {1000 * slowest:.0f} ms")

    assert () == told.waited


def test_a_verb_that_waits_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A lock that all openings share, as there was one, is held by the opening of a held file."""
    shared = RLock()
    monkeypatch.setattr(open_files, "turn", lambda _: shared)
    monkeypatch.setattr(judge, "PATIENCE", 0.7)
    monkeypatch.setattr(judge, "TRIES", 1)
    monkeypatch.setattr(judge, "CALLS", {})
    monkeypatch.setattr(judge, "_delivered", lambda _: None)

    told = judge.judged("a file that is being opened", tmp_path)

    assert ["Postbox(...) and close"] == [each.verb for each in told.waited]


@pytest.mark.parametrize(
    ("held", "share", "most"),
    [
        ("own peers that answered", "known", 1),
        ("own peers that never answered", "new", 8),
        ("own peers that fail", "failing", 8),
    ],
)
def test_a_share_of_carriers_that_starves_others_is_found(
    held: str, share: Share, most: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One carrier for all peers that answered, or all carriers for peers that do not."""
    make = Carriers.__init__

    def planted(self: Carriers, size: int, run: Callable[[Delivery], None]) -> None:
        make(self, size, run)
        self._most[share] = most

    monkeypatch.setattr(Carriers, "__init__", planted)
    monkeypatch.setattr(judge, "PATIENCE", 0.7)
    monkeypatch.setattr(judge, "TRIES", 1)
    monkeypatch.setattr(judge, "CALLS", {})

    told = judge.judged(held, tmp_path)

    assert ["a message to a peer that answers"] == [each.verb for each in told.waited]
