"""
Fixtures of the store's tests.

They are postboxes that close themselves, other processes, and a clock that stands still.
"""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from onceward import Agent, Postbox
from onceward.file import foreign_library
from onceward.testing.clock import ManualClock

SHELL = shutil.which("sqlite3")
RUNNER = """
import json, sqlite3, sys
for asked in sys.stdin:
    path, statements = json.loads(asked)
    con, found = sqlite3.connect(path, isolation_level=None, timeout=60), []
    for sql in statements:
        try:
            found.append(con.execute(sql).fetchall())
        except sqlite3.Error as error:
            found.append(f"{type(error).__name__}: {error}")
    con.close()
    print(json.dumps(found), flush=True)
"""

Open = Callable[..., Postbox]
Elsewhere = Callable[..., list[Any]]


@pytest.fixture(autouse=True)
def no_foreign_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget files that an earlier test opened by sqlite3: each delivery looks at them."""
    monkeypatch.setattr(foreign_library, "theirs", {})


@pytest.fixture
def clock() -> ManualClock:
    """Return a clock that stands still until the test turns it."""
    return ManualClock()


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Open]:
    """Return the call that opens ``<agent>.db`` without engines; the test's end closes all."""
    with ExitStack() as stack:

        def open_box(
            agent: str | Agent = "a", *, at: Path | None = None, **options: Any
        ) -> Postbox:
            name = agent.name if isinstance(agent, Agent) else agent
            path = tmp_path / f"{name}.db" if at is None else at
            return stack.enter_context(
                Postbox(
                    path,
                    agent=agent,
                    start=False,
                    **{"hold_unknown": True, "busy_timeout": 60.0} | options,
                )
            )

        yield open_box


@pytest.fixture
def box(opened: Open) -> Postbox:
    """Return an open postbox of agent *a* that may send to any name."""
    return opened()


@pytest.fixture(scope="session")
def elsewhere() -> Iterator[Elsewhere]:
    """
    Return the call that runs statements with the standard library's sqlite3.

    One other process runs them, on a new connection in each call, and tells rows or error texts.
    """
    with subprocess.Popen(
        [sys.executable, "-c", RUNNER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        asks, answers = other.stdin, other.stdout
        assert asks is not None
        assert answers is not None

        def run(path: Path, *statements: str) -> list[Any]:
            print(json.dumps([str(path), statements]), file=asks, flush=True)
            found: list[Any] = json.loads(answers.readline())
            return found

        yield run


@pytest.fixture
def shell() -> Callable[[Path, str], str]:
    """Return the call that runs SQL in the ``sqlite3`` shell: its output, or its error."""
    if SHELL is None:
        pytest.skip("no sqlite3 shell on this machine")

    def run(path: Path, sql: str) -> str:
        done = subprocess.run(
            [str(SHELL), "-bail", str(path)],
            input=sql,
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        return (done.stderr or done.stdout).strip()

    return run
