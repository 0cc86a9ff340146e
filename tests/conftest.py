"""What every test shares: whatever file of ours it leaves behind is sound, and keeps custody of its mail."""

import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from unittest.mock import patch

import pytest

from onceward import Postbox
from onceward.errors import OncewardError
from onceward.testing import Harness

SAID = "said"
HEADER = 72
"""Bytes of a database file up to the end of its application id."""


def pytest_configure() -> None:
    """Interrupts are part of what is tried, also where the shell that started us lets its jobs in the background ignore them."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def left_behind(request: pytest.FixtureRequest) -> Iterator[None]:
    """After the test every file of its folder and its harnesses passes ``check``; ``@pytest.mark.broken(why)`` says where not to look."""
    folder = (
        request.getfixturevalue("tmp_path") if "tmp_path" in request.fixturenames else None
    )  # before the others: it goes last
    found = list[object]()
    leave = Harness.close

    def close(harness: Harness) -> None:
        found.extend(harness.check())
        leave(harness)

    with patch.object(Harness, "close", close):
        yield
    if request.node.get_closest_marker("broken") is None:
        assert [] == found + ([] if folder is None else offenders(folder))


@pytest.fixture
def aloud(record_property: Callable[[str, object], None]) -> Callable[[object], None]:
    """Return what tells, at the end of the run and whether the test passes or not, what was tried, with its seed."""
    return lambda said: record_property(SAID, str(said))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Write what tests said aloud."""
    reports = [
        report
        for some in terminalreporter.stats.values()
        for report in some
        if getattr(report, "when", "") == "call"
    ]
    said = [value for report in reports for name, value in report.user_properties if name == SAID]
    if said:
        terminalreporter.section("what was tried")
        terminalreporter.write_line("\n".join(said))


def offenders(folder: Path) -> list[str]:
    """Return what breaks a rule in the files below *folder*; files that refuse to open are their own tests' business."""
    with ExitStack() as stack:
        boxes: list[Postbox] = []
        for path in sorted(path for path in folder.rglob("*.db") if _ours(path)):
            try:
                boxes.append(stack.enter_context(Postbox(path, start=False)))
            except OncewardError:
                continue
        return [
            f"{box.path.name}: {broken.invariant} {broken.offender} ({broken.rule})"
            for index, box in enumerate(boxes)
            for broken in box.check(*boxes[index + 1 :])
        ]


def _ours(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(HEADER)[68:72] == b"once"
