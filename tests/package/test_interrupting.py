"""Interrupting pytest ends every process that its tests have started."""

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LIMIT = 120
SLOW = """
import subprocess, sys, time
from pathlib import Path
from onceward.testing.workers import worker_pool

DEAF = "import signal, time; signal.signal(signal.SIGINT, signal.SIG_IGN); time.sleep(600)"


def test_both(tmp_path):
    subprocess.Popen([sys.executable, "-S", "-c", DEAF])
    with worker_pool(1) as pool:
        pool.submit(Path.touch, tmp_path / "ready")
        pool.submit(time.sleep, 600).result()
"""
MARK = "ONCEWARD_TEST_INTERRUPTED"


@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="needs /proc")
@pytest.mark.parametrize("options", [(), ("-n", "1")], ids=["alone", "xdist"])
def test_no_process_is_left(options: tuple[str, ...], tmp_path: Path) -> None:
    """A pool in the middle of its work and a child that ignores SIGINT end with the run."""
    shutil.copy(ROOT / "tests" / "conftest.py", tmp_path)
    (tmp_path / "test_slow.py").write_text(SLOW, encoding="utf-8")
    command = [
        *(sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *options),
        *("-c", str(ROOT / "pyproject.toml"), "--rootdir", str(tmp_path)),
        *(f"--basetemp={tmp_path / 'tmp'}", str(tmp_path / "test_slow.py")),
    ]
    mark = str(tmp_path)
    run = subprocess.Popen(
        command, env=os.environ | {MARK: mark}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        while not list(tmp_path.rglob("ready")):
            assert run.poll() is None, "the run ended before it was interrupted"
            time.sleep(0.05)
        run.send_signal(signal.SIGINT)
        run.wait(LIMIT)
        assert [] == marked(mark)
    finally:
        for pid in marked(mark):
            os.kill(pid, signal.SIGKILL)


def marked(mark: str) -> list[int]:
    """Return the processes that bear a mark."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if f"{MARK}={mark}\0".encode() in (folder / "environ").read_bytes():
                found.append(int(folder.name))
        except OSError:
            continue
    return found
