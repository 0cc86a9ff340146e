"""
Define the pytest plugin: fixtures for agents, loaded when a test uses one.

It is installed with the package and so is part of every pytest run of the environment; it imports
nothing of onceward until a fixture is used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from onceward.message.settings import Controls

if TYPE_CHECKING:
    from onceward.api.agent import Agent
    from onceward.api.postbox import Postbox
    from onceward.testing.clock import ManualClock
    from onceward.testing.harness import Harness

pytest.register_assert_rewrite(
    "onceward.testing.conformance",
    "onceward.testing.listener_conformance",
    "onceward.testing.transport_fixture",
    "onceward.testing.wire_conformance",
)


@pytest.fixture
def manual_clock() -> ManualClock:
    """A clock that only the test advances."""
    from onceward.testing.clock import ManualClock  # noqa: PLC0415 - paid only if used

    return ManualClock()


@pytest.fixture
def postbox(tmp_path: Path, manual_clock: ManualClock) -> Iterator[Postbox]:
    """An open postbox of agent ``tester`` on the manual clock; ``run_until_idle()`` runs it."""
    from onceward.api.postbox import Postbox  # noqa: PLC0415 - paid only if used

    with Postbox(
        tmp_path / "tester.db", agent="tester", start=False, testing=Controls(clock=manual_clock)
    ) as box:
        yield box


@pytest.fixture
def harness(manual_clock: ManualClock) -> Iterator[Callable[..., Harness]]:
    """Create harnesses on the manual clock (``harness(agent, schema="…")``); close them."""
    from onceward.testing.harness import Harness  # noqa: PLC0415 - paid only if used

    with ExitStack() as stack:

        def make(agent: Agent | str, **options: Any) -> Harness:
            return stack.enter_context(Harness(agent, **{"clock": manual_clock, **options}))

        yield make
