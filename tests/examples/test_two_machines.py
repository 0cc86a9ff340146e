"""Two machines: what the example prints, and what both files say afterwards."""

import subprocess
import sys
from pathlib import Path

from onceward import Postbox

SCRIPT = Path(__file__).parents[2] / "examples" / "two_machines" / "two_machines.py"
TOLD = """\
the sum is 4950
the process of Bob was killed
the sum is 19900
"""


def test_each_number_is_added_once(tmp_path: Path) -> None:
    """A kill in the middle neither loses a number nor adds one twice."""
    ran = subprocess.run(
        [sys.executable, "-W", "error", str(SCRIPT), str(tmp_path)],
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    )

    assert TOLD == ran.stdout
    with (
        Postbox(tmp_path / "alice-home" / "alice.db", start=False) as alice,
        Postbox(tmp_path / "bob-home" / "bob.db", start=False) as bob,
    ):
        assert [] == alice.file.check(bob.file)
        assert [(19900,)] == bob.query("SELECT n FROM total")
