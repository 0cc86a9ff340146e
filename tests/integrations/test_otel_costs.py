"""Costs of traces: none for a postbox that nothing observes, and no statement for another."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.core.engines.test_call_counts import counted
from tests.core.test_statements import Counted
from tests.integrations.conftest import Telemetry

from onceward import Agent, Postbox

PING = {"number": 1}


def handler() -> Agent:
    """Return an agent that handles everything."""
    agent = Agent("b")
    agent.on("json")(lambda _: None)
    return agent


def statements(box: Postbox) -> list[list[str]]:
    """Return the statements of a send and of its handling, once all is warm."""
    for _ in range(3):
        box.send("b", PING)
        box.run_until_idle()
    seen, found = Counted(box), []
    box.send("b", PING)
    found.append(seen.take())
    box.run_until_idle()
    found.append(seen.take())
    return found


def test_a_traced_message_costs_no_statement(tmp_path: Path, telemetry: Telemetry) -> None:
    """The file is asked and told the same with a tracer as without."""
    with Postbox(tmp_path / "b.db", agent=handler(), start=False) as box:
        plain = statements(box)
        telemetry.observe(box)
        traced = statements(box)

    assert plain == traced
    assert 4 == len(telemetry.named("process b"))


@pytest.mark.parametrize("step", ["send", "run_until_idle"])
def test_a_postbox_that_is_no_longer_observed_makes_the_calls_of_one_that_never_was(
    tmp_path: Path, telemetry: Telemetry, step: str
) -> None:
    """The extension points are one comparison each: no call is made for them."""
    with Postbox(tmp_path / "b.db", agent=handler(), start=False) as box:
        steps: dict[str, Callable[[], object]] = {
            "send": lambda: box.send("b", PING),
            "run_until_idle": box.run_until_idle,
        }

        def calls() -> int:
            found = {name: counted(work).calls for name, work in steps.items()}
            return found[step]

        for _ in range(3):
            calls()
        before = calls()
        off = telemetry.observe(box)
        during = calls()
        off()
        after = calls()

    assert before == after
    assert before < during
