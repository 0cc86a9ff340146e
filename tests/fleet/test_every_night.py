"""Whatever happens to a fleet from day to day, nights with a state add up to a run over all."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
from tests.fleet.lives import DAY, MISCHIEF, TO_A_LOG, Life


@pytest.fixture
def life(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Life]:
    """Return three agents with a seed."""
    made = Life(tmp_path, request.param)
    yield made
    made.world.rest()
    shutil.rmtree(tmp_path / "agents")  # its files break every rule


@pytest.mark.broken("everything that can go wrong may go wrong with these files")
@pytest.mark.parametrize("life", [0, 1, 2, 6, 8], indirect=True)
def test_nights_add_up_to_a_run_over_everything(life: Life) -> None:
    """Each message is judged as if all were read, and counted once; while all files are there."""
    for _ in range(7):
        life.work()
        life.mischief(*MISCHIEF)
        life.work()
        life.world.clock.advance(DAY)
        if life.dice.random() < 0.2:
            continue  # no run tonight
        night, judged = life.reconcile(life.folder / "state.db")
        if life.away and life.dice.random() < 0.5:
            life.back()
            night, judged = life.reconcile(life.folder / "state.db")
        if life.away:
            continue
        whole, every = life.reconcile()

        assert judged == {key: every[key] for key in judged}
        assert Counter(whole.verdicts) == Counter(night.before) + Counter(night.verdicts)


@pytest.mark.broken("files are restored, copied and moved")
@pytest.mark.skipif(find_spec("pyarrow") is None, reason="pip install 'onceward[ship]' brings it")
@pytest.mark.parametrize("life", [1, 4, 6, 7], indirect=True)
def test_a_log_that_is_shipped_every_night_is_judged_as_the_files(life: Life) -> None:
    """Each message gets the verdict of the files, whatever they were yesterday."""
    from onceward.fleet import ship  # noqa: PLC0415 - it needs pyarrow

    log = str(life.folder / "log")
    for _ in range(5):
        life.work()
        life.mischief(*TO_A_LOG)
        life.work()
        life.world.clock.advance(DAY)
        ship.files([str(life.world.folder)], log)

        assert life.reconcile()[1] == life.reconcile(log=log, files=False)[1]
