"""
Keep append-only logs outside the files, and judge the effects by them.

A log is one file that several processes append to. Each line is one write, so
that a process that is killed leaves whole lines only, but for its last.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path


class Log:
    """An append-only log of one kind of fact, shared by processes."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def add(self, *facts: object) -> None:
        """Append facts, one line each, in one write; they survive the death of this process."""
        text = "".join(json.dumps(fact) + "\n" for fact in facts)
        handle = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(handle, text.encode())
        finally:
            os.close(handle)

    def __iter__(self) -> Iterator[object]:
        """Yield the facts in writing order, without an incomplete last line."""
        if not self._path.exists():
            return
        with self._path.open(encoding="utf-8") as lines:
            for line in lines:
                if line.endswith("\n"):
                    yield json.loads(line)


@dataclass(frozen=True, slots=True)
class Effect:
    """One effect of one message, in the order in which effects were committed."""

    id: str
    lane: str
    number: int


def judge(*, tried: Iterable[str], promised: Iterable[str], effects: Sequence[Effect]) -> list[str]:
    """
    Return the violations of exactly once in order; empty if there are none.

    *tried* are ids of sends that began, *promised* of those that returned; the
    numbers of a lane's messages grow in the order of their sending.
    """
    times = Counter(effect.id for effect in effects)
    began = set(tried)
    found = [
        f"{message_id} was promised and had no effect"
        for message_id in sorted(set(promised) - set(times))
    ]
    found += [
        f"{message_id} had {count} effects"
        for message_id, count in sorted(times.items())
        if count > 1
    ]
    found += [
        f"{message_id} had an effect and was never sent"
        for message_id in sorted(set(times) - began)
    ]
    return [*found, *_disorder(effects)]


def _disorder(effects: Sequence[Effect]) -> Iterator[str]:
    newest: dict[str, int] = {}
    for effect in effects:
        before = newest.get(effect.lane, effect.number - 1)
        if effect.number < before:
            yield f"{effect.id} of lane {effect.lane} took effect after number {before}"
        newest[effect.lane] = max(before, effect.number)
