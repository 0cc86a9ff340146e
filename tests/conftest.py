"""
Checks for every test.

The files that it leaves are sound, a run leaves no process, and no test hangs it.
"""

import faulthandler
import gc
import os
import signal
import sys
from bisect import bisect
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, closing, suppress
from itertools import accumulate
from pathlib import Path
from unittest.mock import patch

import pytest
from tests.leftovers import Leftovers
from tests.ready_made import ReadyMade, copied, make

from onceward.file import open_files
from onceward.testing import Harness

HERE = Path(__file__).parent
COPIED = {
    "api", "cli", "core", "fleet", "inspector", "integrations", "journey", "mcp", "observe",
    "testing", "transports", "views",
}  # fmt: skip
"""Folders whose tests copy a ready-made file where they create one."""
CREATING = {
    "test_commit_counts.py", "test_directory.py", "test_refusals.py",
    "test_schema.py", "test_strangers.py",
}  # fmt: skip
"""Modules of these folders whose tests create files as users do."""
SAID = "said"
RUN = "ONCEWARD_TEST_RUN"
"""Names the run of a process, below the run that started it, in its environment."""


GRACE = 60.0
"""Seconds that the clean-up of a test has once the test has reached its time limit."""

STDERR = pytest.StashKey[int]()
"""The stderr of the run, where no capture takes what is written."""


TEMPORARY = "PYTEST_DEBUG_TEMPROOT"
"""Names the folder that pytest makes every ``tmp_path`` in."""


MEMORY = Path("/dev/shm")  # noqa: S108 - pytest makes a folder of its own in it
"""A folder in memory: a test that kills processes finds there what it finds on a disk."""


COLLECT_AFTER = 10_000
"""New objects after which garbage is looked for; by itself Python does after 700."""


ROOM = 4 << 30
"""Free bytes from which on ``MEMORY`` is used."""


def keep_bytecode(root: Path) -> None:
    """
    Keep the bytecode of this process and of those that it starts, where none may be written.

    Hundreds of processes that compile each module again take as long as all tests together.
    """
    if os.environ.pop("PYTHONDONTWRITEBYTECODE", ""):
        folder = str(root / ".pytest_cache" / "bytecode")  # beside no source
        os.environ["PYTHONPYCACHEPREFIX"] = sys.pycache_prefix = folder
        sys.dont_write_bytecode = False


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """Run two workers for each core: tests wait for processes more than they compute."""
    return 2 * (os.cpu_count() or 1)


def pytest_configure(config: pytest.Config) -> None:
    """
    Take interrupts, and name the run for all processes that it starts.

    Shells let their background jobs ignore interrupts, which are part of what is tested.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)
    keep_bytecode(config.rootpath)
    if not config.pluginmanager.has_plugin("onceward"):  # coverage blocks it to import it later
        config.pluginmanager.import_plugin("onceward.testing.plugin")
    if not hasattr(config, "workerinput"):
        if TEMPORARY not in os.environ and _has_room(MEMORY):
            os.environ[TEMPORARY] = str(MEMORY)
        os.environ[RUN] = f"{os.environ.get(RUN, '')}/{os.getpid()}"
    config.stash[STDERR] = os.dup(2)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """
    Let no garbage collection look at the modules and the tests again: they stay to the end.

    They are a million objects, and a full collection in the middle of a test looks at each.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.set_threshold(COLLECT_AFTER)
        gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Let each worker begin with other folders: it loads what another one has compiled."""
    report = yield
    worker = getattr(collector.config, "workerinput", None)
    if worker and collector.path == HERE:
        parts = report.result
        modules = [*accumulate(len([*part.path.rglob("test_*.py")]) for part in parts)]
        share = int(worker["workerid"].removeprefix("gw")) / worker["workercount"]
        first = bisect(modules, share * modules[-1])
        report.result = [*parts[first:], *parts[:first]]
    return report


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Put the folders back in their order, which is the same in all workers."""
    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: item.path.parts[: len(HERE.parts) + 1])


def _has_room(folder: Path) -> bool:
    """Return whether a folder exists, has room, and may hold programs."""
    with suppress(OSError):
        found = os.statvfs(folder)
        return found.f_bavail * found.f_frsize >= ROOM and not found.f_flag & os.ST_NOEXEC
    return False


def pytest_unconfigure(config: pytest.Config) -> None:
    """Close what ``pytest_configure`` has opened."""
    os.close(config.stash[STDERR])


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """
    End the process, with all its stacks, if a test and its clean-up outlive the time limit.

    pytest-timeout raises once; a clean-up that hangs after it would hang the run. xdist starts
    another worker, and names the test whose worker ended.
    """
    _end_later(item)
    try:
        return (yield)
    finally:
        faulthandler.cancel_dump_traceback_later()


@pytest.hookimpl(trylast=True)
def pytest_exception_interact(node: pytest.Item | pytest.Collector) -> None:
    """Limit the clean-up of a test that failed: pytest has just cancelled what was to come."""
    if isinstance(node, pytest.Item):
        _end_later(node)


def _end_later(item: pytest.Item) -> None:
    if limit := _limit(item):
        faulthandler.dump_traceback_later(limit + GRACE, exit=True, file=item.config.stash[STDERR])


def _limit(item: pytest.Item) -> float:
    """Return the seconds that pytest-timeout gives a test; 0 for as many as it takes."""
    if mark := item.get_closest_marker("timeout"):
        return float(mark.args[0])
    option = item.config.getoption("timeout", None)
    return float(item.config.getini("timeout") if option is None else option)


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """
    Kill what the run has started and has not ended; xdist has ended its workers before.

    A process that is left would keep the run's output open. Without xdist only an interrupt
    kills: the run's own process still uses its children, such as a Java machine.
    """
    if hasattr(session.config, "workerinput"):
        return
    if exitstatus == pytest.ExitCode.INTERRUPTED or session.config.getoption("numprocesses", None):
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
def left_behind(request: pytest.FixtureRequest, leftovers: Leftovers) -> Iterator[None]:
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
        assert [] == found + ([] if folder is None else leftovers.offenders(folder))


@pytest.fixture(autouse=True)
def closed_files() -> Iterator[None]:
    """After the test this process has no agent's file or directory open that it opened in it."""
    before = set(open_files.files)
    yield
    assert [] == [
        str(opened.path) for name, opened in open_files.files.items() if name not in before
    ]


@pytest.fixture(scope="session")
def ready_made(tmp_path_factory: pytest.TempPathFactory) -> ReadyMade:
    """Return the bytes of a file with our tables, and of a directory, that belong to no agent."""
    return make(tmp_path_factory.mktemp("ready_made"))


@pytest.fixture(scope="session")
def leftovers(
    tmp_path_factory: pytest.TempPathFactory, ready_made: ReadyMade
) -> Iterator[Leftovers]:
    """Return the readers of the files that tests leave."""
    with closing(Leftovers(tmp_path_factory.mktemp("leftovers"), ready_made.agent)) as made:
        yield made


@pytest.fixture(autouse=True)
def copied_files(request: pytest.FixtureRequest) -> Iterator[None]:
    """Copy new files instead of creating them, in the modules whose tests are not about that."""
    with ExitStack() as stack:
        folder = request.path.relative_to(HERE).parts[0]
        if folder in COPIED and request.path.name not in CREATING:
            stack.enter_context(copied(request.getfixturevalue("ready_made")))
        yield


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
