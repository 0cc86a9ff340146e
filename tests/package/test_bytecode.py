"""A run compiles a module once, not in each of the hundreds of processes that it starts."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
INSIDE = """
import subprocess, sys
from pathlib import Path

SAY = "import sys; print(sys.dont_write_bytecode, sys.pycache_prefix)"


def test_it():
    said = subprocess.check_output([sys.executable, "-c", SAY], text=True)
    Path(__file__).with_name("said").write_text(said)
"""


def test_where_no_bytecode_may_be_written_a_run_keeps_its_own(tmp_path: Path) -> None:
    """It goes to one folder for all processes of the run, beside no source."""
    conftest = (ROOT / "tests" / "conftest.py").read_text(encoding="utf-8")
    (tmp_path / "conftest.py").write_text(conftest, encoding="utf-8")
    (tmp_path / "test_inside.py").write_text(INSIDE, encoding="utf-8")
    asked = [*("-c", str(ROOT / "pyproject.toml"), "--rootdir", str(tmp_path)), str(tmp_path)]
    subprocess.run(
        [sys.executable, "-m", "pytest", "-q", *asked, f"--basetemp={tmp_path / 'tmp'}"],
        env=os.environ | {"PYTHONDONTWRITEBYTECODE": "1", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        check=True,
    )
    said = (tmp_path / "said").read_text(encoding="utf-8")

    assert f"False {tmp_path / '.pytest_cache' / 'bytecode'}\n" == said
    assert [] == list(tmp_path.glob("__pycache__"))
