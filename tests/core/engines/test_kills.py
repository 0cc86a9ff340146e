"""
A thousand processes killed at random instants while they serve sessions, in every mode.

For ten thousand by hand, see ``arena.py``.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from tests.proof.seed import size

from onceward.message.vocabulary import QUEUE_MODES

ARENA = Path(__file__).with_name("arena.py")
ROUNDS = size(1000, 60)

pytestmark = pytest.mark.proof


@pytest.mark.timeout(1500)
def test_nothing_is_lost_doubled_reordered_or_said_too_late() -> None:
    """
    Every message is consumed by exactly one finished run, in order.

    Every task has exactly one result, a session has one call at a time, and nothing that a
    fenced run said after its last checkpoint was heard.
    """
    ran = subprocess.run(
        [sys.executable, str(ARENA), "--rounds", str(ROUNDS)],
        capture_output=True,
        text=True,
        check=False,
    )
    told = json.loads(ran.stdout)

    assert {mode: [] for mode in QUEUE_MODES} == {
        result["mode"]: result["found"] for result in told["modes"]
    }
    assert (0, ROUNDS) == (ran.returncode, sum(result["rounds"] for result in told["modes"]))
    assert all(result["messages"] and result["runs"].get("aborted") for result in told["modes"])
