"""
The pytest plugin: fixtures for mail, loaded when a test asks for one.

It is installed with the package and so takes part in every pytest run of the
environment; it imports nothing of ours until a fixture is used.
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
    """A clock that stands still until the test advances it."""
    from onceward.testing.clock import ManualClock  # noqa: PLC0415 - paid by who asks for it

    return ManualClock()


@pytest.fixture
def postbox(tmp_path: Path, manual_clock: ManualClock) -> Iterator[Postbox]:
    """An open postbox of agent ``tester`` on the manual clock; ``run_until_idle()`` runs it."""
    from onceward.api.postbox import Postbox  # noqa: PLC0415 - paid by who asks for it

    with Postbox(
        tmp_path / "tester.db", agent="tester", start=False, testing=Controls(clock=manual_clock)
    ) as box:
        yield box


@pytest.fixture
def harness(manual_clock: ManualClock) -> Iterator[Callable[..., Harness]]:
    """Make harnesses on the manual clock, ``harness(agent, schema="…")``; close them at the end."""
    from onceward.testing.harness import Harness  # noqa: PLC0415 - paid by who asks for it

    with ExitStack() as stack:

        def make(agent: Agent | str, **options: Any) -> Harness:
            return stack.enter_context(Harness(agent, **{"clock": manual_clock, **options}))

        yield make
