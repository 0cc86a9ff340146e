"""Whatever strangers write is taken or refused in the ways that are documented, and in no other."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from tests.proof.fuzz import targets
from tests.proof.fuzz.campaign import fuzz, fuzz_one
from tests.proof.seed import proof_seed, size

from onceward.errors import InvalidMessage, InvalidParcel
from onceward.model import wire
from onceward.model.frame import Frame
from onceward.model.parcel import Answer, Parcel, Receipt

INPUTS = size(300_000, 35_000, "ONCEWARD_INPUTS")
"""Of which 120,000 are bodies from networks."""


@pytest.mark.timeout(900)
def test_many_inputs(aloud: Callable[[object], None]) -> None:
    """
    Frames, parcels, bodies from networks, names, topics, settings, rows, command lines.

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


def test_a_decoder_with_foreign_errors_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A decoder that lets an error of its library through is caught."""

    def decode(raw: bytes) -> Parcel:
        if b"[" in raw:
            raise InvalidParcel("no parcel")
        raise IndexError("planted")

    monkeypatch.setattr(wire, "decode_parcel", decode)

    assert "IndexError" in fuzz_one("wire_parcel", 50, 1)[1]


def test_an_answer_for_other_frames_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A decoder that takes receipts for frames that were not in the parcel is caught."""
    decode = wire.decode_answer

    def forget(raw: bytes, pushed: Parcel) -> Answer:
        found = decode(raw, pushed)
        return replace(found, receipts=(Receipt("other", "processed"),))

    monkeypatch.setattr(wire, "decode_answer", forget)

    assert "receipts for other frames" in fuzz_one("wire_answer", 50, 1)[1]
