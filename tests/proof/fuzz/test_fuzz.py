"""Whatever strangers write is taken or refused in the ways that are documented, and in no other."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from tests.proof.fuzz import targets
from tests.proof.fuzz.campaign import fuzz, fuzz_one
from tests.proof.seed import proof_seed, size

from onceward.errors import InvalidMessage, InvalidParcel
from onceward.message import wire
from onceward.message.frame import Frame
from onceward.message.parcel import Answer, Parcel, Receipt
from onceward.transports.network import http_caller, http_endpoint
from onceward.transports.network.http_signing import Signed

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


def test_a_door_without_a_lock_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A listener that takes any signature is caught by a head with another one."""
    monkeypatch.setattr(Signed, "proves", lambda *_: True)
    monkeypatch.setattr(Signed, "proves_head", lambda *_: True)

    assert "taken 1 times" in fuzz_one("http_door", 50, 1)[1]


def test_a_door_that_takes_twice_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A listener that forgets which requests came is caught by one that comes twice."""
    monkeypatch.setattr(http_caller.Nonces, "add", lambda *_: True)

    assert "taken 2 times" in fuzz_one("http_door", 50, 1)[1]


def test_a_door_that_stumbles_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A listener that fails at a head that it did not expect is caught by its status."""
    known = http_endpoint.HttpEndpoint._look

    def look(self: Any, request: Any, verb: Any) -> Any:
        int(request.headers.get("webhook-timestamp", "0"))
        return known(self, request, verb)

    monkeypatch.setattr(http_endpoint.HttpEndpoint, "_look", look)

    assert "status {500}" in fuzz_one("http_door", 50, 1)[1]


def test_a_door_that_forgets_its_places_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A listener that does not give back what a broken request took is caught."""
    monkeypatch.setattr("tests.proof.fuzz.http_door.PATIENCE", 0.5)
    monkeypatch.setattr(http_endpoint._Body, "release", lambda _: None)

    assert "stay taken" in fuzz_one("http_door", 50, 1)[1]
