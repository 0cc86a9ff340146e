"""
The file system goes down under the traders.

What was promised is there after the mount, as after a power cut.
"""

import fcntl
import os
import random
import shutil
import struct
import subprocess
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
from tests.proof.kills import kill_test
from tests.proof.seed import proof_seed, size

from onceward.testing.kills import crew

SHUTDOWN = 0x8004587D
"""EXT4_IOC_SHUTDOWN, the same number as XFS_IOC_GOINGDOWN."""
NO_FLUSH = struct.pack("I", 2)
"""Not even the journal that is in memory is written."""
ROUNDS = size(20, 5, "ONCEWARD_SHUTDOWNS")
SEED = proof_seed()
MEGABYTES = {"ext4": 64, "xfs": 320}


def mounted(image: Path, at: Path) -> str:
    """Mount an image; return what mount complained of."""
    return subprocess.run(
        ["mount", "-o", "loop", image, at], capture_output=True, text=True, check=False
    ).stderr


@pytest.fixture(params=sorted(MEGABYTES))
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Path, Path]]:
    """
    Return an image and the folder in which it is mounted.

    Skipped where root, the tools or loop devices are missing.
    """
    kind = request.param
    tool = shutil.which(f"mkfs.{kind}", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")
    if os.geteuid() != 0 or tool is None:
        pytest.skip(f"mounting {kind} needs root and mkfs.{kind}")
    image, at = tmp_path / "image", tmp_path / "disk"
    at.mkdir()
    with image.open("wb") as file:
        file.truncate(MEGABYTES[kind] << 20)
    subprocess.run([tool, "-q", image], check=True, capture_output=True)
    if complaint := mounted(image, at):
        pytest.skip(f"no loop mounts here: {complaint.strip()}")
    yield image, at
    subprocess.run(["umount", at], check=False, capture_output=True)


def shut_down(at: Path) -> None:
    """
    Stop a mounted file system in mid-flight.

    A sync that is under way at this very moment may report success although it
    did not happen (raw SQLite loses such commits as well), so what is promised
    does not count.
    """
    handle = os.open(at, os.O_RDONLY)
    fcntl.ioctl(handle, SHUTDOWN, NO_FLUSH)
    os.close(handle)


def _is_longer(log: Path, size: int) -> bool:
    return log.stat().st_size > size


@pytest.mark.broken("the files are on a disk that is gone; the test judges them itself")
@pytest.mark.timeout(120 + 10 * ROUNDS)
def test_promises_outlive_the_file_system(
    disk: tuple[Path, Path],
    tmp_path: Path,
    request: pytest.FixtureRequest,
    aloud: Callable[[object], None],
) -> None:
    """
    The disk stops in mid-flight without writing anything more.

    After each mount the mail goes on, and in the end all is judged.
    """
    image, at = disk
    rng = random.Random(SEED)
    (tmp_path / "logs").mkdir()
    (at / "logs").symlink_to(tmp_path / "logs")
    kill_test.prepare(at)
    log = tmp_path / "logs" / "promised.log"
    log.touch()
    for rounds in range(ROUNDS):
        before = log.stat().st_size
        with crew(at, kill_test.ROLES, rng) as people:
            assert people.wait_until(partial(_is_longer, log, before))
            time.sleep(rng.uniform(0.1, 0.5))
            promised = log.read_bytes() if rounds else b""
            shut_down(at)
            people.retire(*kill_test.ROLES)
        log.write_bytes(promised)
        subprocess.run(["umount", at], check=True, capture_output=True)
        assert "" == mounted(image, at)
    with crew(at, kill_test.ROLES, rng) as people:
        violations = kill_test.come_to_rest(at, people) + people.fallen()
    found, orders = kill_test.judged(at)
    aloud(f"{request.node.callspec.id}: {ROUNDS} shutdowns, {orders} orders, seed {SEED}")

    assert [] == violations + found, f"seed {SEED}"
    assert orders > ROUNDS
