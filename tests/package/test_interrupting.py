"""A run that is interrupted, or whose tests hang, ends with every process that it started."""

import os
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
from tests.worker_pool import worker_pool

DEAF = "import signal, time; signal.signal(signal.SIGINT, signal.SIG_IGN); time.sleep(600)"


def test_both(tmp_path):
    subprocess.Popen([sys.executable, "-S", "-c", DEAF])
    with worker_pool(1) as pool:
        pool.submit(Path.touch, tmp_path / "ready")
        pool.submit(time.sleep, 600).result()
"""
HANGING = """
import subprocess, sys, threading

import pytest


@pytest.mark.timeout(0.5)
def test_hangs():
    subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(600)"])
    try:
        threading.Event().wait()
    finally:
        threading.Event().wait()


@pytest.fixture
def hanging():
    yield
    threading.Event().wait()


@pytest.mark.timeout(0.5)
def test_fails(hanging):
    assert False


def test_passes():
    pass
"""
SHORTER = """
from xdist.workermanage import NodeManager

NodeManager.EXIT_TIMEOUT = 1  # seconds that a worker has before it is killed, 10 otherwise
"""
MARK = "ONCEWARD_TEST_INTERRUPTED"


PROC = pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="needs /proc")


def begun(folder: Path, source: str, *options: str) -> subprocess.Popen[str]:
    """Start a run of one file, under the checks of this one; its processes bear a mark."""
    conftest = (ROOT / "tests" / "conftest.py").read_text(encoding="utf-8")
    quick = conftest.replace("GRACE = 60.0", "GRACE = 0.5") + SHORTER
    (folder / "conftest.py").write_text(quick, encoding="utf-8")
    (folder / "test_slow.py").write_text(source, encoding="utf-8")
    command = [
        *(sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *options),
        *("-c", str(ROOT / "pyproject.toml"), "--rootdir", str(folder)),
        *(f"--basetemp={folder / 'tmp'}", str(folder / "test_slow.py")),
    ]
    env = os.environ | {MARK: str(folder), "PYTHONPATH": str(ROOT)}
    with (folder / "said").open("w", encoding="utf-8") as said:
        return subprocess.Popen(command, env=env, stdout=said, stderr=said, text=True)


@PROC
@pytest.mark.parametrize("options", [(), ("-n", "1")], ids=["alone", "xdist"])
def test_no_process_is_left(options: tuple[str, ...], tmp_path: Path) -> None:
    """A pool in the middle of its work and a child that ignores SIGINT end with the run."""
    run = begun(tmp_path, SLOW, *options)
    try:
        while not list(tmp_path.rglob("ready")):
            assert run.poll() is None, "the run ended before it was interrupted"
            time.sleep(0.05)
        run.send_signal(signal.SIGINT)
        run.wait(LIMIT)
        assert [] == marked(str(tmp_path))
    finally:
        for pid in marked(str(tmp_path)):
            os.kill(pid, signal.SIGKILL)


@PROC
@pytest.mark.proof
def test_a_clean_up_that_hangs_fails_its_test(tmp_path: Path) -> None:
    """The run names the test, shows where it hung, goes on with the next and leaves no process."""
    run = begun(tmp_path, HANGING, "-n", "1")
    try:
        assert 1 == run.wait(LIMIT)
        assert [] == marked(str(tmp_path))
    finally:
        for pid in marked(str(tmp_path)):
            os.kill(pid, signal.SIGKILL)
    said = (tmp_path / "said").read_text(encoding="utf-8")

    for test, stack in (("test_hangs", "in test_hangs"), ("test_fails", "in hanging")):
        assert f"crashed while running 'test_slow.py::{test}'" in said
        assert stack in said
    assert "3 failed, 1 passed" in said


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
