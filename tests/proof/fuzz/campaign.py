"""
Hypothesis over all targets, several inputs to an example.

What CI runs, and ``python -m tests.proof``.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import repeat
from typing import Any, Final

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from hypothesis.errors import FlakyFailure, HypothesisException
from tests.proof.fuzz.http_door import END
from tests.proof.fuzz.targets import COMMANDS, FILED, PLAIN, PUSHED, SEP, Target
from tests.proof.seed import proof_seed
from tests.worker_pool import worker_pool

from onceward.message import wire
from onceward.message.frame import digest
from onceward.message.parcel import Answer, ParcelFrame, Receipt
from onceward.message.settings import Settings

HEAD: Final = '{"specversion":"1.0","id":"0","source":"urn:onceward:a","type":"t","recipient":"b"'
GOOD: Final = (
    HEAD + ',"session":"s","priority":1,"time":"2026-01-01T00:00:00.000Z","data":{"a":[1]}}'
).encode()
MANY: Final = 40
"""Inputs of one example."""
SHARES: Final = {
    "frame": 0.16,
    "parcel": 0.12,
    "wire_parcel": 0.25,
    "wire_answer": 0.15,
    "name": 0.09,
    "topic": 0.12,
    "settings": 0.05,
    "sql_send": 0.034,
    "cli": 0.006,
    "http_door": 0.02,
}
"""Which part of the inputs each target gets: cheap ones more."""

PARCEL: Final = wire.encode_parcel(
    replace(PUSHED, frames=(ParcelFrame("0", GOOD.decode(), digest(GOOD.decode())),))
)
ANSWER: Final = wire.encode_answer(
    Answer(verdict="accepted", receipts=(Receipt("0", "stored"),)), PUSHED
)
VALUE: Final = re.compile(rb'(?<=":)("[^"]*"|[0-9]+)')
"""A value of an event, to be replaced by another."""

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


def _spliced(draw: Callable[..., Any], good: bytes = GOOD) -> bytes:
    start = draw(st.integers(0, len(good)))
    end = draw(st.integers(start, min(len(good), start + 20)))
    return good[:start] + bytes(draw(st.binary(max_size=8))) + good[end:]


def _replaced(draw: Callable[..., Any], good: bytes) -> bytes:
    """Return a body with one value replaced by another JSON value."""
    found = draw(st.sampled_from(list(VALUE.finditer(good))))
    value = json.dumps(draw(scalars | words | st.lists(scalars, max_size=2))).encode()
    return good[: found.start()] + value + good[found.end() :]


def _bodies(good: bytes) -> st.SearchStrategy[bytes]:
    return st.one_of(
        st.just(good),
        st.binary(max_size=80),
        st.composite(_spliced)(good),
        st.composite(_replaced)(good),
    )


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

WAITS: Final = frozenset({"http_door"})
"""Targets whose inputs may wait for limits of time; one that fails is not made smaller."""
odd_requests = st.sampled_from(
    [
        *(
            verb + b" /v1/agents/b/parcels HTTP/1.1"
            for verb in (b"GET", b"HEAD", b"PUT", b"OPTIONS", b"TRACE", b"post", b"P\0ST", b"PRI *")
        ),
        *(
            b"POST " + path + b" HTTP/1.1"
            for path in (
                *(b"/", b"*", b"//v1/agents/b/parcels", b"/v1/agents/b/../b/parcels"),
                *(b"/v1/agents/%62/parcels", b"/v1/agents/b%00/parcels", b"/v1/agents//parcels"),
                *(b"/v1/agents/b/ping", b"/v1/agents/b/collect", b"/v1/agents/b/parcels/"),
                *(b"/v1/agents/b/parcels?x=1", b"/v1/agents/b/parcels#x", b"/%9000%%9000%"),
                *(b"http://y/v1/agents/b/parcels", b"/v1/agents/%ff/parcels", b"/healthz"),
            )
        ),
        *(b"POST /v1/agents/b/parcels HTTP/" + v for v in (b"1.0", b"0.9", b"2.0", b"1.1 x", b"")),
    ]
)
GOOD_LINES: Final = tuple(
    f"{name}: %{name}%".encode()
    for name in (
        *("onceward-from", "webhook-id", "webhook-timestamp", "webhook-signature"),
        *("onceward-head", "content-type", "content-length", "host"),
    )
)
odd_lines = st.sampled_from(
    [
        *(b"content-length: " + v for v in (b"0", b"-1", b"9" * 30, b"1e3", b"+1", b"0x1", b"")),
        *(b"content-length: %content-length%, %content-length%", b"content-length: 99999999"),
        *(b"transfer-encoding: " + v for v in (b"chunked", b"gzip, chunked", b"identity", b"\x0b")),
        *(
            b"content-encoding: gzip",
            b"content-type: %content-type%; charset=x",
            b"expect: 100-continue",
        ),
        *(b"connection: close", b"connection: upgrade", b"upgrade: websocket", b"upgrade: h2c"),
        *(b"onceward-from:", b"onceward-from: b", b"onceward-from: a, a", b"Onceward-From: A"),
        *(b"onceward_from: a", b"onceward-from : a", b" onceward-from: a", b"onceward-from: a\0"),
        *(b"webhook-signature: v1,AAAA", b"webhook-signature: v1a,%webhook-signature%"),
        *(b"webhook-timestamp: 1", b"webhook-timestamp: %webhook-timestamp%.0", b"webhook-id: x"),
        *(b"x: aaaaaaaaaa", b"x: %9000%", b"x: %70000%"),
        *(
            b"%70000%: x",
            b"x",
            b":",
            b": x",
            b"\xff: \xff",
            b"x:\ty",
            b"\r\n",
            b"x: y\nz: w",
        ),
        b"%head%",
    ]
)
VARIANTS: Final = tuple(
    (name, f"{name}: {value}".encode())
    for name, values in {
        "onceward-from": ("b", "A", "all", "a, a", "a\0", "", "%onceward-from%"),
        "webhook-id": ("x", "%webhook-id%, %webhook-id%", "0" * 32, "%webhook-id%"),
        "webhook-timestamp": ("1", "-1", "%webhook-timestamp%.0", "now", "%webhook-timestamp%"),
        "webhook-signature": ("v1,AAAA", "v1a,x", "", "v1,AAAA %webhook-signature%"),
        "onceward-head": ("v1,AAAA", "", "%webhook-signature%"),
        "content-type": ("text/plain", "%content-type%; charset=x"),
        "content-length": ("0", "-1", "1e3", "9" * 30, "%content-length%, %content-length%"),
    }.items()
    for value in values
)


def _varied(variant: tuple[str, bytes]) -> list[bytes]:
    """Return a good head in which one line is another."""
    name, line = variant
    return [line, *(each for each in GOOD_LINES if not each.startswith(name.encode()))]


heads = st.tuples(
    st.just(b"%line%") | odd_requests,
    st.one_of(
        st.lists(odd_lines | st.binary(max_size=30), max_size=4).map(lambda odd: [b"%head%", *odd]),
        st.lists(odd_lines, max_size=4).map(lambda odd: [*odd, b"%head%"]),
        st.lists(odd_lines | st.sampled_from(GOOD_LINES), max_size=12),
        st.permutations(GOOD_LINES),
        st.sampled_from(VARIANTS).map(_varied),
        st.tuples(st.permutations(GOOD_LINES), odd_lines).map(lambda two: [*two[0][:-1], two[1]]),
    ),
    st.just(b"%body%")
    | st.sampled_from(
        [b"%body%", b"", b"%body%x", b"%body%%line%\r\n%head%\r\n\r\n%body%", b"%chunk%"]
    )
    | st.sampled_from([b"%chunk%0\r\n\r\n", b"0\r\n\r\n", b"ffffffffff\r\n", b"-1\r\n"])
    | st.binary(max_size=80),
)

INPUTS: Final[dict[str, st.SearchStrategy[bytes]]] = {
    "frame": frames,
    "parcel": st.lists(frames, max_size=3).map(b"\n".join),
    "wire_parcel": _bodies(PARCEL),
    "wire_answer": _bodies(ANSWER),
    "name": (words | texts).map(lambda text: text.encode("utf-8", "replace")),
    "topic": st.tuples(words | texts, words | texts).map(
        lambda two: SEP.join(two).encode("utf-8", "replace")
    ),
    "settings": pairs.map(
        lambda some: SEP.join(part for pair in some for part in pair).encode("utf-8", "replace")
    ),
    "sql_send": parted.map(lambda parts: b"bob\x1ftext" + parts if parts[:1] == b"\x1f" else parts),
    "http_door": heads.map(lambda made: SEP.encode().join([made[0], *made[1]]) + END + made[2]),
    "cli": lines.map(lambda line: SEP.join([line[0], *line[1]]).encode("utf-8", "replace")),
}


@dataclass(frozen=True, slots=True)
class Fuzzed:
    """What all targets made of their inputs; the same seed tries the same ones."""

    harness: str
    count: int
    violations: tuple[str, ...]
    seconds: float


def fuzz(inputs: int = 300_000, *, seed: int | None = None, processes: int = 2) -> Fuzzed:
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
        phases=[Phase.generate, *([Phase.shrink] * (name not in WAITS))],
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
    except FlakyFailure as error:  # a server remembers what came before
        return count, f"{name}: {error.exceptions[0]}"[:2000]
    except HypothesisException:
        raise
    except Exception as error:  # noqa: BLE001 - whatever a target raises was not expected of it
        notes = " ".join(getattr(error, "__notes__", ()))
        return count, f"{name}: {type(error).__name__}: {error} {notes}"[:2000]
    return count, ""
