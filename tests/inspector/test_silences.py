"""Silences are a small file: bounded, replaced as a whole, and never a reason to fail."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from onceward.ops.inspector.silences import MOST, Silence, Silences


def silence(name: str, until_at: int, at: int = 0) -> Silence:
    """Return a silence."""
    return Silence(name, until_at, "known", "127.0.0.1", at)


def test_a_silence_ends_by_itself(tmp_path: Path) -> None:
    """At its moment it is there no more."""
    silences = Silences(tmp_path / "silences.json")
    silences.add(silence("a", 10))

    assert ["a"] == [*silences.now(9)]
    assert [] == [*silences.now(10)]


def test_another_inspector_of_the_home_has_them_too(tmp_path: Path) -> None:
    """The file is read for each page."""
    first, second = (Silences(tmp_path / "silences.json") for _ in range(2))
    first.add(silence("a", 10))
    second.add(silence("b", 10))

    assert ["a", "b"] == sorted(first.now(0))
    assert first.end("b", 0)
    assert ["a"] == [*second.now(0)]
    assert not second.end("b", 0)


def test_only_so_many_are_kept(tmp_path: Path) -> None:
    """Those that end last."""
    silences = Silences(tmp_path / "silences.json")
    for n in range(MOST + 2):
        silences.add(silence(f"{n:03}", 1000 + n))

    assert [f"{n:03}" for n in range(2, MOST + 2)] == sorted(silences.now(0))
    assert MOST == len(json.loads(silences.path.read_text(encoding="utf-8")))


@pytest.mark.parametrize("text", ["", "{", "[1]", '[{"fingerprint": "a"}]', "null"])
def test_a_damaged_file_silences_nothing(tmp_path: Path, text: str) -> None:
    """The next silence replaces it."""
    path = tmp_path / "silences.json"
    path.write_text(text, encoding="utf-8")
    silences = Silences(path)

    assert {} == silences.now(0)
    silences.add(silence("a", 10))
    assert ["a"] == [*silences.now(0)]
