"""No verb of a file waits for what another file, or another session, holds."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from threading import RLock

import pytest
from tests.proof.liveness import judge
from tests.proof.liveness.holds import HOLDS
from tests.proof.liveness.verbs import CALLS, NOT_CALLED, public

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
