"""Topics: matches per core against ten thousand subscriptions, beside the plain rule on each."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Final

from tests.bench.measure import Goal, Result, alternate, compare, repeat
from tests.bench.plan import Plan

from onceward.message.topics import TopicIndex, matches

SUBSCRIPTIONS: Final = 10_000
TOPICS: Final = 1000
AT_LEAST: Final = 100_000
WORDS: Final = [f"w{number}" for number in range(40)]


def topics(plan: Plan) -> Iterator[Result]:
    """Match topics against mixed subscriptions by the index, and by the rule on every one."""
    rng = random.Random(7)
    patterns = [_pattern(rng) for _ in range(SUBSCRIPTIONS)]
    published = [
        ".".join(rng.choice(WORDS) for _ in range(rng.randint(2, 4))) for _ in range(TOPICS)
    ]
    index: TopicIndex[int] = TopicIndex()
    for number, pattern in enumerate(patterns):
        index.add(pattern, number)

    def by_index() -> None:
        for topic in published:
            index.find(topic)

    def by_rule() -> None:
        for pattern in patterns:
            matches(pattern, published[0])

    pairs = alternate(
        lambda: repeat(by_index, plan.lap_for, messages=TOPICS),
        lambda: repeat(by_rule, plan.lap_for),
        rounds=plan.rounds,
    )
    found = sum(len(index.find(topic)) for topic in published) / TOPICS
    yield compare(
        "topics",
        pairs,
        durability="none",
        goals=[Goal("rate", at_least=AT_LEAST)],
        subscriptions=SUBSCRIPTIONS,
        found=found,
    )


def _pattern(rng: random.Random) -> str:
    """Return one of a mix: half exact, a third with one wild segment, the rest open at the end."""
    segments = [rng.choice(WORDS) for _ in range(rng.randint(2, 4))]
    draw = rng.random()
    if draw > 1 / 2:
        return ".".join(segments)
    if draw > 1 / 6:
        segments[rng.randrange(len(segments))] = "*"
        return ".".join(segments)
    return ".".join([*segments[:2], "#"])
