"""The sweep: every task again and again, each time with another operation that fails."""

from __future__ import annotations

import os
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Final

from tests.proof.disk_failures.trial import Bench, Case, Found
from tests.proof.power_cut.pair import Terms
from tests.proof.power_cut.part import arena
from tests.worker_pool import worker_pool

PATIENCE: Final = 86_400.0


@dataclass(frozen=True, slots=True)
class Sweep:
    """What a sweep found."""

    harness: str
    count: int
    """Operations that failed."""
    violations: tuple[str, ...]
    seconds: float
    seed: int
    of: int
    """How many operations could fail in all."""
    kinds: Counter[str] = field(default_factory=Counter)
    """How often the disk failed in each way."""
    unknown: int = 0
    """Steps that ended with an unknown outcome."""

    def __str__(self) -> str:
        said = (
            f"{self.harness}: seed {self.seed}, {self.count} of {self.of} operations failed "
            f"{dict(sorted(self.kinds.items()))}"
        )
        return (
            f"{said}, {self.unknown} unknown outcomes, {len(self.violations)} violations in "
            f"{self.seconds:.1f} s"
        )


@dataclass(frozen=True, slots=True)
class Share:
    """What is asked of one process."""

    terms: Terms
    faults: int
    seconds: float
    only: str
    part: int
    parts: int


def sweep(
    terms: Terms,
    *,
    faults: int = 10**9,
    seconds: float = PATIENCE,
    only: str = "",
    workers: int | None = None,
) -> Sweep:
    """
    Let *faults* operations fail, all of them by default, and return what broke.

    Which ones is drawn by the seed of *terms*; *only* names one of an earlier
    run. Ends early after *seconds*.
    """
    parts = 1 if only else workers or min(8, os.cpu_count() or 1)
    begun = time.monotonic()
    shares = [
        Share(terms, -(-faults // parts), seconds, only, part, parts) for part in range(parts)
    ]
    with worker_pool(parts) as pool:
        found = list(pool.map(_run, shares))
    kinds = sum((each.kinds for each in found), Counter[str]())
    return Sweep(
        harness="disk failures",
        count=kinds.total(),
        violations=tuple(words for each in found for words in each.violations),
        seconds=time.monotonic() - begun,
        seed=terms.seed,
        of=found[0].of,
        kinds=kinds,
        unknown=sum(each.unknown for each in found),
    )


def _run(share: Share) -> Found:
    until = time.monotonic() + share.seconds
    with arena() as folder:
        bench = Bench(share.terms, folder)
        cases = (
            [Case.parse(share.only)]
            if share.only
            else bench.cases()[share.part :: share.parts][: share.faults]
        )
        for case in cases:
            if time.monotonic() > until:
                break
            bench.fail(case)
        return bench.found
