"""
Checks for every test.

The files that it leaves are sound, and an interrupted run leaves no process.
"""

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from unittest.mock import patch

import pytest

from onceward import Postbox
from onceward.errors import OncewardError
from onceward.testing import Harness

SAID = "said"
HEADER = 72
"""Bytes of a database file up to the end of its application id."""


RUN = "ONCEWARD_TEST_RUN"
"""Names the run of a process, below the run that started it, in its environment."""


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """Run two workers for each core: tests wait for the disk more than they compute."""
    return 2 * (os.cpu_count() or 1)


def pytest_configure(config: pytest.Config) -> None:
    """
    Take interrupts, and name the run for all processes that it starts.

    Shells let their background jobs ignore interrupts, which are part of what is tested.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if not config.pluginmanager.has_plugin("onceward"):  # coverage blocks it to import it later
        config.pluginmanager.import_plugin("onceward.testing.plugin")
    if not hasattr(config, "workerinput"):
        os.environ[RUN] = f"{os.environ.get(RUN, '')}/{os.getpid()}"


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Kill what an interrupted run has started; xdist has ended its workers before."""
    if exitstatus == pytest.ExitCode.INTERRUPTED and not hasattr(session.config, "workerinput"):
        for pid in started(os.environ[RUN]):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def started(run: str) -> Iterator[int]:
    """Yield the processes of a run and of those below it, where the system has /proc."""
    mark = f"\0{RUN}={run}".encode()
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            text = b"\0" + (folder / "environ").read_bytes() + b"\0"
            if mark + b"\0" in text or mark + b"/" in text:
                yield int(folder.name)


@pytest.fixture(autouse=True)
def left_behind(request: pytest.FixtureRequest) -> Iterator[None]:
    """
    After the test every file of its folder and its harnesses passes ``check``.

    ``@pytest.mark.broken(why)`` says where not to look.
    """
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
    """Return the call that prints a text, such as a seed, at the end of the run."""
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
    """
    Return what breaks a rule in the files below *folder*.

    Files that refuse to open are their own tests' business.
    """
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
