"""
Every operation of a disk may fail.

Errors are ours, say what is true, and one failure is not the end.

The seed is fixed and printed; ``ONCEWARD_SEED`` chooses another.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from itertools import product
from pathlib import Path
from typing import Any
from unittest.mock import patch

import apsw
import pytest
from tests.proof.disk_failures.failing import KINDS, FailingDisk, Fault
from tests.proof.disk_failures.sweep import sweep
from tests.proof.disk_failures.task import Lasts
from tests.proof.disk_failures.trial import Bench, Case
from tests.proof.power_cut.disk import Disk
from tests.proof.power_cut.pair import Terms
from tests.proof.power_cut.part import arena
from tests.proof.seed import proof_seed, size

from onceward.errors import StoreFault

FAULTS = size(2_000, 100)
WAYS: tuple[Lasts, ...] = ("once", "while")
SEED = proof_seed()

pytestmark = pytest.mark.timeout(1200)  # more than a hang; how long it takes depends on the machine


def test_whatever_fails_nobody_is_lied_to(aloud: Callable[[object], None]) -> None:
    """
    A sample of all operations, in all ways.

    Nothing acknowledged is lost, nothing denied is there, no error is a stranger's.
    """
    found = sweep(Terms(seed=SEED, busy_timeout=0.0), faults=FAULTS)
    aloud(found)

    assert () == found.violations
    assert (
        found.count >= FAULTS * 0.9
    )  # the last operations of a task may not be reached after others have failed
    assert set(KINDS) - {"delete", "truncate", "lock", "busy", "open", "stat"} <= set(found.kinds)
    assert found.unknown > 0


@pytest.fixture(scope="module")
def bench() -> Iterator[Bench]:
    """Return the bench on which tasks are run."""
    with arena() as folder:
        yield Bench(Terms(seed=7, busy_timeout=0.0), folder)


def test_every_kind_of_failure_has_its_operations(bench: Bench) -> None:
    """
    No kind is there in name only.

    Each has operations that can fail in that way, in the tasks as they stand.
    """
    assert set(KINDS) == {case.kind for case in bench.cases()}


def _lying(error: BaseException, path: object = "") -> BaseException:
    del path
    return StoreFault("nothing was written") if isinstance(error, apsw.Error) else error


def _certain() -> AbstractContextManager[Any]:
    """Plant a writer that takes every error of COMMIT for a commit that did not happen."""

    def failed(self: Any, tx: Any, error: BaseException) -> tuple[BaseException, bool]:
        del tx
        self._rollback()
        return self._store.translate_error(error), True

    return patch("onceward.file.group_commit.Writer._commit_failed", failed)


@pytest.mark.parametrize(
    ("planted", "said"),
    [
        (nullcontext, ""),
        (
            lambda: patch("onceward.file.database.translate_own_error", lambda error, _="": error),
            "UNTYPED",
        ),
        (_certain, "UNDONE"),
        (lambda: patch("onceward.file.database.Database.recover", lambda _: None), "CLOSED"),
    ],
    ids=("sound", "unmapped", "certain", "closed"),
)
def test_planted_bugs_are_found(bench: Bench, planted: Any, said: str) -> None:
    """Raw errors, denied commits and files that stay closed are found by the same few failures."""
    found = bench.found.violations
    found.clear()
    with planted():
        for number, lasts in product(range(1, 40), WAYS):
            bench.fail(Case("send", "sync", number, lasts))
            if said and any(said in words for words in found):
                return
    assert ([], "") == (found, said)


def test_a_failing_write_got_half_way(tmp_path: Path) -> None:
    """A write that fails may have written its first half."""
    fault = Fault("write", 1)
    vfs = FailingDisk(Disk(), 1, fault)
    try:
        con = apsw.Connection(str(tmp_path / "a.db"), vfs=vfs.name)
        with pytest.raises(apsw.IOError):
            con.execute("CREATE TABLE t (x)").fetchall()
        con.close(force=True)
    finally:
        vfs.unregister()

    assert fault.fired
    assert {"a.db"} <= {path.name for path in tmp_path.iterdir()}
