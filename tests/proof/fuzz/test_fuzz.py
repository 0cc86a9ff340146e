"""Whatever strangers write is taken or refused in the ways that are documented, and in no other."""

from collections.abc import Callable
from typing import Any

import pytest
from tests.proof.fuzz import targets
from tests.proof.fuzz.campaign import fuzz, fuzz_one
from tests.proof.seed import proof_seed, size

from onceward.errors import InvalidMessage
from onceward.model.frame import Frame

INPUTS = size(100_000, 20_000, "ONCEWARD_INPUTS")


@pytest.mark.timeout(900)
def test_many_inputs(aloud: Callable[[object], None]) -> None:
    """
    Frames, parcels, names, topics, settings, rows for ``send`` and command lines.

    Nothing unexpected comes out.
    """
    first = proof_seed()
    found = fuzz(round(INPUTS * 1.05), seed=first)

    aloud(f"fuzz: {found.count} inputs, seed {first}, {found.seconds:.0f} s")
    assert () == found.violations
    assert found.count >= INPUTS


def test_a_wrong_match_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pattern that matches by prefix is caught by the rules written down a second time."""
    monkeypatch.setattr(
        targets, "matches", lambda pattern, topic: topic.startswith(pattern.rstrip("#*."))
    )

    assert "Surprise" in fuzz_one("topic", 50, 1)[1]


def test_a_foreign_error_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A parser that lets an error of its library through is caught."""

    def parse(raw: Any) -> Frame:
        if b"\xff" in bytes(raw):
            raise UnicodeDecodeError("utf-8", b"\xff", 0, 1, "planted")
        raise InvalidMessage("no frame")

    monkeypatch.setattr(Frame, "parse", staticmethod(parse))

    assert "UnicodeDecodeError" in fuzz_one("frame", 50, 1)[1]


def test_a_path_that_passes_for_a_name_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A name that climbs out of its folder is caught."""
    monkeypatch.setattr(targets, "agent_name", lambda text: text)

    assert "passed for an agent's name" in fuzz_one("name", 50, 1)[1]
