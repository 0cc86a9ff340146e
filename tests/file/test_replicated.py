"""A file that Litestream replicates: its checkpoints are left to Litestream."""

from pathlib import Path

import pytest

from onceward import Postbox
from onceward.message.settings import Tuning


@pytest.fixture
def replicated(tmp_path: Path) -> Path:
    """Return a closed file, beside which Litestream has its folder."""
    path = tmp_path / "a.db"
    Postbox(path, agent="a", start=False).close()
    (tmp_path / ".a.db-litestream").mkdir()
    return path


def test_no_checkpoint_is_made_beside_litestream(replicated: Path) -> None:
    """Neither by commits above checkpoint_pages, nor by health and maintenance."""
    tuning = Tuning(checkpoint_pages=1)
    with Postbox(replicated, start=False, hold_unknown=True, tuning=tuning) as box:
        before = replicated.read_bytes()
        for n in range(5):
            box.send("far", n)
        box.file.health()
        box.file.run_maintenance()

        assert before == replicated.read_bytes()


def test_above_its_limit_the_wal_is_emptied(replicated: Path) -> None:
    """Litestream has ended, or the WAL would be small: the disk must not fill."""
    tuning = Tuning(wal_limit=1 << 20)
    with Postbox(replicated, start=False, hold_unknown=True, tuning=tuning) as box:
        for _ in range(2):
            box.send("far", "x" * 900_000)
        box.file.run_maintenance()

        assert 0 == Path(f"{replicated}-wal").stat().st_size


def test_without_its_folder_commits_make_checkpoints(tmp_path: Path) -> None:
    """The pages of the WAL are moved into the file."""
    path, tuning = tmp_path / "a.db", Tuning(checkpoint_pages=1)
    with Postbox(path, agent="a", start=False, hold_unknown=True, tuning=tuning) as box:
        before = path.read_bytes()
        for n in range(5):
            box.send("far", n)

        assert before != path.read_bytes()
