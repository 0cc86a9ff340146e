"""The same program on a cluster of processes, under spark-submit, and over Spark Connect."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest

pyspark = pytest.importorskip("pyspark", reason="pip install 'onceward[spark]' brings it")

PROGRAM = str(Path(__file__).parent / "deployed.py")
HOME = str(Path(pyspark.__file__).parent)
SUBMIT = str(Path(sys.executable).parent / "spark-submit")
CLUSTER = "local-cluster[2,1,1024]"
"""Two executors, each a process of its own."""

pytestmark = pytest.mark.skipif(
    shutil.which("java") is None, reason="these start Spark by its own scripts: install a Java 17"
)


def _over(**given: str) -> dict[str, str]:
    return os.environ | {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"} | given


WAYS = {
    "local-cluster": (
        [SUBMIT, "--master", CLUSTER, PROGRAM],
        _over(SPARK_HOME=HOME, SPARK_SCALA_VERSION="2.13"),
    ),
    "spark-submit": ([SUBMIT, "--master", "local[2]", PROGRAM], _over()),
    "connect": ([sys.executable, PROGRAM], _over(SPARK_REMOTE="local[2]")),
}


@pytest.mark.parametrize("way", WAYS)
def test_a_program_reads_sends_and_follows(
    way: str, tmp_path: Path, box: Callable[..., Path]
) -> None:
    """However Spark is started: all rows are read, sent once, and followed once."""
    if way == "connect" and not (find_spec("grpc") and find_spec("pandas")):
        pytest.skip("pip install 'pyspark[connect]' runs this")
    (tmp_path / "home").mkdir()
    for name, count in (("alice", 3), ("bob", 2)):
        shutil.move(box(name, count), tmp_path / "home" / f"{name}.db")

    command, environment = WAYS[way]
    done = subprocess.run(
        [*command, str(tmp_path)],
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=420,
        check=False,
    )

    assert 0 == done.returncode, done.stderr[-4000:]
    found = json.loads((tmp_path / "found.json").read_text(encoding="utf-8"))
    assert {"read": 5, "sent": 3, "followed": 8} == found
