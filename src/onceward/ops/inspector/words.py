"""Format numbers, times and sizes for pages."""

from __future__ import annotations

import time
from typing import Final

from onceward.file.file_checks import PROCESS_ID_PARTS
from onceward.message.clock import Millis
from onceward.ops.views.overview import MANY
from onceward.ops.views.vocabulary import level

SECOND: Final = 1_000
UNITS: Final = ((86_400_000, "d"), (3_600_000, "h"), (60_000, "min"), (SECOND, "s"))
SIZES: Final = ((1 << 30, "GB"), (1 << 20, "MB"), (1 << 10, "kB"))
CUT: Final = 12
TEN: Final = 10
FAST: Final = 600
"""Messages per minute from which rates are shown per second."""


def span(millis: Millis | None) -> str:
    """Return a span as ``3 min``, in its largest unit; below a second in milliseconds."""
    if millis is None:
        return ""
    if abs(millis) < SECOND:
        return f"{millis} ms"
    unit, name = next((unit, name) for unit, name in UNITS if abs(millis) >= unit)
    return f"{millis / unit:.{1 if abs(millis) < 10 * SECOND else 0}f} {name}"


def age(millis: Millis) -> str:
    """Return an age in whole units; 0 s if clocks differ."""
    if millis < SECOND:
        return "0 s"
    unit, name = next((unit, name) for unit, name in UNITS if millis >= unit)
    return f"{millis // unit} {name}"


def moment(at: Millis | None) -> str:
    """Return a moment as ``2026-01-31 12:00:00.000 UTC``."""
    if at is None:
        return ""
    seconds, millis = divmod(at, 1000)
    try:
        return f"{time.strftime('%Y-%m-%d %H:%M:%S', time.gmtime(seconds))}.{millis:03d} UTC"
    except (OverflowError, ValueError, OSError):
        return str(at)


def rfc3339(at: Millis | None) -> str:
    """Return a moment as the ``datetime`` of a time element."""
    return moment(at).replace(" UTC", "Z").replace(" ", "T")


def number(count: int | None) -> str:
    """Return a count with separators; empty if there is none."""
    return "" if count is None else f"{count:,}"


def bounded(count: int) -> str:
    """Return a count that was limited to MANY."""
    return f"{MANY:,}+" if count > MANY else f"{count:,}"


def size(count: int | None) -> str:
    """Return bytes as ``1.2 MB``."""
    if count is None:
        return ""
    for unit, name in SIZES:
        if count >= unit:
            return f"{count / unit:.1f} {name}"
    return f"{count} B"


def short(message_id: str | None) -> str:
    """Return the end of an id, in which ids of one moment differ."""
    text = message_id or ""
    return text if len(text) <= CUT else f"…{text[-CUT:]}"


def rate(per_minute: float) -> str:
    """Return a rate as ``12/min``, ``3/h`` if lower, ``20/s`` if higher; empty for 0."""
    if not per_minute:
        return ""
    units = ((FAST, 1 / 60, "s"), (1, 1, "min"), (0, 60, "h"))
    count, unit = next((per_minute * by, unit) for least, by, unit in units if per_minute >= least)
    return f"{count:,.{0 if count >= TEN else 1}f}/{unit}"


def percent(part: float) -> str:
    """Return a fraction as ``42 %``."""
    return f"{100 * part:.0f} %"


def tone(state: str) -> str:
    """Return the class of a state's colour: bad, wait, or none."""
    return {"act": "bad", "wait": "wait", "ok": ""}[level(state)]


def holder(owner: str | None) -> str:
    """Return the holder of a lease as ``pid 4711/8c2f1e``, other names as they are."""
    process, _, token = (owner or "").partition("/")
    parts = process.split(".")
    return f"pid {parts[2]}/{token[:6]}" if len(parts) == PROCESS_ID_PARTS else owner or ""
