"""What a plain function may answer, and what that means for the mail."""

from pathlib import Path

import pytest

from onceward import Postbox
from onceward.testing import ManualClock
from onceward.transports import Frame
from onceward.transports.function import FunctionTransport, Receipts


@pytest.mark.parametrize("answer", [True, [True]], ids=["one word for all", "a word for each"])
def test_yes_ends_custody(tmp_path: Path, answer: Receipts) -> None:
    """A function that took a message is not asked again: no peer behind it will say processed."""
    clock, taken = ManualClock(), list[Frame]()

    def take(frames: list[Frame]) -> Receipts:
        taken.extend(frames)
        return answer

    wires = {"function": FunctionTransport(take)}
    with Postbox(
        tmp_path / "near.db", agent="near", start=False, clock=clock, transports=wires
    ) as near:
        near.peers.register("webhook", "function:webhook")
        mail = near.send("webhook", "hello")
        for _ in range(3):
            near.run_until_idle()
            clock.advance(61)

        assert ("acked", 1) == (near.resolve(mail), len(taken))
