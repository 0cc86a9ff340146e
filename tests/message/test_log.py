"""Lines of the log: where they go, what they carry, and what an application can configure."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest
import structlog
from structlog.testing import LogCapture

from onceward.message.log import log


@pytest.fixture
def configured() -> Iterator[LogCapture]:
    """Configure structlog as an application would, and undo it."""
    capture = LogCapture()
    structlog.configure(processors=[capture])
    yield capture
    structlog.reset_defaults()


@pytest.fixture
def bad_input() -> ValueError:
    """Return an exception that was raised, so that it has a traceback."""
    try:
        raise ValueError("bad input")
    except ValueError as error:
        return error


def test_lines_go_to_the_logger_onceward(caplog: pytest.LogCaptureFixture) -> None:
    """Without a configured structlog a line is a record of ``logging`` with its fields as text."""
    log.bind(agent="billing").warning("worker waits", seconds=1, session=None)

    assert [("onceward", logging.WARNING, "worker waits agent=billing seconds=1")] == (
        caplog.record_tuples
    )


def test_a_line_is_written_while_another_thread_imports_structlog(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A module that is there and has no names yet ends no thread that writes a line."""
    log.warning("first")  # this one has imported what the next one needs
    monkeypatch.setitem(sys.modules, "structlog", ModuleType("structlog"))
    log.warning("second")

    assert ["first", "second"] == caplog.messages


def test_a_record_carries_its_fields(caplog: pytest.LogCaptureFixture) -> None:
    """A formatter of ``logging`` reads the fields as values, not from the text."""
    log.warning("worker waits", agent="billing", seconds=1)

    [record] = caplog.records
    assert {"agent": "billing", "seconds": 1} == record.__dict__["onceward"]


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("plain", "plain"),
        ("two words", "'two words'"),
        ("", "''"),
        ("a=b", "'a=b'"),
        ("two\nlines", r"'two\nlines'"),
        ("100%s", "100%s"),
        ("\x1b[31m", r"'\x1b[31m'"),
        ("\u202e", r"'\u202e'"),
        (7, "7"),
    ],
)
def test_a_value_is_one_word(caplog: pytest.LogCaptureFixture, value: Any, shown: str) -> None:
    """A value with blanks, quotes or line breaks is quoted: one line stays one line."""
    log.error("trouble", value=value)

    assert [f"trouble value={shown}"] == caplog.messages


def test_a_failure_is_one_line_and_its_traceback_is_debug(
    caplog: pytest.LogCaptureFixture, bad_input: ValueError
) -> None:
    """The line names the exception; the traceback is a second line, for the level DEBUG only."""
    caplog.set_level(logging.DEBUG)
    log.failure("warning", "handler failed", bad_input, attempt=1)

    assert [
        ("WARNING", "handler failed attempt=1 error='ValueError: bad input'", False),
        ("DEBUG", "handler failed attempt=1", True),
    ] == [(line.levelname, line.getMessage(), bool(line.exc_info)) for line in caplog.records]


@pytest.mark.parametrize("linked", ["alone", "cause", "context", "member", "note"])
def test_a_traceback_writes_no_line_and_moves_no_cursor(
    caplog: pytest.LogCaptureFixture, linked: str
) -> None:
    """The text of an exception is escaped as fields are; its further lines are indented."""
    foreign = "sent \x1b[2J\u202e\x7f\n2026-01-31 INFO forged\r\x9b1A"
    shown = "sent \\x1b[2J\\u202e\\x7f\n    2026-01-31 INFO forged\\r\\x9b1A"
    error: Exception = ValueError(foreign)
    if linked in {"cause", "context"}:
        outer = LookupError("outer")
        setattr(outer, f"__{linked}__", error)
        error = outer
    elif linked == "member":
        error = ExceptionGroup("outer", [error])
    elif linked == "note":
        error = LookupError("outer")
        error.add_note(foreign)
    caplog.set_level(logging.DEBUG)
    log.failure("warning", "handler failed", error)
    text = caplog.text.replace("    | ", "").replace("  | ", "")

    assert f"{'' if linked == 'note' else 'ValueError: '}{shown}\n" in text
    assert "outer" in text or linked == "alone"
    assert [] == [c for c in caplog.text if not c.isprintable() and c != "\n"]


def test_a_configured_structlog_is_used(
    configured: LogCapture, caplog: pytest.LogCaptureFixture
) -> None:
    """An application that configured structlog gets the fields through its own processors."""
    log.bind(agent="billing").warning("worker waits", seconds=1)

    assert [
        {"event": "worker waits", "agent": "billing", "seconds": 1, "log_level": "warning"}
    ] == configured.entries
    assert [] == caplog.records


def test_context_variables_are_on_every_line(caplog: pytest.LogCaptureFixture) -> None:
    """What the application bound with ``structlog.contextvars`` is on our lines, too."""
    with structlog.contextvars.bound_contextvars(trace="t1"):
        log.warning("worker waits")

    assert ["worker waits trace=t1"] == caplog.messages


def test_nothing_is_printed_to_stdout(capsys: pytest.CaptureFixture[str]) -> None:
    """The output of a program that configured no logging stays its own."""
    log.warning("worker waits")

    assert "" == capsys.readouterr().out
