"""Write all lines of a command that runs engines to stderr, in one form: text or JSON."""

from __future__ import annotations

import json
import logging
import sys
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, Literal

from cyclopts import Parameter

from onceward.message.clock import iso
from onceward.message.error_text import json_line
from onceward.message.log import STDLIB
from onceward.message.redaction import Redaction
from onceward.ops.cli.output import note

LogLevel = Literal["debug", "info", "warning", "error"]
LogFormat = Literal["text", "json"]
SECRETS: Final = Redaction()
"""Hides secret values in every field, as the inspector does."""
TEXT: Final = "%(asctime)s %(levelname)s %(message)s"
HANDLER_FAILED: Final = "handler failed"
COMMAND: Final = logging.getLogger("onceward-command")
"""Lines of the command about itself, which no level drops."""
_calls: Final = deque[tuple[Any, Any]](maxlen=1000)
"""Message and attempt of the calls whose failure has a line."""


class JsonLines(logging.Formatter):
    """Each line as a JSON object: time, level, event, and the fields of the line."""

    def format(self, record: logging.LogRecord) -> str:
        """Return one line; a traceback is its field ``exception``."""
        told = {
            "time": iso(round(1000 * record.created)),
            "level": record.levelname.lower(),
            "event": getattr(record, "event", record.getMessage()),
            **getattr(record, "onceward", {}),
        }
        if record.exc_info:
            told["exception"] = self.formatException(record.exc_info)
        return json_line(json.dumps(SECRETS.value(told), ensure_ascii=False, default=str))


class TextLines(logging.Formatter):
    """Each line as text, followed by a traceback."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line, with secrets hidden."""
        return SECRETS.text(super().format(record))


class _Handler(logging.StreamHandler):  # type: ignore[type-arg]  # generic in stubs only
    """Writes lines, and notes the calls whose failure it has written."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write a line."""
        if getattr(record, "event", "") == HANDLER_FAILED:
            fields = getattr(record, "onceward", {})
            _calls.append((fields.get("message_id"), fields.get("attempt")))
        super().emit(record)


def is_written(message_id: str, attempt: int) -> bool:
    """Return whether the failure of a handler's call has a line already."""
    return (message_id, attempt) in _calls


def announce(text: str) -> None:
    """Write a line of the command about itself; without ``Logging.written`` as a note."""
    if COMMAND.handlers:
        COMMAND.info("%s", text)
    else:
        note(text)


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Logging:
    """How a command writes its log."""

    log_level: LogLevel = "warning"
    """Minimum level of the library's log lines on stderr."""
    log_format: LogFormat = "text"
    """text: a readable line. json: one object per line. Ignored if the agent configures
    structlog."""

    @property
    def words(self) -> list[str]:
        """The options, for the command line of a child."""
        return [f"--log-level={self.log_level}", f"--log-format={self.log_format}"]

    @contextmanager
    def written(self) -> Iterator[None]:
        """For a block, write the library's lines to stderr; the agent's own are untouched."""
        handler = _Handler(sys.stderr)
        handler.setFormatter(JsonLines() if self.log_format == "json" else TextLines(TEXT))
        loggers = ((STDLIB, self.log_level.upper()), (COMMAND, "INFO"))
        before = [(each.level, each.propagate) for each, _ in loggers]
        for each, level in loggers:
            each.addHandler(handler)
            each.setLevel(level)
            each.propagate = False
        try:
            yield
        finally:
            for (each, _), (number, propagate) in zip(loggers, before, strict=True):
                each.removeHandler(handler)
                each.setLevel(number)
                each.propagate = propagate


LOGGING: Final = Logging()
