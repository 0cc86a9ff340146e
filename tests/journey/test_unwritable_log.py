"""Code that only tells (logs, hooks, observers) decides nothing, whatever it raises."""

from __future__ import annotations

import io
import logging
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

import pytest
import structlog
from tests.waiting import until

from onceward import Agent, Postbox
from onceward.events import DeadLettered, Processed
from onceward.hooks import Attempt, Observer, SendFacts, observe
from onceward.message.log import LOST, STDLIB, log
from onceward.ops.cli.output import note

GOOD = 10
Plan = Callable[[pytest.MonkeyPatch], None]


@pytest.fixture(autouse=True)
def configured() -> Iterator[None]:
    """Undo what a test configures, and forget its lost lines: they are the process's."""
    before = STDLIB.handlers[:], STDLIB.filters[:], STDLIB.propagate
    LOST.count = 0
    yield
    STDLIB.handlers[:], STDLIB.filters[:], STDLIB.propagate = before
    structlog.reset_defaults()
    LOST.count = 0


def _raise(error: BaseException) -> Callable[..., NoReturn]:
    def fail(*_: Any, **__: Any) -> NoReturn:
        raise error

    return fail


def _handler(error: BaseException) -> Plan:
    def plan(patch: pytest.MonkeyPatch) -> None:
        handler = logging.Handler()
        patch.setattr(handler, "emit", _raise(error))
        STDLIB.addHandler(handler)

    return plan


def _filter(patch: pytest.MonkeyPatch) -> None:
    STDLIB.addFilter(_raise(OSError("no filter")))


def _factory(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(logging, "_logRecordFactory", _raise(OSError("no record")))


def _level(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(STDLIB, "isEnabledFor", _raise(OSError("no level")))


def _processor(patch: pytest.MonkeyPatch) -> None:
    structlog.configure(processors=[_raise(OSError("no processor"))])


def _closed_stderr(patch: pytest.MonkeyPatch) -> None:
    closed = io.StringIO()
    closed.close()
    patch.setattr(sys, "stderr", closed)
    STDLIB.propagate = False
    STDLIB.addHandler(logging.StreamHandler(closed))


PLANS: dict[str, Plan] = {
    "handler": _handler(OSError("no space left")),
    "exit": _handler(SystemExit(5)),
    "interrupt": _handler(KeyboardInterrupt()),
    "filter": _filter,
    "factory": _factory,
    "level": _level,
    "processor": _processor,
    "closed stderr": _closed_stderr,
}


def _handle(folder: Path, prepare: Callable[[Postbox], object] = lambda _: None) -> Postbox:
    """Have two messages fail between ten that are handled, once each; return the closed box."""
    agent, handled = Agent("crm"), Counter[int]()

    @agent.on("bad")
    def bad(body: dict[str, Any]) -> None:
        raise ValueError("broken input")

    @agent.on("good")
    def good(body: dict[str, Any]) -> None:
        handled[body["n"]] += 1

    with Postbox(folder / "crm.db", agent=agent, handler_attempts=1) as box:
        prepare(box)
        box.send("crm", {}, type="bad", ordering_key="bad 1")
        until(box.dead_letters.list)
        box.send("crm", {}, type="bad", ordering_key="bad 2")
        for n in range(GOOD):
            box.send("crm", {"n": n}, type="good", ordering_key=f"good {n}")
        until(lambda: len(handled) == GOOD and len(box.dead_letters.list()) == 2)
        box.file.health()
    assert dict.fromkeys(range(GOOD), 1) == handled
    return box


@pytest.mark.parametrize("plan", PLANS)
def test_a_log_that_cannot_be_written_stops_no_handler(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, plan: str
) -> None:
    """Its lines are lost and counted."""
    PLANS[plan](monkeypatch)
    with pytest.warns(RuntimeWarning, match="of the log could not be written"):
        _handle(tmp_path)

    assert LOST.count > 0


def test_a_program_without_stderr_handles_messages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one that pythonw or a service manager starts."""
    monkeypatch.setattr(sys, "stderr", None)
    note("it is opened")
    _handle(tmp_path)

    assert 0 == LOST.count


def test_a_command_whose_stderr_is_closed_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """The line is lost."""
    closed = io.StringIO()
    closed.close()
    monkeypatch.setattr(sys, "stderr", closed)
    note("it is opened")

    assert 1 == LOST.count


def test_lost_lines_are_a_reason_of_health(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And the first one is a warning of Python: a log cannot tell that it cannot be written."""
    _handler(OSError("no space left"))(monkeypatch)
    with pytest.warns(RuntimeWarning, match="1 lines of the log .*: OSError: no space left"):
        log.warning("one")
    log.warning("two")
    with Postbox(tmp_path / "crm.db", agent="crm", start=False) as box:
        health = box.file.health()

    told = "2 lines of the log could not be written: OSError: no space left"
    assert ("degraded", (told,)) == (health.verdict, health.reasons)


class Unspeakable:
    """A hook that exits, without a repr."""

    __call__ = __repr__ = _raise(SystemExit(6))


class Exits(Observer):
    """Exits whenever an attempt begins."""

    handling = _raise(SystemExit(7))


class Vague(Observer):
    """Returns objects without the methods that are called."""

    def sending(self, _: SendFacts) -> Any:
        """Return a plain object."""
        return object()

    def handling(self, _: Attempt) -> Any:
        """Return a plain object."""
        return object()


def test_a_hook_that_exits_stops_no_handler(tmp_path: Path) -> None:
    """On a thread of the engine an exit ends no program; nor does one of its repr in the log."""
    hook = Unspeakable()

    _handle(tmp_path, lambda box: [box.on(DeadLettered, hook), box.on(Processed, hook)])


@pytest.mark.parametrize("observer", [Exits(), Vague()])
def test_an_observer_that_fails_stops_no_handler(tmp_path: Path, observer: Observer) -> None:
    """Whether it raises, or returns what cannot be called."""
    _handle(tmp_path, lambda box: observe(box, observer))
