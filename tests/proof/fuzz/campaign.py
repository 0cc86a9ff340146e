"""
Hypothesis over all targets, several inputs to an example.

What CI runs, and ``onceward prove``.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from itertools import repeat
from typing import Any, Final

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from hypothesis.errors import HypothesisException
from tests.proof.fuzz.targets import COMMANDS, FILED, PLAIN, SEP, Target
from tests.proof.seed import proof_seed

from onceward.model.settings import Settings
from onceward.testing.workers import worker_pool

HEAD: Final = '{"specversion":"1.0","id":"0","source":"urn:onceward:a","type":"t","recipient":"b"'
GOOD: Final = (
    HEAD + ',"session":"s","priority":1,"time":"2026-01-01T00:00:00.000Z","data":{"a":[1]}}'
).encode()
MANY: Final = 40
"""Inputs of one example."""
SHARES: Final = {
    "frame": 0.3,
    "parcel": 0.2,
    "name": 0.15,
    "topic": 0.2,
    "settings": 0.08,
    "sql_send": 0.06,
    "cli": 0.01,
}
"""Which part of the inputs each target gets: cheap ones more."""

texts = st.text(max_size=20)
words = st.sampled_from(
    [
        "",
        "a",
        "a.b",
        "*",
        "#",
        "a.*",
        "a.#",
        "urgent",
        "-1",
        "0",
        "1e400",
        "9" * 30,
        "null",
        "\x00",
        "\x01\xff",
        "../x",
        "NaN",
    ]
)
scalars = st.none() | st.booleans() | st.integers() | st.floats() | texts


def _spliced(draw: Callable[..., Any]) -> bytes:
    start = draw(st.integers(0, len(GOOD)))
    end = draw(st.integers(start, min(len(GOOD), start + 20)))
    return GOOD[:start] + bytes(draw(st.binary(max_size=8))) + GOOD[end:]


frames = st.one_of(
    st.binary(max_size=80),
    st.composite(_spliced)(),
    texts.map(lambda t: (HEAD + f',"data":{t}}}').encode("utf-8", "replace")),
)
parted = st.lists(words | texts, max_size=13).map(
    lambda parts: SEP.join(parts).encode("utf-8", "replace")
)
fields = st.sampled_from([*Settings.model_fields, "Durability", ""])
pairs = st.lists(st.tuples(fields, words | texts), max_size=3)
options = st.sampled_from(
    [
        *(
            "--json",
            "--limit",
            "--help",
            "--to",
            "--db",
            "--agent",
            "--state",
            "--type",
            "--session",
            "--all",
            "--since",
            "--mode",
        ),
        "ada",
        "bob",
    ]
)
lines = st.tuples(st.sampled_from(COMMANDS), st.lists(words | texts | options, max_size=4))

INPUTS: Final[dict[str, st.SearchStrategy[bytes]]] = {
    "frame": frames,
    "parcel": st.lists(frames, max_size=3).map(b"\n".join),
    "name": (words | texts).map(lambda text: text.encode("utf-8", "replace")),
    "topic": st.tuples(words | texts, words | texts).map(
        lambda two: SEP.join(two).encode("utf-8", "replace")
    ),
    "settings": pairs.map(
        lambda some: SEP.join(part for pair in some for part in pair).encode("utf-8", "replace")
    ),
    "sql_send": parted.map(lambda parts: b"bob\x1ftext" + parts if parts[:1] == b"\x1f" else parts),
    "cli": lines.map(lambda line: SEP.join([line[0], *line[1]]).encode("utf-8", "replace")),
}


@dataclass(frozen=True, slots=True)
class Fuzzed:
    """What all targets made of their inputs; the same seed tries the same ones."""

    harness: str
    count: int
    violations: tuple[str, ...]
    seconds: float


def fuzz(inputs: int = 100_000, *, seed: int | None = None, processes: int = 2) -> Fuzzed:
    """Give *inputs* inputs to the targets together."""
    begun, first = time.monotonic(), proof_seed() if seed is None else seed
    shares = {name: max(1, round(inputs * share / MANY)) for name, share in SHARES.items()}
    with worker_pool(processes) as pool:
        found = list(pool.map(fuzz_one, shares, shares.values(), repeat(first)))
    return Fuzzed(
        "fuzz",
        sum(count for count, _ in found),
        tuple(wrong for _, wrong in found if wrong),
        time.monotonic() - begun,
    )


def fuzz_one(name: str, examples: int, first: int) -> tuple[int, str]:
    """Give one target its examples; return how many inputs it saw, and what was wrong."""
    if name in PLAIN:
        return _try(name, PLAIN[name], examples, first)
    with closing(FILED[name]()) as target:
        return _try(name, target, examples, first)


def _try(name: str, target: Target, examples: int, first: int) -> tuple[int, str]:
    count = 0

    @seed(first)
    @settings(
        max_examples=examples,
        deadline=None,
        database=None,
        phases=[Phase.generate, Phase.shrink],
        suppress_health_check=list(HealthCheck),
        print_blob=False,
    )
    @given(st.lists(INPUTS[name], min_size=MANY, max_size=MANY))
    def take(some: list[bytes]) -> None:
        nonlocal count
        for raw in some:
            count += 1
            target(raw)

    try:
        take()
    except HypothesisException:
        raise
    except Exception as error:  # noqa: BLE001 - whatever a target raises was not expected of it
        notes = " ".join(getattr(error, "__notes__", ()))
        return count, f"{name}: {type(error).__name__}: {error} {notes}"[:2000]
    return count, ""
