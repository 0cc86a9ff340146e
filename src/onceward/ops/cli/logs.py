"""Write the lines of a command's log to stderr, as text or as JSON."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, Literal

from onceward.message.clock import iso
from onceward.message.error_text import json_line
from onceward.message.log import STDLIB
from onceward.message.redaction import Redaction

LogLevel = Literal["debug", "info", "warning", "error"]
LogFormat = Literal["text", "json"]
SECRETS: Final = Redaction()
"""Hides secret values in every field, as the inspector does."""
TEXT: Final = "%(asctime)s %(levelname)s %(message)s"


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


@contextmanager
def written_to_stderr(level: LogLevel, style: LogFormat) -> Iterator[None]:
    """For a block, write the library's log from *level*; the agent's own lines are untouched."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines() if style == "json" else TextLines(TEXT))
    before = STDLIB.level, STDLIB.propagate
    STDLIB.addHandler(handler)
    STDLIB.setLevel(level.upper())
    STDLIB.propagate = False
    try:
        yield
    finally:
        STDLIB.removeHandler(handler)
        STDLIB.setLevel(before[0])
        STDLIB.propagate = before[1]
