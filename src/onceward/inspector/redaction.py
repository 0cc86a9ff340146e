"""Hide secrets in bodies and errors before a page shows them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any, Final

from onceward.errors import InvalidArgument

HIDDEN: Final = "•••"
KEYS: Final = r"passw(or)?d|secret|token|authorization|api[_-]?key|credential|private[_-]?key"
"""Fields that are hidden where nothing else is said; a pattern of the user's adds to them."""


class Redaction:
    """
    Hide fields by their names, and text that a pattern matches.

    A field whose name a pattern matches somewhere is hidden with all that is in it. In
    every other text the part that a pattern of the user's matches is hidden.

    Raises:
        InvalidArgument: a pattern is no regular expression.

    """

    def __init__(self, patterns: Iterable[str] = ()) -> None:
        given = [_compiled(pattern) for pattern in patterns]
        self._texts = given
        self._names = [_compiled(KEYS), *given]

    def value(self, value: Any) -> Any:
        """Return a JSON value with what is secret hidden."""
        match value:
            case dict():
                return {
                    self.text(name): HIDDEN if self._is_secret(name) else self.value(each)
                    for name, each in value.items()
                }
            case list():
                return [self.value(each) for each in value]
            case str():
                return self.text(value)
            case int() | float() if not isinstance(value, bool):
                return value if self.text(str(value)) == str(value) else HIDDEN
        return value

    def text(self, text: str) -> str:
        """Return a text with what is secret hidden."""
        for pattern in self._texts:
            text = pattern.sub(HIDDEN, text)
        return text

    def error(self, text: str | None) -> str | None:
        """Return an error text with what is secret hidden, None where there is none."""
        return None if text is None else self.text(text)

    def json(self, text: str) -> str:
        """Return JSON text, laid out, with what is secret hidden; other text as text."""
        try:
            return pretty(self.value(json.loads(text)))
        except ValueError:
            return self.text(text)
        except RecursionError:
            return HIDDEN

    def _is_secret(self, name: str) -> bool:
        return any(pattern.search(name) for pattern in self._names)


def pretty(value: Any) -> str:
    """Return a JSON value as text on several lines."""
    return json.dumps(value, indent=2, ensure_ascii=False)


def _compiled(pattern: str) -> re.Pattern[str]:
    try:
        return re.compile(pattern, re.IGNORECASE)
    except re.error as error:
        msg = f"redact pattern {pattern!r} is no regular expression: {error}"
        raise InvalidArgument(msg) from error
