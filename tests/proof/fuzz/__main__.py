"""
``python -m tests.proof.fuzz TARGET`` searches with atheris beyond what Hypothesis tried.

atheris must be installed.
"""

from __future__ import annotations

import sys
from importlib import import_module

from tests.proof.fuzz.targets import FILED, PLAIN, Target


def main(arguments: list[str]) -> int:
    """Fuzz one target until it falls over or the fuzzer's own options say that it is enough."""
    known = [*PLAIN, *FILED]
    if not arguments or arguments[0] not in known:
        sys.stderr.write(
            f"which target? {', '.join(known)}; libFuzzer's options may follow, such as "
            f"-max_total_time=60\n"
        )
        return 2
    try:
        atheris = import_module("atheris")
    except ModuleNotFoundError:
        sys.stderr.write("coverage-guided fuzzing needs atheris: pip install atheris\n")
        return 1
    name, *options = arguments
    target: Target = PLAIN[name] if name in PLAIN else FILED[name]()
    atheris.instrument_all()
    atheris.Setup([name, *options], target)
    atheris.Fuzz()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
