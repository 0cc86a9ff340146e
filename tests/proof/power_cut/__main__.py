"""Explore power cuts by command: ``python -m tests.proof.power_cut --states 1000000``."""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path

from tests.proof.power_cut.explorer import PATIENCE, explore_days
from tests.proof.power_cut.planted import PLANTED
from tests.proof.power_cut.workload import LiveTown, Town
from tests.proof.power_cut.workshop import Workshop
from tests.proof.seed import proof_seed


def main() -> int:
    """Explore, print the verdict and the first violations, and fail if there is any."""
    parser = argparse.ArgumentParser(prog="python -m tests.proof.power_cut", description=__doc__)
    parser.add_argument(
        "--seed", type=int, default=proof_seed(), help="default: ONCEWARD_SEED, or a fixed one"
    )
    parser.add_argument("--states", type=int, default=15_000)
    parser.add_argument("--depth", type=int, choices=(1, 2), default=1)
    parser.add_argument("--aimed", action="store_true", help="two deep, before syncs only")
    parser.add_argument("--live", action="store_true", help="engines on threads of their own")
    parser.add_argument(
        "--workshop", action="store_true", help="one agent whose jobs have steps, waits and output"
    )
    parser.add_argument("--steps", type=int, default=60, help="how long the two agents live")
    parser.add_argument("--transport", choices=("memory", "file"), default="memory")
    parser.add_argument("--near", choices=("safe", "fast"), default="safe")
    parser.add_argument("--far", choices=("safe", "fast"), default="safe")
    parser.add_argument("--accept-weaker", action="store_true")
    parser.add_argument(
        "--plant",
        choices=sorted(PLANTED),
        action="append",
        default=[],
        help="a bug that is to be found",
    )
    parser.add_argument("--seconds", type=float, default=PATIENCE)
    parser.add_argument("--only", default="", help="one state, as an earlier run named it")
    parser.add_argument("--keep", type=Path, help="where the files of violations go")
    named = parser.parse_args()
    town = (LiveTown if named.live else Town)(
        seed=named.seed,
        steps=named.steps,
        transport=named.transport,
        near=named.near,
        far=named.far,
        accept_weaker=named.accept_weaker,
        mutants=tuple(named.plant),
    )
    shop = Workshop(
        seed=named.seed, steps=named.steps, durability=named.near, mutants=tuple(named.plant)
    )
    program = shop if named.workshop else town
    broken = False
    for verdict in explore_days(
        lambda seed: replace(program, seed=seed),
        seed=named.seed,
        states=named.states,
        depth=2 if named.aimed else named.depth,
        aimed=named.aimed,
        seconds=named.seconds,
        only=named.only,
        keep=named.keep,
    ):
        sys.stdout.write("".join(f"{line}\n" for line in (verdict, *verdict.violations[:10])))
        broken |= bool(verdict.violations)
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
