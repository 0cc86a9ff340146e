"""Read answers to our requests: headers, bounded bodies, and how long to wait."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from email.utils import parsedate_to_datetime

from onceward.errors import Unreachable
from onceward.message.clock import Millis


def read_body(parts: Iterable[bytes], limit: int) -> bytes:
    """Read a body as sent, without decompression, up to *limit* bytes."""
    body = bytearray()
    for part in parts:
        body += part
        if len(body) > limit:
            raise Unreachable(f"the answer exceeds the limit of {limit} bytes")
    return bytes(body)


def all_headers(raw: Iterable[tuple[bytes, bytes]]) -> dict[str, str]:
    """Return headers by their names in lower case; join headers with the same name."""
    found: dict[str, str] = {}
    for name, value in raw:
        key, text = name.decode("latin-1").lower(), value.decode("latin-1")
        found[key] = f"{found[key]}, {text}" if key in found else text
    return found


def retry_after(headers: Mapping[str, str], now: Millis) -> Millis:
    """Return the delay in milliseconds that a busy peer requests; 0 if none."""
    text = headers.get("retry-after", "")
    if text.isascii() and text.isdigit():
        return 1000 * int(text[:9])
    try:
        return max(0, round(parsedate_to_datetime(text).timestamp() * 1000) - now)
    except (ValueError, TypeError, OverflowError):
        return 0
