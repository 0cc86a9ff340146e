"""The team of pydantic-ai agents is killed at each of its calls; each tool takes effect once."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from threading import Lock

import pytest
from tests.children import PYTHON, Child

pytest.importorskip("pydantic_ai", reason="pip install 'onceward[pydantic-ai]' brings it")

ROOT = Path(__file__).parents[2]
TEAM = ROOT / "examples" / "pydantic_team"
sys.path.insert(0, str(TEAM))
from run import play  # type: ignore[import-not-found]  # noqa: E402 - no package
from team import Ledger  # type: ignore[import-not-found]  # noqa: E402 - as above

EFFECTS = ["book flight 7", "book room", "pay 42000", "search flights", "search hotels"]
CALLS = 5 + len(EFFECTS)
"""Calls of the models and of the tools."""


class Fatal(Ledger):
    """Counts the calls to the outside, of all processes, and kills this one at one of them."""

    def __init__(self, folder: Path, fatal: int, when: str) -> None:
        super().__init__(folder)
        self._calls, self._fatal, self._when = folder / "calls", fatal, when
        self._lock = Lock()

    def told(self, call: str) -> None:
        """Note a call, and die at the fatal one."""
        with self._lock, self._calls.open("a") as calls:
            calls.write(f"{call}\n")
            calls.flush()
            if len(self.calls) == self._fatal:
                os.kill(os.getpid(), signal.SIGKILL)

    def record(self, effect: str, key: str) -> str:
        """Take an effect; die before it, or after it."""
        if self._when == "before":
            self.told(effect)
        found: str = super().record(effect, key)
        if self._when == "after":
            self.told(effect)
        return found

    @property
    def calls(self) -> list[str]:
        """Return the calls that were made."""
        return self._calls.read_text().splitlines()


# At requests of both models, and at a tool of each turn.
@pytest.mark.parametrize(
    ("fatal", "when"),
    [(n, "before") for n in (1, 2, 4, 5, 7, 8, 9)] + [(n, "after") for n in (2, 9)],
)
def test_a_killed_team_goes_on_at_the_call_that_it_died_at(
    tmp_path: Path, fatal: int, when: str
) -> None:
    """The ledger has each tool's effect once, and what was stored is not called again."""
    me = [*PYTHON, __file__, tmp_path, fatal, when]
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    with Child(me, env=env) as first:
        assert -signal.SIGKILL == first.wait(60)
    with Child(me, env=env) as second:
        assert 0 == second.wait(60)

    ledger = Fatal(tmp_path, fatal, when)
    assert EFFECTS == ledger.effects
    assert "the trip is booked" == (tmp_path / "answer").read_text()
    assert CALLS < len(ledger.calls) <= CALLS + 2  # parallel calls are cut off together


if __name__ == "__main__":
    home, fatal, when = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    outside = Fatal(home, fatal, when)
    (home / "answer").write_text(play(home, outside, outside.told))
