"""Every planted mistake is noticed, and the layer of tests that notices it is named."""

import os
import re
import shutil
import subprocess
import sys
import time
import tomllib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from random import Random

import pytest

from onceward.testing.daily import seed_of_the_day

ROOT = Path(__file__).resolve().parents[3]


@dataclass(frozen=True, slots=True)
class Mutant:
    """One planted mistake."""

    name: str
    promise: str
    file: str
    before: str
    after: str
    tests: list[str]


MUTANTS = [Mutant(**each) for each in tomllib.loads(Path(__file__).with_name("mutants.toml").read_text(encoding="utf-8"))["mutant"]]
LIMIT = 600.0
CHOSEN = os.environ.get("ONCEWARD_MUTANTS", "")
"""A pattern of names (``.`` is all), instead of the day's own."""
A_DAY = 12


def todays() -> list[Mutant]:
    """Return the mutants that are tried: a dozen by the date, others every day."""
    if CHOSEN:
        return [each for each in MUTANTS if re.search(CHOSEN, each.name)]
    return Random(seed_of_the_day()).sample(MUTANTS, A_DAY)


def test_there_are_enough_of_them() -> None:
    """At least thirty, with names of their own, and each promise is broken by three or more."""
    by_promise = {f"P{n}": sum(each.promise == f"P{n}" for each in MUTANTS) for n in range(1, 8)}

    assert len(MUTANTS) == len({each.name for each in MUTANTS})
    assert len(MUTANTS) >= 30
    assert [] == [promise for promise, count in by_promise.items() if count < 3]


@pytest.mark.parametrize("each", MUTANTS, ids=lambda each: each.name)
def test_a_mutant_fits(each: Mutant) -> None:
    """What it replaces stands exactly once in the code of today, and its tests exist."""
    assert 1 == (ROOT / each.file).read_text(encoding="utf-8").count(each.before)
    assert [] == [name for name in each.tests if not (ROOT / name).exists()]


@pytest.mark.broken("mutants leave what they leave")
@pytest.mark.timeout(LIMIT)
def test_the_tests_pass_without_a_mutant(tmp_path: Path) -> None:
    """Whatever kills a mutant passes over an unchanged copy, or its failing would prove nothing."""
    asked = sorted({name for each in todays() for name in each.tests})
    control = Mutant("none", "", "src/onceward/ids.py", "", "", [" ".join(asked)])

    assert "" == _killer(control, tmp_path / "copy")


@pytest.mark.broken("mutants leave what they leave")
@pytest.mark.timeout(LIMIT * len(MUTANTS))
def test_every_mutant_is_killed(tmp_path: Path) -> None:
    """Each is applied to a copy of its own and its tests run over it; one that nobody notices is a hole in the tests."""
    chosen = todays()
    with ThreadPoolExecutor(2) as pool:
        killers = list(pool.map(lambda pair: _told(pair[1], tmp_path / str(pair[0])), enumerate(chosen)))

    assert [] == [each.name for each, killer in zip(chosen, killers, strict=True) if not killer]


def _told(each: Mutant, copy: Path) -> str:
    begun = time.monotonic()
    killer = _killer(each, copy)
    print(f"{each.promise}  {each.name:45} {killer or 'SURVIVED'}  {time.monotonic() - begun:.0f} s", flush=True)
    return killer


def _killer(each: Mutant, copy: Path) -> str:
    """Return the first test that fails on the mutant, empty where none does."""
    for folder in ("src", "schema", "tests"):
        shutil.copytree(ROOT / folder, copy / folder, ignore=shutil.ignore_patterns("__pycache__", "proof", "spark"))
    shutil.copy(ROOT / "pyproject.toml", copy)
    file = copy / each.file
    file.write_text(file.read_text(encoding="utf-8").replace(each.before, each.after), encoding="utf-8")
    for tests in each.tests:
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", f"--basetemp={copy / 'tmp'}", *tests.split()]
        path = {"PYTHONPATH": str(copy / "src"), "PYTHONDONTWRITEBYTECODE": "1"}
        try:
            ran = subprocess.run(command, cwd=copy, env=os.environ | path, capture_output=True, text=True, check=False, timeout=LIMIT)
        except subprocess.TimeoutExpired:
            return f"{tests} (did not end)"
        if ran.returncode == 1:
            return str(re.findall(r"^(?:FAILED|ERROR) (\S+)", ran.stdout, re.MULTILINE)[0])
        assert 0 == ran.returncode, ran.stdout[-2000:] + ran.stderr[-2000:]
    shutil.rmtree(copy)
    return ""
