"""
``python -m tests.proof.simulation SEED`` tells one story aloud.

With ``--worlds N`` many are told quietly.
"""

from __future__ import annotations

import sys

from tests.proof.simulation.campaign import first_seed, simulate, tell


def main(arguments: list[str]) -> int:
    """Tell what is asked for; return how much was wrong."""
    if arguments[:1] == ["--worlds"]:
        found = simulate(int(arguments[1]))
        wrong = (*found.violations, *found.rare.violations)
        _say(f"{found.count} worlds from seed {first_seed()} in {found.seconds:.0f} s", *wrong)
        _say(*(f"{times:8}  {what}" for what, times in sorted(found.reached.items())))
        return len(wrong)
    told = tell(int(arguments[0]), aloud=True)
    _say(*told.wrong, f"fingerprint {told.fingerprint}")
    return len(told.wrong)


def _say(*lines: str) -> None:
    sys.stdout.write("".join(f"{line}\n" for line in lines))


if __name__ == "__main__":
    sys.exit(bool(main(sys.argv[1:])))
