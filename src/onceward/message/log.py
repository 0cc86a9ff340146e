"""
Write log lines through structlog, which is imported with the first written line.

The application decides where lines go. If it configured structlog, they follow that configuration.
Otherwise they go to the standard library's logger ``onceward``: the text is ``event key=value …``,
the fields are the record's attribute ``onceward``. This module configures neither.

Code that only tells (a log handler, a hook, an observer) decides nothing. The commit that it tells
of was made already, or does not depend on it, so its error ends neither a handler nor an engine,
whatever its class. A line that cannot be written is lost and counted.
"""

from __future__ import annotations

import logging
import sys
import warnings
from collections.abc import Callable, Mapping, MutableMapping
from contextlib import suppress
from functools import cache
from threading import current_thread, main_thread
from typing import Any, Final, Literal, TypeVar, get_args

from onceward.message.clock import monotonic
from onceward.message.error_text import error_text, exc_info, one_line, trace_of

T = TypeVar("T")
STDLIB: Final = logging.getLogger("onceward")

Level = Literal["debug", "info", "warning", "error"]

NUMBERS: Final = {level: getattr(logging, level.upper()) for level in get_args(Level)}

RENDERED_BY_LOGGING: Final = ("exc_info", "stack_info")


Failed = Callable[[BaseException], None]


def quietly(call: Callable[..., T], *args: Any, failed: Failed) -> T | None:
    """
    Call code that only tells; give its error to *failed*, and return None then.

    The main thread lets an exit or an interrupt pass: it may come from a signal.
    """
    try:
        return call(*args)
    except BaseException as error:
        if not issubclass(type(error), Exception) and current_thread() is main_thread():
            raise
        failed(error)
        return None


class LostLines:
    """Counts lines of the log that could not be written; the first one is a warning of Python."""

    def __init__(self) -> None:
        self.count, self.error, self._at = 0, "", 0.0

    def add(self, error: BaseException) -> None:
        """Count a line."""
        self.count, self._at = self.count + 1, monotonic()
        self.error = error_text(error)
        if self.count == 1:
            with suppress(Exception):  # warnings may be errors, and stderr may be closed
                warnings.warn(f"onceward: {self.summary}", RuntimeWarning, stacklevel=2)

    def since(self, seconds: float) -> bool:
        """Return whether a line was lost in the last *seconds*."""
        return self.count > 0 and monotonic() - self._at < seconds

    @property
    def summary(self) -> str:
        """How many lines were lost, and why the last one was."""
        return f"{self.count} lines of the log could not be written: {self.error}"


LOST: Final = LostLines()
"""The lines that this process could not write."""


class Log:
    """An event and its fields per line; a line below the configured level costs no import."""

    __slots__ = ("_fields",)

    def __init__(self, **fields: Any) -> None:
        self._fields = fields

    def bind(self, **fields: Any) -> Log:
        """Return a log whose lines also carry *fields*."""
        return Log(**self._fields, **fields)

    def debug(self, event: str, **fields: Any) -> None:
        """Write a step of one message."""
        self.write("debug", event, fields)

    def info(self, event: str, **fields: Any) -> None:
        """Write a change that needs no action."""
        self.write("info", event, fields)

    def warning(self, event: str, **fields: Any) -> None:
        """Write trouble that the library handles itself."""
        self.write("warning", event, fields)

    def error(self, event: str, **fields: Any) -> None:
        """Write trouble that needs an action."""
        self.write("error", event, fields)

    def failure(self, level: Level, event: str, error: BaseException, **fields: Any) -> None:
        """Write an exception in one line at *level*, and its traceback at DEBUG."""
        self.write(level, event, {**fields, "error": error_text(error)})
        self.write("debug", event, {**fields, "exc_info": exc_info(error, trace_of(error))})

    def takes(self, level: Level) -> bool:
        """Return whether lines of *level* may be written; structlog decides line by line."""
        try:  # not by ``quietly``: each round of a worker asks
            return _structlog() is not None or STDLIB.isEnabledFor(NUMBERS[level])
        except Exception as error:  # noqa: BLE001 - the application may have replaced the logger
            LOST.add(error)
            return False

    def write(self, level: Level, event: str, fields: Mapping[str, Any]) -> None:
        """Write one line, unless the configuration drops lines of *level*."""
        quietly(self._write, level, event, fields, failed=LOST.add)

    def _write(self, level: Level, event: str, fields: Mapping[str, Any]) -> None:
        structlog = _structlog()
        if structlog is not None:
            logger = structlog.get_logger("onceward")
        elif STDLIB.isEnabledFor(NUMBERS[level]):
            logger = _over_logging()
        else:
            return
        more = {name: value for source in _sources for name, value in source().items()}
        getattr(logger, level)(event, **{**more, **self._fields, **fields})


def _structlog() -> Any:
    """Return structlog if the program has configured it, else None."""
    structlog = sys.modules.get("structlog")  # without an import there is no configuration
    # While another thread imports it, the module exists without its names.
    configured = getattr(structlog, "is_configured", None)
    return structlog if configured is not None and configured() else None


_sources: list[Callable[[], Mapping[str, Any]]] = []


def add_fields(source: Callable[[], Mapping[str, Any]]) -> None:
    """Call *source* for additional fields of each written line; if it raises, the line is lost."""
    if source not in _sources:
        _sources.append(source)


log: Final = Log()
"""The log of the library, without bound fields."""


@cache
def _over_logging() -> Any:
    import structlog  # noqa: PLC0415 - a program that logs nothing does not pay for it

    return structlog.wrap_logger(
        STDLIB,
        processors=[structlog.contextvars.merge_contextvars, _to_logging],
        wrapper_class=structlog.stdlib.BoundLogger,
        context_class=dict,
    )


def _to_logging(
    _: object, __: str, fields: MutableMapping[str, Any]
) -> tuple[tuple[str], dict[str, Any]]:
    """Render a line as a call of ``logging.Logger``: one text, and the fields in ``extra``."""
    options = {name: fields.pop(name) for name in RENDERED_BY_LOGGING if name in fields}
    event = fields.pop("event")
    pairs = (f"{name}={_shown(value)}" for name, value in fields.items() if value is not None)
    extra = {"event": event, "onceward": dict(fields)}
    return (one_line(" ".join([event, *pairs])),), {**options, "extra": extra}


def _shown(value: object) -> str:
    text = f"{value:.3f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)
    return text if text.isprintable() and text and not set(text) & set(" \"'=") else repr(text)
