"""The observed order: logs, metrics and traces of one run, as the example prints them."""

import subprocess
import sys
from pathlib import Path

from onceward import Postbox

SCRIPT = Path(__file__).parents[2] / "examples" / "observed" / "observed.py"
TOLD = """\
log     info  asking the bank  in process billing
log     info  retried          in no span
log     info  asking the bank  in process billing
log     info  paid             in checkout
metric  messaging.client.consumed.messages   2
metric  messaging.client.operation.duration  1
metric  messaging.client.sent.messages       1
metric  messaging.process.duration           2
trace   checkout
trace     send billing committed
trace       process billing retry
trace       process billing processed
trace         send shop committed
traces  1
"""


def test_one_run_is_seen_in_three_ways(tmp_path: Path) -> None:
    """Both attempts and the reply are in the trace of the checkout, whose ids the lines carry."""
    ran = subprocess.run(
        [sys.executable, "-W", "error", str(SCRIPT), str(tmp_path)],
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    )

    assert TOLD == ran.stdout
    with (
        Postbox(tmp_path / "shop.db", start=False) as shop,
        Postbox(tmp_path / "billing.db", start=False) as billing,
    ):
        assert [] == shop.file.check(billing.file)
